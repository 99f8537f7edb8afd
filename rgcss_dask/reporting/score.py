"""The score of a result on given rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core import evaluate
from rgcss_dask.core.names import in_order_of, matching
from rgcss_dask.core.rebuild import Rebuild
from rgcss_dask.core.result import Result
from rgcss_dask.core.wide import Rows
from rgcss_dask.core.words import counted, percent
from rgcss_dask.reporting.redundancy import NOTHING
from rgcss_dask.scanning.scan import scan
from rgcss_dask.sources.base import Source
from rgcss_dask.sources.gap_filling import FilledSource


@dataclass(frozen=True)
class Score:
    """The explained share of rows, with the weights, centring and scaling of the result."""

    rows: int
    explained: float  # share of their squared norm, after the preparation of the result
    share_of: str  # "variation" or "squared norm"
    columns: NDArray[np.float64]  # (n,) the same for each column; NaN if constant in these rows

    @property
    def sentence(self) -> str:
        """The score in one sentence."""
        return f"On {counted(self.rows, 'row')} given with the report, they keep {percent(self.explained)}."


def score(result: Result, source: Source, *, nan: str = "raise") -> Score:
    """Score a result on rows, with columns matched by name; few rows are read at once, many in a pass."""
    index = matching(result.names, source.names, source.address)
    m, n = source.shape
    if n != result.n:
        raise ValueError(f"rows must have the {result.n} columns of the result; {source.address} has {n}.")
    if nan == "mean":
        source = FilledSource(source, result.mean if index is None else in_order_of(result.mean, index))
    picked, model = result.selection, Rebuild.of(result.selection, result.weights)
    if m < n:
        rows = Rows.of(source.read(0, m), nan=nan)
        block = rows.block if index is None else rows.block[:, index]
        count, (losses, norms) = rows.rows, model.column_losses(block)
    else:
        seen = scan(source, nan=nan)
        base = replace(picked.preparation, noise=None).base(seen if index is None else seen.take(index))
        count, (losses, norms) = seen.rows, model.column_losses_in(base)
    loss, start = model.summed(losses, norms)
    varies = norms > NOTHING * norms.max(initial=0.0)
    each = np.divide(norms - losses, norms, out=np.full(n, np.nan), where=varies)
    return Score(count, float(evaluate.explained_share(loss, start)), picked.share_of, each)
