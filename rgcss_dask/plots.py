"""Plots of results: each function takes axes and returns them. The report uses the same drawing functions.

Plots need matplotlib, ``pip install 'rgcss-dask[report]'``. Without ``ax`` a new figure is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from rgcss_dask.core.answer import Answer
from rgcss_dask.core.missing import plain
from rgcss_dask.core.panel import GenePanel
from rgcss_dask.core.result import Result, Tuning
from rgcss_dask.core.stability import Stability
from rgcss_dask.reporting import layout_of, result_of
from rgcss_dask.reporting.alone import ACCENT, SECOND, axes_of, drawn
from rgcss_dask.reporting.redundancy import redundancy as redundancy_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["bands", "cell_types", "cross_validation", "error_left", "loss", "path", "picks", "redundancy", "stability"]

AGAINST = {"both": "figures.draw_surface", "lambda": "figures.draw_lambdas", "columns": "figures.draw_sizes"}


def path(answer: Any, ax: Axes | None = None, *, components: bool = True) -> Axes:
    """Plot the share explained after each pick, and the share of the same number of principal components.

    Parameters
    ----------
    answer : Selection, Refinement, CrossValidation, Result or fitted estimator
        What to plot.
    ax : Axes, optional
        Where to plot.
    components : bool, default=True
        Compare with principal components, which takes an eigenvalue decomposition. Otherwise compare with what the
        answer has: the bound of a selection, the held-out share of a cross-validation.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> picked = rg.select(load_digits().data, 16, center=True)
    >>> plots.path(picked).get_xlabel()
    'columns picked'
    """
    if components:
        result = result_of(answer)
        axes = drawn(ax, "figures.draw_explained", result.selection, {result.components: result.components_explained})
    else:
        picked = _selected(answer)
        axes = drawn(ax, "figures.draw_explained", picked, picked.compared)
    axes.legend(loc="lower right", frameon=False)
    return axes


def loss(answer: Any, ax: Axes | None = None) -> Axes:
    """Plot the loss after each pick, with the lower bounds.

    The dashed line is the tight bound, if the selection has one (``bound=True``), the dotted line the bound of the
    paper.

    Parameters
    ----------
    answer : Selection, Refinement, CrossValidation, Result or fitted estimator
        What to plot.
    ax : Axes, optional
        Where to plot.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> picked = rg.select(load_digits().data, 16, center=True, bound=True)
    >>> plots.loss(picked).get_xlabel()
    'columns picked'
    """
    return drawn(ax, "figures.draw_loss", result_of(answer))


def picks(
    answer: Any,
    ax: Axes | None = None,
    *,
    image_shape: tuple[int, int] | None = None,
    grid: Any = None,
    x: ArrayLike | None = None,
) -> Axes:
    """Plot where the picked columns lie, numbered in the order they were picked, on the mean of all columns.

    Parameters
    ----------
    answer : Selection, Refinement, CrossValidation, Result or fitted estimator
        What to plot.
    ax : Axes, optional
        Where to plot.
    image_shape : pair of int, optional
        Height and width of the image whose pixels, row by row, are the columns.
    grid : pair or mapping of arrays, optional
        Coordinates of the columns on a map, see `rgcss_dask.write_report`.
    x : array of shape (n,), optional
        Position of each column on an axis, such as its wavelength. By default the index of the column.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> picked = rg.select(load_digits().data, 16, center=True)
    >>> image = plots.picks(picked, image_shape=(8, 8))
    >>> spectrum = plots.picks(picked)
    >>> len(spectrum.texts)
    16
    """
    result = result_of(answer)
    layout = layout_of(result, image_shape, grid)
    if layout is not None and x is not None:
        raise ValueError("columns lie on one axis or in a plane: give either x, or image_shape or grid.")
    if layout is not None:
        return drawn(ax, "maps.draw_places", layout, result.mean, result.selection.columns)
    places = np.arange(result.n, dtype=np.float64) if x is None else plain(x).astype(np.float64)
    if places.shape != (result.n,):
        raise ValueError(f"x must have one position for each of the {result.n} columns; got shape {places.shape}.")
    axes = axes_of(ax)
    order = np.argsort(places, kind="stable")
    axes.plot(places[order], result.mean[order], color=SECOND, linewidth=1.6)
    for place, column in enumerate(result.selection.columns, start=1):
        at = (float(places[column]), float(result.mean[column]))
        axes.plot(*at, "o", color=ACCENT, markersize=5)
        axes.annotate(str(place), at, (0, 5), textcoords="offset points", ha="center", color=ACCENT)
    axes.set(xlabel="column" if x is None else "", ylabel="mean of the column")
    return axes


def cross_validation(tuned: Any, ax: Axes | None = None, *, against: str = "both") -> Axes:
    """Plot the loss on held-out rows, and mark the chosen lambda and number of columns.

    Parameters
    ----------
    tuned : CrossValidation or Result
        A cross-validation, or a result of one.
    ax : Axes, optional
        Where to plot.
    against : {"both", "lambda", "columns"}, default="both"
        Plot colours over lambda and the number of columns, or curves with standard errors over one of them.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> tuned = rg.cross_validate(rg.scan(load_digits().data, folds=3), 8, center=True)
    >>> plots.cross_validation(tuned).get_xlabel()
    'columns picked'
    """
    if against not in AGAINST:
        raise ValueError(f"against must be one of {', '.join(AGAINST)}; got {against!r}.")
    tuning = tuned.tuning if isinstance(tuned, Result) else getattr(tuned, "summary", None)
    if not isinstance(tuning, Tuning):
        raise ValueError(f"held-out losses exist only in what cross_validate returns; got {type(tuned).__name__}.")
    return drawn(ax, AGAINST[against], tuning)


def stability(trust: Stability, answer: Any = None, ax: Axes | None = None) -> Axes:
    """Plot how often each picked column was picked again on resampled rows; the dotted line is the share by chance.

    Parameters
    ----------
    trust : Stability
        What `rgcss_dask.stability` returned.
    answer : Selection, Refinement, CrossValidation, Result or fitted estimator, optional
        The picks; the bars are in their order. By default the k columns that were picked most often.
    ax : Axes, optional
        Where to plot.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> moments = rg.scan(load_digits().data, groups=20)
    >>> trust = rg.stability(moments, 8, center=True, resamples=20)
    >>> plots.stability(trust, rg.select(moments, 8, center=True)).get_xlabel()
    'picked columns, in order'
    """
    if answer is None:
        columns = np.argsort(-trust.frequency, kind="stable")[: trust.k]
    else:
        columns = np.asarray(_selected(answer).columns)
    return drawn(ax, "figures.draw_frequency", trust.frequency[columns], trust.k / len(trust.frequency))


def redundancy(answer: Any, ax: Axes | None = None) -> Axes:
    """Plot a histogram of how well the columns that were not picked are explained.

    Parameters
    ----------
    answer : Selection, Refinement, CrossValidation, Result or fitted estimator
        What to plot.
    ax : Axes, optional
        Where to plot.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> picked = rg.select(load_digits().data, 16, center=True)
    >>> plots.redundancy(picked).get_xlabel()
    'of the column explained'
    """
    found = redundancy_of(result_of(answer))
    return drawn(ax, "figures.draw_shares", found.share[found.unpicked])


def cell_types(panel: GenePanel, ax: Axes | None = None) -> Axes:
    """Plot which picked gene is high in which cell type: means, each gene as a share of its highest.

    Genes stand by the type in which they are highest, within it in pick order.

    Parameters
    ----------
    panel : GenePanel
        Genes that were picked with ``cell_types``.
    ax : Axes, optional
        Where to plot.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import anndata
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> rng = np.random.default_rng(0)
    >>> kinds = np.repeat(["B", "NK", "T"], [80, 60, 60])
    >>> level = {kind: rng.gamma(1.0, 1.0, 30) for kind in ("B", "NK", "T")}
    >>> cells = anndata.AnnData(np.log1p(rng.poisson([level[kind] for kind in kinds])))
    >>> panel = rg.gene_panel(cells, 6, kinds, highly_variable=False)
    >>> [label.get_text() for label in plots.cell_types(panel).get_yticklabels()]
    ['B', 'NK', 'T']
    """
    if not panel.types:
        raise ValueError(
            "this plot is of genes that were picked with cell_types; give them, with share=0 if the picks are to stay "
            "as they are."
        )
    highest = panel.means.argmax(axis=0)
    order = np.argsort(highest, kind="stable")
    tops = np.maximum(panel.means.max(axis=0), 1e-300)
    names = panel.names or ()
    return drawn(ax, "figures.draw_means", (panel.means / tops)[:, order], [names[j] for j in order], panel.types)


def bands(answer: Any, ax: Axes | None = None) -> Axes:
    """Plot the picked bands of an image cube, numbered in the order of picking, on the mean spectrum.

    The band around the spectrum is twice the standard deviation of the noise, if it is known.

    Parameters
    ----------
    answer : Bands
        The result of `rgcss_dask.bands`.
    ax : Axes, optional
        Where to plot.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> rng = np.random.default_rng(0)
    >>> cube = np.cumsum(rng.normal(size=(20, 30, 3)), axis=1) @ rng.normal(size=(3, 12))
    >>> picked = rg.bands(cube + rng.normal(size=(20, 30, 12)), 3)
    >>> len(plots.bands(picked).texts)
    3
    """
    axes = axes_of(ax)
    x = np.arange(len(answer.mean)) if answer.at is None else answer.at
    order = np.argsort(x, kind="stable")
    axes.plot(x[order], answer.mean[order], color=SECOND, linewidth=1.6, label="mean of the pixels")
    if answer.noise is not None:
        ends = (answer.mean + sign * 2.0 * answer.noise for sign in (-1.0, 1.0))
        low, high = (end[order] for end in ends)
        axes.fill_between(x[order], low, high, color=SECOND, alpha=0.25, linewidth=0, label="twice the noise")
    for place, column in enumerate(answer.columns, start=1):
        at = (float(x[column]), float(answer.mean[column]))
        axes.axvline(at[0], color=ACCENT, linewidth=0.8, alpha=0.6)
        axes.plot(*at, "o", color=ACCENT, markersize=5)
        axes.annotate(str(place), at, (0, 5), textcoords="offset points", ha="center", color=ACCENT)
    axes.set(xlabel="band" if answer.at is None else str(answer.names[0]).split("=")[0], ylabel="value")
    axes.legend()
    return axes


def error_left(error: Any, places: Any, ax: Axes | None = None) -> Axes:
    """Plot the error that is left at each place of a map, and the sensors, numbered in the order of picking.

    Parameters
    ----------
    error : DataArray
        A map over two dimensions, such as ``error`` of `Sensors` or a root mean square error of your own.
    places : DataArray
        Where the sensors stand: ``places`` of `Sensors`, or ``places_`` of an estimator. Stations that were there
        before are drawn as squares.
    ax : Axes, optional
        Where to plot.

    Returns
    -------
    Axes
        The axes.

    Examples
    --------
    >>> import numpy as np
    >>> import xarray as xr
    >>> import rgcss_dask as rg
    >>> from rgcss_dask import plots
    >>> values = np.random.default_rng(0).normal(size=(60, 4, 5)).cumsum(axis=2)
    >>> field = xr.DataArray(values, {"lat": range(4), "lon": range(5)}, ("time", "lat", "lon"))
    >>> placed = rg.sensors(field, 3)
    >>> plots.error_left(placed.error, placed.places).get_ylabel()
    'lat'
    """
    if getattr(error, "ndim", 0) != 2 or not hasattr(error, "dims"):
        raise ValueError(f"a map is a DataArray over two dimensions; got {getattr(error, 'dims', type(error))}.")
    axes = axes_of(ax)
    down, across = error.dims
    # Without a fixed norm a map of zeros would have no colours.
    shown = error.plot.pcolormesh(x=across, y=down, ax=axes, cmap="viridis", add_colorbar=False, vmin=0.0)
    axes.figure.colorbar(shown, ax=axes, label="error of what is rebuilt")
    before = places["kept"].to_numpy() if "kept" in places.coords else np.zeros(places.size, dtype=bool)
    x, y = (places[dim].to_numpy() for dim in (across, down))
    for mask, marker in ((before, "s"), (~before, "o")):
        axes.scatter(x[mask], y[mask], s=110, c="white", edgecolors="black", marker=marker, zorder=2)
    for place, at in enumerate(zip(x, y, strict=True), start=1):
        axes.annotate(str(place), at, ha="center", va="center", fontsize=7, zorder=3)
    axes.set(xlabel=str(across), ylabel=str(down), title="")
    return axes


def _selected(answer: Any) -> Answer:
    """Return picks as they are, without the bounds and weights of a result."""
    given = getattr(answer, "selection_", answer)
    return given if isinstance(given, Answer) else result_of(given).selection
