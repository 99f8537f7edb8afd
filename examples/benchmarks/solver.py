"""How close the solver comes to the speed of memory: ratios, all measured in this one run.

    python examples/benchmarks/solver.py [--repeat 5] [--markdown FILE]

The unit is one read of the Gram: NumPy's ``G @ v`` with BLAS as it comes. Times are medians; the spread is half the
range between the quartiles, relative to the median. With n = 2048 the Gram has 34 MB: where the caches of the cores
together hold it, the unit is half of what it is elsewhere, and the ratio twice as large.
"""

import argparse
import platform
import statistics
import time
from pathlib import Path

import numpy as np

from rgcss_dask import select

K = 128
LAMBDAS = np.logspace(-3, 3, 16)
# Seconds: the threads of BLAS wait busily for the next product for some 0.1 s, and would slow down what is timed next.
REST = 0.3


def timed(function, repeat):
    """Return median and relative spread of the seconds a call takes, after one call that warms up."""
    time.sleep(REST)
    function()
    seconds = []
    for _ in range(repeat):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    low, _, high = statistics.quantiles(seconds, n=4) if repeat > 1 else (seconds[0],) * 3
    middle = statistics.median(seconds)
    return middle, (high - low) / 2 / middle


def gram(n, rank, seed=0):
    """Return the Gram of a matrix with a signal of that rank in noise, and lambda 1e-3 of its mean diagonal."""
    rng = np.random.default_rng(seed)
    A = rng.standard_normal((n, rank)) @ rng.standard_normal((rank, n)) + 0.1 * rng.standard_normal((n, n))
    G = A.T @ A
    return G, 1e-3 * np.trace(G) / n


def rows(repeat):
    for n, rank in ((784, 196), (784, 40), (2048, 512), (2048, 40), (4096, 1024), (4096, 40)):
        G, lam = gram(n, rank)
        v = np.random.default_rng(1).standard_normal(n)
        reads, _ = timed(lambda G=G, v=v: [G @ v for _ in range(K)], repeat)
        ours, spread = timed(lambda G=G, lam=lam: select(G, K, lam=lam), repeat)
        gcss, _ = timed(lambda G=G: select(G, K, lam=0.0), repeat)
        refreshes = select(G, K, lam=lam).refreshes
        what = f"n = {n}, k = {K}, signal of rank {rank}, {refreshes} refreshes"
        if n == 784:
            yield f"select, {what}: milliseconds", 1e3 * ours, spread, "<= 50"
        else:
            yield f"select / k reads of G, {what}", ours / reads, spread, "<= 2"
        yield f"select / GCSS (lambda = 0), n = {n}, signal of rank {rank}", ours / gcss, spread, "<= 2"
    lams = LAMBDAS * lam
    together, spread = timed(lambda: select(G, K, lam=lams), max(1, repeat // 2))
    alone, _ = timed(lambda: [select(G, K, lam=one) for one in lams], max(1, repeat // 2))
    yield f"{len(lams)} lambdas in lockstep / one by one, n = 4096, k = {K}", together / alone, spread, "<= 0.5"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--markdown", type=Path, help="also write the table to this file")
    arguments = parser.parse_args()
    lines = ["| what | measured | spread | to reach |", "|---|---|---|---|"]
    print(f"{platform.processor() or platform.machine()}, NumPy {np.__version__}, Python {platform.python_version()}")
    print("\n".join(lines), flush=True)
    for what, value, spread, reach in rows(arguments.repeat):
        lines.append(f"| {what} | {value:.3g} | {100 * spread:.0f} % | {reach} |")
        print(lines[-1], flush=True)
    if arguments.markdown:
        arguments.markdown.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
