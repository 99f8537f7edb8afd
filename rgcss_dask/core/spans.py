"""How rows are cut: spans, which are tasks, and reads within a span, all ending at chunk edges."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from rgcss_dask.core.pass_options import Cuts, Geometry, Options

SPAN_BYTES = 2**28  # bytes of data in a span, so that a lost span is soon read again
# Rows of a span at 8 bits a value, at least: making and merging an n x n matrix is then a few per cent of the work.
SPAN_ROWS = 2**15
SKETCH_SPAN = 16  # bytes of a span, at least, as a multiple of the bytes of its sketch
SPAN_COUNT = 32  # spans, at least, if the rows allow it, so that all threads have work and progress is visible
SPAN_LIMIT = 2**12  # spans, at most: together with the merges, the graph has fewer than 10,000 tasks
READ_BYTES = 2**22  # bytes of one read
# Bytes of one read of sparse rows for a sketch: they write all over the sketch, so many rows should share a visit.
SPARSE_BYTES, MOST_SPARSE_BYTES = 2**26, 2**28  # as many bytes as the sketch has, within these limits
SKETCH_ROWS = 2**4  # rows of one read for each part kept apart, at least, for a sketch, which has no products
BAND_ROWS, BAND_BYTES = 2**6, 2**26  # the same for a band, if rows are very long: this many rows, and this many bytes
CELL_ROWS = 2**10  # rows of one read for each part kept apart, at least, so that products are fast


def span_edges(geometry: Geometry, options: Options | None = None, *, parts: int = 1) -> Cuts:
    """Return the rows at which spans begin and end; spans are longer where more parts have to be merged after them."""
    g = geometry
    sketch = options is not None and options.sketch is not None
    rows = max(
        least_rows(g, parts, sketch=sketch),
        min(SPAN_BYTES // g.row_bytes, -(-g.rows // SPAN_COUNT)),
        -(-g.rows // SPAN_LIMIT),
    )
    if g.whole:  # all of a span is in memory at once, so that it is kept as short as possible
        rows = max(READ_BYTES // g.row_bytes, -(-g.rows // SPAN_LIMIT))
    elif options is not None and options.sketch is not None:  # so that merging takes little time compared with reading
        rows = max(rows, SKETCH_SPAN * options.matrix_bytes(g.columns) // g.bytes_read(options))
    return thinned(g.cuts, rows)


def least_rows(geometry: Geometry, parts: int = 1, *, sketch: bool = False) -> int:
    """Return the smallest number of rows of a span: fewer for types whose products take longer."""
    sparse = 0 < 4 * geometry.sparse_bytes <= geometry.row_bytes and not sketch
    return parts * SPAN_ROWS // min(geometry.dtype.itemsize**2, 2 if sparse else 8)


def parts_of_span(geometry: Geometry, options: Options) -> int:
    """Return to how many parts kept apart the rows of a span may belong: all folds, and at most two groups."""
    return max(1, options.folds) + min(2, options.groups_among(geometry.rows))


def rows_of_read(geometry: Geometry, options: Options) -> int:
    """Return the number of rows of a read, at most, unless one chunk has more."""
    parts = max(1, options.folds) * (2 if options.groups else 1)
    least = CELL_ROWS if options.sketch is None else SKETCH_ROWS
    if options.candidates is not None:  # very long rows: fewer of them suffice for fast products
        least = min(least, max(BAND_ROWS, BAND_BYTES // geometry.row_bytes))
    size = READ_BYTES
    if options.sketch is not None and geometry.sparse_bytes > 0:
        size = min(max(SPARSE_BYTES, options.matrix_bytes(geometry.columns)), MOST_SPARSE_BYTES)
    return max(size // geometry.bytes_read(options), least * parts)


def largest_read(geometry: Geometry, edges: Cuts, read_rows: int) -> int:
    """Return the most rows that one read holds."""
    if geometry.whole:
        return int(np.diff(edges).max())
    # A read ends at the last cut within read_rows, or holds one larger chunk.
    return int(min(np.diff(edges).max(), max(read_rows, np.diff(geometry.cuts).max())))


def thinned(cuts: Cuts, rows: int) -> Cuts:
    """Keep the fewest cuts that are at most ``rows`` apart; a chunk with more rows than that stays whole."""
    kept = [int(cuts[0])]
    while kept[-1] < cuts[-1]:
        after = int(np.searchsorted(cuts, kept[-1] + rows, "right")) - 1
        after = max(after, int(np.searchsorted(cuts, kept[-1], "right")))
        kept.append(int(cuts[after]))
    return np.array(kept, dtype=np.int64)


def reads_between(cuts: Cuts, start: int, stop: int, rows: int) -> Iterator[tuple[int, int]]:
    """Yield row ranges from ``start`` to ``stop`` that end at cuts, with at most ``rows`` rows or one chunk."""
    inside = cuts[np.searchsorted(cuts, start, "right") : np.searchsorted(cuts, stop)]
    yield from pairwise(thinned(np.concatenate([[start], inside, [stop]]), rows).tolist())
