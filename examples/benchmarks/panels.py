"""Panels of genes of blood cells, beside those of spapros and its references, judged by the metrics of spapros.

    python -m examples.benchmarks.panels [--data FOLDER] [--repeats 10] [--few 4] [--defaults 1] [--keep FILE]
        [--output FILE]

FOLDER (default: the environment variable RGCSS_DATA) holds pbmc3k.h5ad. Each repeat cuts the cells of each type into
halves: genes are picked on one half and judged on the other, then the other way round. How much cell types count, and
lambda, are settled on the first five repeats; everything is reported on the others. spapros takes minutes: with few
trees it picks on the first ``--few`` of their splits, with its defaults on the first ``--defaults``. ``--keep`` names
a file that keeps what was picked and judged, so that a run that was cut short goes on.
``pip install -e ".[anndata,bench,report]"`` brings all that is needed.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import resource
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import recall_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import rgcss_dask as rg
from rgcss_dask.panels import LAMBDA

Figures = dict[str, float]

K = 50
TYPES = "celltype"
RULES = [(share, strength) for share in (0.1, 0.2, 0.3, 0.5) for strength in (0.001, 0.05)]  # lambda for each cell
HALF = (0.5, 0.05)  # reported besides, whatever is settled
SETTLING = 5  # repeats on which the rule is settled
FEW_TREES = 10
NO_TYPES = "gene_panel, no cell types"
FEW, DEFAULTS = f"spapros, {FEW_TREES} trees", "spapros, defaults (50 trees)"
PCA, DE, RANDOM = "PCA loadings (spapros)", "differential expression (spapros)", "random"
HVG = "scanpy, highly variable"
REFERENCES = {PCA: "PCA", DE: "DE", RANDOM: "random (seed=0)"}
METRICS = {
    "knn": "kNN overlap",
    "coexpression": "1 - mean correlation",
    "distinct": "correlated below 0.8",
    "forest": "recall, forest",
    "recall": "recall, logistic",
}
SHOWN = ("knn", "recall")  # that decide


@dataclass(frozen=True, eq=False)
class Split:
    """Cells to pick on, and cells to judge on."""

    name: str
    learnt: Any
    held_out: Any

    @classmethod
    def of(cls, adata: Any, seed: int, half: int) -> Split:
        """Cut the cells of each type into halves."""
        rng, kinds = np.random.default_rng(seed), np.asarray(adata.obs[TYPES], dtype=str)
        first = np.zeros(len(kinds), dtype=bool)
        for kind in np.unique(kinds):
            members = rng.permutation(np.flatnonzero(kinds == kind))
            first[members[: len(members) // 2]] = True
        chosen = first if half == 0 else ~first
        return cls(f"{seed}.{half}", adata[chosen].copy(), adata[~chosen].copy())


@dataclass
class Kept:
    """What was picked on each split, how long it took and how it was judged, in a file."""

    file: Path
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file.exists():
            self.found = json.loads(self.file.read_text())

    def genes(self, method: str, split: Split, pick: Callable[[Any], Sequence[str]]) -> list[str]:
        """Return the genes a method picks, once for each split."""
        key = f"{method}, {split.name}"
        if key not in self.found:
            began = cpu_seconds()
            genes = [str(gene) for gene in pick(split.learnt)]
            self._keep(key, {"genes": genes, "seconds": cpu_seconds() - began})
        return list(self.found[key]["genes"])

    def judged(self, method: str, split: Split, judge: Callable[[], Figures]) -> Figures:
        """Return the metrics of what a method picked, once for each split."""
        one = self.found[f"{method}, {split.name}"]
        if "judged" not in one:
            self._keep(f"{method}, {split.name}", one | {"judged": judge()})
        return dict(self.found[f"{method}, {split.name}"]["judged"])

    def _keep(self, key: str, value: Any) -> None:
        self.found[key] = value
        self.file.write_text(json.dumps(self.found, indent=1) + "\n")

    def seconds(self, method: str) -> float:
        """Return the median of the processor time of a method."""
        return float(np.median([one["seconds"] for key, one in self.found.items() if key.startswith(f"{method}, ")]))


def cpu_seconds() -> float:
    """Return the processor time of this process and of those it started."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def ours(rule: tuple[float, float] | None) -> Callable[[Any], Sequence[str]]:
    """Pick with a share for the cell types and a lambda for each cell, or without cell types."""

    def pick(adata: Any) -> Sequence[str]:
        options: dict[str, Any] = {"inplace": False, "progress": False}
        if rule is not None:
            options |= {"cell_types": TYPES, "share": rule[0], "lam": rule[1] * adata.n_obs}
        return rg.gene_panel(adata, K, **options).names or ()

    return pick


def name_of(rule: tuple[float, float]) -> str:
    return f"gene_panel, share {rule[0]:g}" + ("" if rule[1] == LAMBDA else f", lambda {rule[1]:g} per cell")


class Peers:
    """spapros: its selection, its references, its metrics."""

    def __init__(self) -> None:
        if not hasattr(np, "in1d"):  # spapros 0.1.6 calls it, NumPy 2.4 dropped it
            setattr(np, "in1d", np.isin)  # noqa: B010
        self.select = importlib.import_module("spapros.selection")
        self.metrics = importlib.import_module("spapros.evaluation.metrics")
        self.scanpy = importlib.import_module("scanpy")

    def spapros(self, trees: int | None) -> Callable[[Any], Sequence[str]]:
        """Pick with so many trees, or as many as by default."""
        few = {} if trees is None else {"forest_hparams": {"n_trees": trees, "subsample": 1000, "test_subsample": 3000}}

        def pick(adata: Any) -> Sequence[str]:
            made = self.select.ProbesetSelector(adata, TYPES, n=K, verbosity=0, n_jobs=1, **few)
            made.select_probeset()
            return list(made.probeset.index[made.probeset["selection"]])

        return pick

    def reference(self, method: str) -> Callable[[Any], Sequence[str]]:
        """Pick with one of the references of spapros."""

        def pick(adata: Any) -> Sequence[str]:
            options = {"obs_key": TYPES, "methods": [method.split(" ")[0]], "verbosity": 0}
            found = self.select.select_reference_probesets(adata, K, **options)[method]
            return list(found.index[found["selection"]])

        return pick

    def highly_variable(self, adata: Any) -> Sequence[str]:
        """Pick scanpy's most variable genes."""
        found = self.scanpy.pp.highly_variable_genes(adata, n_top_genes=K, inplace=False)
        return list(adata.var_names[found["highly_variable"]])

    def judge(self, split: Split, genes: list[str], shared: dict[str, Any], wanted: Iterable[str]) -> Figures:
        """Return metrics of spapros on cells that were held out, and the recall of a classifier from the others."""
        metrics, cells = self.metrics, split.held_out
        ks = metrics.get_metric_default_parameters()["knn_overlap"]["ks"]

        def knn() -> float:
            if "knn" not in shared:
                shared["knn"] = metrics.knns(cells, "all", ks, verbosity=0)
            near = metrics.knns(cells, genes, ks, verbosity=0)
            return float(metrics.summary_knn_AUC(metrics.mean_overlaps(near, shared["knn"], ks, verbosity=0)))

        def forest() -> float:
            confusion, _ = metrics.xgboost_forest_classification(cells, genes, ct_key=TYPES, n_seeds=1, verbosity=0)
            return float(metrics.summary_metric_diagonal_confusion_mean(confusion))

        correlation = metrics.correlation_matrix(cells, genes, verbosity=0)
        ways: dict[str, Callable[[], float]] = {
            "knn": knn,
            "coexpression": lambda: float(metrics.summary_metric_correlation_mean(correlation)),
            "distinct": lambda: float(metrics.summary_metric_correlation_percentage(correlation)),
            "forest": forest,
            "recall": lambda: recall(split, genes),
        }
        return {name: ways[name]() for name in wanted}


def recall(split: Split, genes: list[str]) -> float:
    """Return the mean over all types of the share of held-out cells that are recognised, from the cells picked on."""
    model = make_pipeline(StandardScaler(), LogisticRegression(C=0.1, class_weight="balanced", max_iter=1000))
    X, T = (cells[:, genes].X.toarray() for cells in (split.learnt, split.held_out))
    y, truth = (np.asarray(cells.obs[TYPES], dtype=str) for cells in (split.learnt, split.held_out))
    return float(recall_score(truth, model.fit(X, y).predict(T), average="macro"))


def mean(rows: Sequence[Figures], name: str) -> float:
    return float(np.mean([row[name] for row in rows]))


def error(values: Sequence[float]) -> float | None:
    """Return the standard error of the mean over splits, if there are several."""
    return None if len(values) < 2 else float(np.std(values, ddof=1) / np.sqrt(len(values)))


def less(one: Sequence[Figures], other: Sequence[Figures], name: str) -> list[float]:
    """Return the differences of a metric on the splits that both have, from the first on."""
    return [a[name] - b[name] for a, b in zip(one, other, strict=False)]


def settle(early: dict[str, list[Figures]]) -> tuple[float, float]:
    """Return the rule with the highest recall among those whose kNN overlap is clearly above that of all references.

    Clearly: by two standard errors of the difference. Where none is, the rule with the highest kNN overlap.
    """
    peers = [early[name] for name in (PCA, DE, HVG)]

    def is_above(rule: tuple[float, float]) -> bool:
        gaps = [less(early[name_of(rule)], other, "knn") for other in peers]
        return all(np.mean(gap) > 2.0 * (error(gap) or 0.0) for gap in gaps)

    above = [rule for rule in RULES if is_above(rule)]
    return max(above or RULES, key=lambda rule: mean(early[name_of(rule)], "recall" if above else "knn"))


@dataclass(frozen=True, eq=False)
class Found:
    """What was found on the splits that settle the rule, and on those that are reported."""

    rule: tuple[float, float]
    early: dict[str, list[Figures]]
    late: dict[str, list[Figures]]
    repeats: int
    seconds: dict[str, float]

    @property
    def ours(self) -> list[str]:
        return [name for name in self.late if name.startswith("gene_panel")]

    @property
    def peers(self) -> list[str]:
        return [name for name in self.late if not name.startswith("gene_panel")]


def run(adata: Any, peers: Peers, kept: Kept, options: Any) -> Found:
    """Settle the rule, then pick and judge on the other splits."""
    shared: dict[str, dict[str, Any]] = {}
    splits = [Split.of(adata, seed, half) for seed in range(options.repeats) for half in (0, 1)]
    early, late = splits[: 2 * SETTLING], splits[2 * SETTLING :]

    def judged(of: Sequence[Split], method: str, pick: Callable[[Any], Sequence[str]], names: Any) -> list[Figures]:
        found = []
        for split in of:
            genes, known = kept.genes(method, split, pick), shared.setdefault(split.name, {})
            found.append(kept.judged(method, split, lambda s=split, g=genes, k=known: peers.judge(s, g, k, names)))
            print(f"  {split.name} {method}: {', '.join(f'{v:.3f}' for v in found[-1].values())}", flush=True)
        return found

    references = {method: peers.reference(name) for method, name in REFERENCES.items()}
    references[HVG] = peers.highly_variable
    settling = {name_of(rule): ours(rule) for rule in RULES} | {name: references[name] for name in (PCA, DE, HVG)}
    first = {name: judged(early, name, pick, SHOWN) for name, pick in settling.items()}
    rule = settle(first)
    ways = {NO_TYPES: ours(None), name_of(rule): ours(rule), name_of(HALF): ours(HALF), **references}
    second = {name: judged(late, name, pick, METRICS) for name, pick in ways.items()}
    second[FEW] = judged(late[: options.few], FEW, peers.spapros(FEW_TREES), METRICS)
    second[DEFAULTS] = judged(late[: options.defaults], DEFAULTS, peers.spapros(None), METRICS)
    second = {name: rows for name, rows in second.items() if rows}
    return Found(rule, first, second, options.repeats, {name: kept.seconds(name) for name in second})


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=os.environ.get("RGCSS_DATA"), help="folder of the data sets")
    parser.add_argument("--repeats", type=int, default=2 * SETTLING, help=f"the first {SETTLING} settle the rule")
    parser.add_argument("--few", type=int, default=4, help="splits on which spapros picks with few trees")
    parser.add_argument("--defaults", type=int, default=1, help="splits on which spapros picks at its defaults")
    parser.add_argument("--keep", type=Path, help="file that keeps what was picked and judged")
    parser.add_argument("--output", type=Path, help="file for the page; its picture has the same name")
    options = parser.parse_args(arguments)
    if options.data is None:
        parser.error("the folder of the data sets is needed: --data FOLDER or RGCSS_DATA")
    if options.repeats <= SETTLING:
        parser.error(f"--repeats must be above {SETTLING}, which settle the rule; got {options.repeats}")
    adata = importlib.import_module("anndata").read_h5ad(Path(options.data) / "pbmc3k.h5ad")
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the peers
        peers = Peers()
        rg.gene_panel(adata, K, TYPES, inplace=False, progress=False)  # compiled once
        found = run(adata, peers, Kept(options.keep or Path(folder, "kept.json")), options)
        page = importlib.import_module("examples.benchmarks.panels_page")
        picture = None if options.output is None else options.output.with_suffix(".png")
        if picture is not None:
            page.draw(adata, found, picture)
        text = page.document(found, picture)
    if options.output:
        options.output.write_text(text)
    print(f"\n{text}")


if __name__ == "__main__":
    main()
