"""Figures printed in the paper, as data: nothing here was computed.

Regularized Greedy Column Subset Selection (Ordozgoiti, Mozo, Garcia Lopez de Lacalle), section "Numerical experiments".
"""

from __future__ import annotations

from typing import NamedTuple


class Spread(NamedTuple):
    """Minimum, average and maximum of 50 runs."""

    low: float
    mean: float
    high: float


# Table "Average pairwise Jaccard index and loss": data set -> lambda -> mean Jaccard index.
STABILITY = {
    "ORL": {0.0: 0.177, 1.0: 0.245, 10.0: 0.408},
    "MNIST": {0.0: 0.278, 1.0: 0.951, 10.0: 0.774},
    "YaleB": {0.0: 0.252, 1.0: 0.632, 10.0: 0.852},
    "OnlineNews": {0.0: 0.782, 1.0: 1.0, 10.0: 1.0},
    "Isolet": {0.0: 0.422, 1.0: 0.6, 10.0: 0.838},
}
# The same table, last column: expected Jaccard index of random subsets.
EXPECTED_JACCARD = {"ORL": 0.012, "MNIST": 0.068, "YaleB": 0.051, "OnlineNews": 0.336, "Isolet": 0.088}

# Table "Condition number of the matrices output by the unregularized and the regularized algorithms":
# (share of the training rows, data set, k) -> (GCSS, RGCSS).
CONDITIONING = {
    (0.01, "ORL", 16): (Spread(13.07, 338.94, 3127.57), Spread(4.45, 6.28, 10.71)),
    (0.01, "ORL", 32): (Spread(33.92, 116.77, 240.82), Spread(3.90, 5.10, 7.68)),
    (0.01, "MNIST", 16): (Spread(130.88, 142.34, 153.50), Spread(5.74, 6.13, 6.56)),
    (0.01, "MNIST", 32): (Spread(10.22, 146.46, 241.65), Spread(10.22, 10.90, 11.80)),
    (0.01, "YaleB", 16): (Spread(243.81, 12186.18, 48241.03), Spread(31.97, 183.84, 1019.68)),
    (0.01, "YaleB", 32): (Spread(214.28, 1218.04, 2575.45), Spread(10.10, 63.30, 272.59)),
    (0.01, "OnlineNews", 16): (Spread(2.37, 3.63, 5.33), Spread(2.37, 3.39, 4.59)),
    (0.01, "OnlineNews", 32): (Spread(4.67, 5.86, 7.43), Spread(4.58, 5.71, 7.32)),
    (0.01, "Isolet", 16): (Spread(12.66, 19.91, 29.78), Spread(11.58, 14.75, 17.96)),
    (0.01, "Isolet", 32): (Spread(43.04, 77.20, 133.39), Spread(31.35, 39.31, 58.30)),
    (0.04, "ORL", 16): (Spread(119.35, 2331.63, 20602.93), Spread(55.78, 90.22, 187.40)),
    (0.04, "ORL", 32): (Spread(183.43, 985.98, 4140.42), Spread(20.59, 27.88, 42.15)),
    (0.04, "MNIST", 16): (Spread(136.33, 147.26, 161.20), Spread(5.61, 5.90, 6.27)),
    (0.04, "MNIST", 32): (Spread(227.12, 235.81, 247.82), Spread(9.36, 10.03, 10.40)),
    (0.04, "YaleB", 16): (Spread(29.62, 35.36, 46.36), Spread(24.32, 32.24, 41.23)),
    (0.04, "YaleB", 32): (Spread(99.93, 134.32, 185.35), Spread(76.28, 103.24, 139.18)),
    (0.04, "OnlineNews", 16): (Spread(2.46, 3.17, 4.07), Spread(2.46, 3.01, 3.91)),
    (0.04, "OnlineNews", 32): (Spread(3.99, 4.82, 5.86), Spread(3.98, 4.72, 5.51)),
    (0.04, "Isolet", 16): (Spread(10.82, 13.24, 16.66), Spread(10.42, 12.52, 16.53)),
    (0.04, "Isolet", 32): (Spread(20.40, 24.28, 28.62), Spread(20.38, 23.58, 27.96)),
    (0.16, "ORL", 16): (Spread(61.95, 74.08, 90.82), Spread(41.89, 60.14, 86.10)),
    (0.16, "ORL", 32): (Spread(178.82, 233.01, 304.82), Spread(131.69, 175.00, 210.30)),
    (0.16, "MNIST", 16): (Spread(130.80, 146.03, 151.36), Spread(5.55, 18.69, 134.06)),
    (0.16, "MNIST", 32): (Spread(225.88, 235.61, 244.84), Spread(9.95, 55.10, 241.62)),
    (0.16, "YaleB", 16): (Spread(22.11, 24.50, 28.54), Spread(20.93, 24.29, 28.38)),
    (0.16, "YaleB", 32): (Spread(40.26, 43.60, 51.41), Spread(38.01, 41.91, 48.99)),
    (0.16, "OnlineNews", 16): (Spread(2.45, 2.80, 3.34), Spread(2.45, 2.80, 3.34)),
    (0.16, "OnlineNews", 32): (Spread(3.78, 4.38, 5.12), Spread(3.77, 4.24, 5.12)),
    (0.16, "Isolet", 16): (Spread(9.58, 10.74, 11.93), Spread(9.58, 10.74, 11.93)),
    (0.16, "Isolet", 32): (Spread(17.82, 20.30, 21.42), Spread(17.82, 20.30, 21.42)),
}
# Table "Condition number of the test submatrices ... in a case where k > m".
TEST_CONDITIONING = {
    (0.01, "YaleB", 16): (Spread(6.22e16, 8.76e16, 2.37e17), Spread(17.43, 26.07, 45.11)),
    (0.01, "YaleB", 32): (Spread(1.21e16, 1.74e16, 2.84e16), Spread(28.34, 46.74, 72.87)),
}

# Table "NMI for clustering results on the test set", using these shares of the training rows:
CLUSTERING_SHARES = (0.01, 0.02, 0.04, 0.08, 0.16)
# data set -> k -> for each share (GCSS, RGCSS).
CLUSTERING = {
    "ORL": {
        16: ((0.67, 0.768), (0.733, 0.777), (0.786, 0.787), (0.78, 0.785), (0.797, 0.796)),
        32: ((0.653, 0.791), (0.713, 0.798), (0.76, 0.806), (0.809, 0.809), (0.817, 0.805)),
        64: ((0.632, 0.808), (0.685, 0.808), (0.734, 0.816), (0.786, 0.817), (0.821, 0.817)),
        128: ((0.614, 0.819), (0.657, 0.817), (0.7, 0.815), (0.754, 0.818), (0.8, 0.819)),
        256: ((0.588, 0.821), (0.625, 0.82), (0.672, 0.82), (0.721, 0.819), (0.767, 0.821)),
        512: ((0.565, 0.824), (0.596, 0.823), (0.639, 0.825), (0.69, 0.821), (0.739, 0.821)),
    },
    "COIL20": {
        16: ((0.644, 0.636), (0.696, 0.636), (0.718, 0.623), (0.733, 0.629), (0.739, 0.604)),
        32: ((0.642, 0.686), (0.703, 0.67), (0.744, 0.684), (0.762, 0.676), (0.769, 0.672)),
        64: ((0.654, 0.721), (0.701, 0.724), (0.739, 0.726), (0.774, 0.727), (0.783, 0.723)),
        128: ((0.639, 0.76), (0.701, 0.769), (0.744, 0.78), (0.774, 0.772), (0.789, 0.769)),
        256: ((0.646, 0.782), (0.707, 0.782), (0.74, 0.787), (0.772, 0.794), (0.79, 0.795)),
        512: ((0.662, 0.782), (0.698, 0.779), (0.746, 0.777), (0.77, 0.779), (0.793, 0.783)),
    },
    "Isolet": {
        16: ((0.573, 0.571), (0.576, 0.575), (0.579, 0.577), (0.583, 0.583), (0.589, 0.589)),
        32: ((0.604, 0.602), (0.608, 0.61), (0.604, 0.608), (0.601, 0.603), (0.596, 0.597)),
        64: ((0.642, 0.655), (0.66, 0.665), (0.656, 0.662), (0.666, 0.665), (0.662, 0.663)),
        128: ((0.577, 0.703), (0.698, 0.709), (0.707, 0.715), (0.712, 0.71), (0.711, 0.712)),
        256: ((0.5, 0.725), (0.613, 0.733), (0.728, 0.735), (0.734, 0.733), (0.733, 0.736)),
    },
}
# The same table, last line of each part: NMI with all columns, for each share.
CLUSTERING_ALL_COLUMNS = {
    "ORL": (0.81, 0.808, 0.803, 0.811, 0.809),
    "COIL20": (0.758, 0.755, 0.755, 0.754, 0.756),
    "Isolet": (0.697, 0.699, 0.704, 0.704, 0.701),
}

# Table "Employed datasets": data set -> (variables, training rows, test rows).
DATASETS = {
    "ORL": (1024, 300, 100),
    "MNIST": (784, 60_000, 10_000),
    "YaleB": (1024, 1200, 1214),
    "OnlineNews": (58, 30_000, 30_000),
    "Isolet": (617, 5200, 1559),
    "COIL20": (4096, 300, 100),
}

# Figure "Running times with respect to the different input parameters": the ratio RGCSS / GCSS over k, which "converges
# to a constant factor". The text has no figure for it; 3 to 5 is what is said of the plot, so only about.
RUNNING_TIME_RATIO = (3.0, 5.0)
