"""How good swaps, further searches and the exact search are: against the optimum, and on rows that were held out.

    python -m examples.benchmarks.searches [--data FOLDER] [--problems 100] [--only small|large|folds]

Small problems are searched exactly, which proves the optimum; large ones are compared with swaps alone. For the folds,
lambda is chosen on greedy picks and on picks that are swapped in every fold, over paired splits. Times are those of the
processor, so that other work on the machine does not count.
"""

from __future__ import annotations

import argparse
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from sklearn.datasets import load_breast_cancer, load_digits, load_wine

import rgcss_dask as rg
from examples.benchmarks.datasets import cases
from examples.benchmarks.tables import markdown
from rgcss_dask.core.evaluate import weights
from rgcss_dask.core.held_out import swapped_losses
from rgcss_dask.core.problem import Problem

Array = NDArray[np.float64]

EFFORTS = (5, 10, 20)
KICKS = 12
SPLITS, ROWS = 20, 1500  # paired splits; at most so many rows to pick on, and as many held out
SAME = 1e-9  # share of a loss


def small(folder: Path | None) -> Iterator[tuple[str, Array, int, float, str]]:
    """Yield the standing problems: name, rows, k, lambda, objective."""
    sizes = {"wine": range(2, 9), "breast cancer": range(2, 7), "digits": (4, 6, 8), "OnlineNews": (4, 6, 8)}
    for name, rows in tables(folder).items():
        for k in sizes[name]:
            yield name, rows, k, 1.0, "unselected"


def tables(folder: Path | None) -> dict[str, Array]:
    """Return the small data sets, standardised but for the pixels, which are centred."""
    found = {"wine": load_wine().data, "breast cancer": load_breast_cancer().data, "digits": load_digits().data}
    if folder is not None and (folder / "onlinenews.npz").exists():
        found["OnlineNews"] = np.load(folder / "onlinenews.npz", allow_pickle=True)["X"]
    return {name: standardised(rows, scale=name != "digits") for name, rows in found.items()}


def standardised(rows: Array, *, scale: bool) -> Array:
    rows = rows[:, rows.std(axis=0) > 0] - rows[:, rows.std(axis=0) > 0].mean(axis=0)
    return rows / rows.std(axis=0) if scale else rows


def drawn(folder: Path | None, count: int) -> Iterator[tuple[str, Array, int, float, str]]:
    """Yield random problems: some columns of a data set, with any k, lambda and objective."""
    draw, sets = np.random.default_rng(0), list(tables(folder).items())
    for _ in range(count):
        name, rows = sets[draw.integers(len(sets))]
        n = int(draw.integers(min(12, rows.shape[1]), rows.shape[1] + 1))
        columns = draw.choice(rows.shape[1], n, replace=False)
        lam = float(draw.choice([0.0, 1.0, 30.0]))
        yield name, rows[:, columns], int(draw.integers(2, 9)), lam, str(draw.choice(["unselected", "all"]))


def against_the_optimum(problems: Iterator[tuple[str, Array, int, float, str]]) -> str:
    """Return a table of how often each way finds the proved optimum, and by how much it is missed at most."""
    excess: dict[str, list[float]] = {}
    spent: dict[str, list[float]] = {}
    proved = 0
    for _, rows, k, lam, objective in problems:
        G = rows.T @ rows
        picked = rg.select(G, k, lam=lam, objective=objective)
        ways: dict[str, Callable[[], float]] = {"greedy": lambda p=picked: float(p.loss[-1])}
        ways["swaps"] = lambda p=picked, G=G: rg.refine(p, G).after
        for effort in EFFORTS:
            ways[f"effort={effort}"] = lambda p=picked, G=G, e=effort: rg.refine(p, G, effort=e).after
        took, best = timed(lambda p=picked, G=G: rg.refine(p, G, exact=True))
        spent.setdefault("exact", []).append(took)
        excess.setdefault("exact", []).append(0.0)
        proved += best.selection.certificate.optimal
        for name, way in ways.items():
            took, loss = timed(way)
            spent.setdefault(name, []).append(took)
            excess.setdefault(name, []).append(loss / best.after - 1.0 if best.after > 0 else 0.0)
    rows_ = [
        [
            name,
            f"{sum(x <= SAME for x in excess[name])} of {len(excess[name])}",
            f"{max(excess[name]):.2%}",
            f"{np.median(spent[name]):.3f}",
            f"{max(spent[name]):.2f}",
        ]
        for name in ("greedy", "swaps", *(f"effort={effort}" for effort in EFFORTS), "exact")
    ]
    said = f"Proved by the exact search: {proved} of {len(excess['exact'])}.\n\n"
    return said + markdown(["", "optimal", "worst excess", "seconds, median", "most"], rows_)


def large(folder: Path | None) -> str:
    """Return a table of what kicks bring over swaps, on the rows used and on others."""
    found = []
    for case in cases(folder, quick=False):
        G, B = case.train.T @ case.train, case.held_out.T @ case.held_out
        if len(G) < 100:
            continue
        for k in case.ks:
            took, swaps = timed(lambda G=G, k=k: rg.refine(rg.select(G, k), G))
            longer, kicked = timed(lambda s=swaps, G=G: rg.refine(s.selection, G, effort=KICKS))
            held_out = [held_out_loss(one.selection, G, B) for one in (swaps, kicked)]
            shares = (swaps.after / swaps.before, kicked.after / swaps.after, held_out[1] / held_out[0])
            again = f"{kicked.tries.best} of {KICKS + 1}"
            found.append([case.name, str(k), *(f"{1 - share:.2%}" for share in shares), again, f"{longer / took:.1f}"])
            print(found[-1], flush=True)
    header = ["", "k", "swaps below greedy", f"{KICKS} kicks below swaps", "held out", "found again", "times swaps"]
    return markdown(header, found)


def in_folds(folder: Path | None) -> str:
    """Return a table of what swaps in every fold change: the choice of lambda, and what is said of held-out rows."""
    chosen = {"wine": (3, 6), "breast cancer": (4, 8), "digits": (8, 16), "OnlineNews": (6, 12)}
    data = [(name, rows, k) for name, rows in tables(folder).items() for k in chosen[name]]
    large = (case for case in cases(folder, quick=False) if case.name.startswith(("Isolet", "MNIST")))
    data += [(case.name, np.concatenate([case.train, case.held_out]), k) for case in large for k in (16, 32)]
    found = []
    for name, rows, k in data:
        splits = np.array([lambda_by_both(rows, k, seed) for seed in range(SPLITS)])
        found.append([name, str(k), *(shown(splits[:, i]) for i in range(3)), f"{splits[:, 3].mean():.2f}"])
        print(found[-1], flush=True)
    header = ["", "k", "held out, lambda by swapped folds", "said of greedy folds", "said of swapped folds"]
    return markdown([*header, "times the cross-validation"], found)


def lambda_by_both(rows: Array, k: int, seed: int) -> tuple[float, float, float, float]:
    """Return shares of the held-out loss: its change by the other choice, and the excess of what folds said of it.

    The last number is the time of swaps in every fold, for the one lambda that was chosen, by that of all lambdas.
    """
    order = np.random.default_rng(seed).permutation(len(rows))[: 2 * ROWS]
    used, others = np.array_split(rows[order], 2)
    moments, held_out = rg.scan(used, folds=5, progress=False), rg.Moments.of(others)
    long, tuned = timed(lambda: rg.cross_validate(moments, k, center=True, fixed_k=True))
    problem, options = Problem(center=True), {"per_row": True, "measure": "unselected"}
    losses = [swapped_losses(moments, k, problem.at(lam), **options).sum() for lam in tuned.lams]
    short, _ = timed(lambda: swapped_losses(moments, k, problem.at(tuned.lam), **options))

    def left(lam: float) -> float:
        picked = rg.refine(rg.select(moments, k, lam=lam, center=True)).selection
        G, B = (picked.base(of).rows(np.arange(moments.n)) for of in (moments, held_out))
        return held_out_loss(picked, G, B) / held_out.weight * moments.weight

    at = int(np.flatnonzero(tuned.lams == tuned.lam)[0])
    before, after = left(tuned.lam), left(tuned.lams[int(np.argmin(losses))])
    said = tuned.held_out_loss[at, k - 1].sum()
    return after / before - 1.0, said / before - 1.0, losses[at] / before - 1.0, short / long


def shown(shares: Array) -> str:
    return f"{shares.mean():+.2%} ± {shares.std(ddof=1) / np.sqrt(len(shares)):.2%}"


def held_out_loss(picked: rg.Selection, G: Array, B: Array) -> float:
    """Return what the picks leave of other rows, with weights learnt on those used."""
    S = picked.columns
    W = weights(G, S, picked.lams)
    left = np.diagonal(B) - np.einsum("ij,ij->j", W, 2.0 * B[S] - B[np.ix_(S, S)] @ W)
    return float(np.delete(left, S).sum())


def timed(way: Callable[[], object]) -> tuple[float, object]:
    began = time.process_time()
    found = way()
    return time.process_time() - began, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the real data sets")
    parser.add_argument("--problems", type=int, default=100, help="random small problems")
    parser.add_argument("--only", choices=("small", "large", "folds"))
    options = parser.parse_args()
    if options.only in (None, "folds"):
        print(f"### Swaps in every fold\n\n{in_folds(options.data)}", flush=True)
    if options.only in (None, "small"):
        print(f"### Standing small problems\n\n{against_the_optimum(small(options.data))}", flush=True)
        print(f"### Random small problems\n\n{against_the_optimum(drawn(options.data, options.problems))}", flush=True)
    if options.only in (None, "large"):
        print(f"### Many columns\n\n{large(options.data)}")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
