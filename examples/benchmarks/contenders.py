"""Ways to choose k columns without labels: ours, and what one would use instead."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module

import numpy as np
import scipy.linalg
import scipy.linalg.interpolative
from numpy.typing import ArrayLike, NDArray
from sklearn.cluster import FeatureAgglomeration
from sklearn.decomposition import PCA
from sklearn.feature_selection import VarianceThreshold

import rgcss_dask as rg

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Selector:
    """One contender."""

    name: str
    pick: Callable[[Array, int], ArrayLike]  # (rows, k) -> k column numbers
    needs: str = "numpy"  # the module without which it is left out
    ours: bool = False
    nested: bool = False  # fewer columns are the first of more, so that the largest k answers for all
    draws: int = 1  # to average, where it is random


def ours(**options: object) -> Callable[[Array, int], ArrayLike]:
    return lambda A, k: rg.RGCSS(n_features_to_select=k, **options).fit(A).selected_


def explicit_greedy(A: Array, k: int) -> list[int]:
    """Pick as pycss does: the residual covariance is kept whole, updated and scored anew for each column."""
    E = A.T @ A
    floor = len(E) * np.finfo(float).eps * np.diagonal(E).max()
    picked: list[int] = []
    for _ in range(k):
        left = np.diagonal(E)
        scores = np.where(left > floor, np.einsum("ij,ij->j", E, E) / np.where(left > floor, left, 1.0), -1.0)
        scores[picked] = -2.0
        picked.append(int(np.argmax(scores)))
        w = E[:, picked[-1]] / np.sqrt(max(E[picked[-1], picked[-1]], floor))
        E = E - np.outer(w, w)
    return picked


def matter(kind: str) -> Callable[[Array, int], ArrayLike]:
    def pick(A: Array, k: int) -> ArrayLike:
        return getattr(import_module("skmatter.feature_selection"), kind)(n_to_select=k).fit(A).selected_idx_

    return pick


def sensors(A: Array, k: int) -> ArrayLike:
    basis = import_module("pysensors.basis").SVD(n_basis_modes=k)
    model = import_module("pysensors.reconstruction").SSPOR(n_sensors=k, basis=basis)
    return model.fit(A, quiet=True).get_selected_sensors()


def fastcan(A: Array, k: int) -> ArrayLike:
    """Unsupervised, as its documentation does it: the targets are the first k principal components."""
    return import_module("fastcan").FastCan(k, verbose=0).fit(A, PCA(k).fit_transform(A)).indices_


def pivoted_qr(A: Array, k: int) -> ArrayLike:
    return scipy.linalg.qr(A, mode="r", pivoting=True)[1][:k]


def interpolative(A: Array, k: int) -> ArrayLike:
    return scipy.linalg.interpolative.interp_decomp(A, k, rng=0)[0][:k]


def largest_variances(A: Array, k: int) -> ArrayLike:
    """Rank the columns by what scikit-learn's filter compares with its threshold; at a tie the first ones."""
    return np.argsort(-VarianceThreshold().fit(A).variances_, kind="stable")[:k]


def by_random_pivots(A: Array, k: int) -> list[int]:
    """Randomly pivoted Cholesky of A'A (Chen, Epperly, Tropp and Webber): each pick is drawn by what is left of it."""
    left, picked = A.copy(), list[int]()
    for _ in range(k):
        norms = np.einsum("ij,ij->j", left, left)
        norms[picked] = 0.0
        picked.append(int(_DRAWS.choice(A.shape[1], p=norms / norms.sum())))
        direction = left[:, picked[-1]] / np.linalg.norm(left[:, picked[-1]])
        left -= np.outer(direction, direction @ left)
    return picked


def by_adaptive_pivots(A: Array, k: int) -> list[int]:
    """Adaptive randomised pivoting (Cortinovis and Kressner): volume sampling from the leading right singular space."""
    V = np.linalg.svd(A, full_matrices=False)[2][:k].T.copy()
    picked = list[int]()
    for _ in range(k):
        norms = np.maximum(np.einsum("ij,ij->i", V, V), 0.0)
        norms[picked] = 0.0
        picked.append(int(_DRAWS.choice(len(V), p=norms / norms.sum())))
        direction = V[picked[-1]] / np.linalg.norm(V[picked[-1]])
        V -= np.outer(V @ direction, direction)
    return picked


def iterated(A: Array, k: int) -> list[int]:
    """IterFS (Ordozgoiti, Canaval and Mozo): from random columns, each is replaced by the best one, until none is."""
    G = A.T @ A
    picked = [int(j) for j in _DRAWS.choice(len(G), k, replace=False)]
    for _ in range(20):
        before = list(picked)
        for place in range(k):
            others = picked[:place] + picked[place + 1 :]
            E = G - G[:, others] @ np.linalg.lstsq(G[np.ix_(others, others)], G[others], rcond=None)[0]
            left = np.diagonal(E)
            floor = 1e-10 * np.diagonal(G)
            gains = np.where(left > floor, np.einsum("ij,ij->j", E, E) / np.where(left > floor, left, 1.0), -1.0)
            gains[others] = -2.0
            picked[place] = int(np.argmax(gains))
        if picked == before:
            break
    return picked


def agglomerated(A: Array, k: int) -> list[int]:
    """Cluster the columns and take from each cluster the one most like the cluster's mean."""
    labels = FeatureAgglomeration(n_clusters=k).fit(A).labels_
    picked = []
    for label in range(k):
        members = np.flatnonzero(labels == label)
        away = A[:, members] - A[:, members].mean(axis=1, keepdims=True)
        picked.append(int(members[np.argmin(np.einsum("ij,ij->j", away, away))]))
    return picked


_DRAWS = np.random.default_rng(0)


def at_random(A: Array, k: int) -> ArrayLike:
    return _DRAWS.choice(A.shape[1], k, replace=False)


GREEDY, TUNED, REFINED = "ours, lambda = 0", "ours, lambda cross-validated", "ours, cross-validated, swaps"
RANDOM = "random"

SELECTORS = (
    Selector(GREEDY, ours(lam=0.0, refine=False), ours=True, nested=True),
    Selector(TUNED, ours(lam="cv", refine=False), ours=True),
    Selector(REFINED, ours(lam="cv", refine=True), ours=True),
    Selector("explicit greedy (as pycss)", explicit_greedy, nested=True),
    Selector("fastcan", fastcan, "fastcan"),
    Selector("scikit-matter CUR", matter("CUR"), "skmatter", nested=True),
    Selector("scikit-matter FPS", matter("FPS"), "skmatter", nested=True),
    Selector("PySensors, SVD basis", sensors, "pysensors"),
    Selector("SciPy pivoted QR", pivoted_qr, nested=True),
    Selector("SciPy interpolative", interpolative, nested=True),
    Selector("scikit-learn FeatureAgglomeration", agglomerated),
    Selector("scikit-learn VarianceThreshold", largest_variances, nested=True),
    Selector("randomly pivoted Cholesky", by_random_pivots, draws=5),
    Selector("adaptive randomised pivoting", by_adaptive_pivots, draws=5),
    Selector("local search (as IterFS)", iterated),
    Selector(RANDOM, at_random, draws=20),
)
