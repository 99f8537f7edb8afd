"""What choosing lambda and k costs after the pass: seconds, and ratios measured in this one run.

python examples/benchmarks/tuning.py [--repeat 3] [--rows 60000]
"""

import argparse
import time

import numpy as np

import rgcss_dask as rg

N, K, FOLDS, GROUPS, RESAMPLES = 784, 64, 5, 50, 100


def images(rows, seed=0):
    """Smooth 8-bit rows: a signal of rank 100 in noise."""
    rng = np.random.default_rng(seed)
    signal = rng.standard_normal((rows, 100)) @ (rng.standard_normal((100, N)) * np.geomspace(1, 0.05, 100)[:, None])
    return np.clip(128 + 20 * signal + 5 * rng.standard_normal((rows, N)), 0, 255).astype(np.uint8)


def seconds(function, repeat):
    """Return the median time of a call and its last result, after one call that warms up."""
    result, times = function(), []
    for _ in range(repeat):
        begin = time.perf_counter()
        result = function()
        times.append(time.perf_counter() - begin)
    return float(np.median(times)), result


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--rows", type=int, default=60000)
    options = parser.parse_args()
    X = images(options.rows)
    scanned, moments = seconds(lambda: rg.scan(X, folds=FOLDS, groups=GROUPS, progress=False), 1)
    tuning, tuned = seconds(lambda: rg.cross_validate(moments, K), options.repeat)
    alone, _ = seconds(lambda: [rg.select(moments, K, lam=lam) for lam in tuned.lams], options.repeat)
    agreeing, stable = seconds(
        lambda: rg.stability(moments, K, lam=tuned.lam, resamples=RESAMPLES), max(1, options.repeat // 3)
    )
    refining, refined = seconds(lambda: rg.refine(tuned.selection, moments), options.repeat)
    print(f"the pass, {options.rows} x {N} 8-bit rows, {FOLDS} folds and {GROUPS} groups: {scanned:.2f} s")
    print(f"cross_validate, {FOLDS} folds x {len(tuned.lams)} lambdas, k = {K}, after the pass: {tuning:.2f} s")
    print(f"  / as many selections one by one: {tuning / (FOLDS * alone):.2f}")
    print(f"stability, {RESAMPLES} resamples: {agreeing:.2f} s, Jaccard index {stable.jaccard:.2f}")
    print(f"refine: {refining:.2f} s, {refined.swaps} swaps, loss lowered by {1 - refined.after / refined.before:.2%}")


if __name__ == "__main__":
    main()
