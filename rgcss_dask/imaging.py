"""Band selection for image cubes: a few bands that explain the signal in all bands, or separate the pixel classes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.answering import answered, improved
from rgcss_dask.cluster.progress import Callback
from rgcss_dask.core.aims import Aims
from rgcss_dask.core.answer import AboutSelection
from rgcss_dask.core.input_checks import NotFiniteError
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.places import coordinates
from rgcss_dask.core.problem import Columns, Problem
from rgcss_dask.core.selection import Selection
from rgcss_dask.core.words import counted, percent
from rgcss_dask.estimator.supervised import carrying_y
from rgcss_dask.origin import PickedFrom
from rgcss_dask.scanning.scan import scan
from rgcss_dask.sources.beside import Targets, with_targets
from rgcss_dask.sources.cube import in_turns, pixel_at, pixels, placed_as

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Bands(AboutSelection):
    """Picked bands of an image cube, with the mean spectrum and the noise.

    Made by `bands`. Its columns, names, losses and table of picks are those of its selection.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rng = np.random.default_rng(0)
    >>> scene = np.cumsum(rng.normal(size=(20, 30, 3)), axis=1)
    >>> cube = scene @ rng.normal(size=(3, 12)) + rng.normal(size=(20, 30, 12)) * np.linspace(0.1, 1, 12)
    >>> picked = rg.bands(cube, 3)
    >>> len(picked), picked.mean.shape, picked.noise.shape
    (3, (12,), (12,))
    """

    selection: Selection
    mean: Array  #: (n,) the mean spectrum of the pixels that were read
    noise: Array | None  #: (n,) standard deviation of the noise in each band, if estimated or given
    at: Array | None  #: (n,) coordinate of each band, such as its wavelength, if a DataArray has one
    carried: str  #: what the explained shares refer to, in words

    @property
    def sentence(self) -> str:
        """Summarise the picked bands in one sentence."""
        share = percent(self.explained[-1]) if len(self) else "nothing"
        verb = "carries" if len(self) == 1 else "carry"
        return f"{len(self)} of {counted(len(self.mean), 'band')} {verb} {share} of {self.carried}."


def bands(
    cube: Any,
    k: int,
    *,
    noise: str | ArrayLike | None = "neighbours",
    labels: Any = None,
    share: float = 1.0,
    unlabelled: int = 0,
    lam: float = 1.0,
    include: Columns = (),
    exclude: Columns = (),
    refine: bool = False,
    effort: int = 0,
    dim: str | None = None,
    nan: str = "raise",
    progress: bool | Callback | None = None,
) -> Bands:
    """Pick the bands of an image cube that explain the signal in all bands, or its pixel classes, best.

    Without ``noise`` and ``labels`` the noisiest bands tend to be picked, because other bands cannot explain their
    noise. With noise variances the targets are the signals of the bands, without their noise, and the error of each
    band is divided by its noise. The cube is read once; with both noise estimation and labels, twice.

    Parameters
    ----------
    cube : array of shape (lines, columns, bands), path of a Zarr array, or DataArray
        A NumPy, Dask, Zarr or Xarray array; larger than memory if it is stored or in Dask blocks.
    k : int
        Number of bands.
    noise : {"neighbours"}, array of shape (bands,) or None, default="neighbours"
        Noise variances; ``"neighbours"`` estimates them from second differences of pixels along the lines, where a
        scene changes evenly and noise does not.
    labels : array of int of shape (lines, columns), optional
        A class for each pixel; a DataArray with dimensions of the cube may have them in either order. The picked bands
        then separate the classes, which all count alike. Only labelled pixels are used; to classify other pixels
        later, give the labels of the training pixels only.
    share : float, default=1.0
        With labels: share of the labels in the loss, above 0; the signals make up the rest. With 1, noise is not
        estimated.
    unlabelled : int, default=0
        The label that marks pixels without a class.
    lam : float, default=1.0
        Lambda, see `select`.
    include : sequence of int or str, optional
        Bands to pick first, by index, or by name for a DataArray, such as ``"band=700"``.
    exclude : sequence of int or str, optional
        Bands that must not be picked, such as those where water absorbs.
    refine : bool, default=False
        Whether to swap picked bands for others as long as that lowers the loss.
    effort : int, default=0
        Number of additional searches for better swaps, see `refine`.
    dim : str, optional
        The band dimension of a DataArray; by default the one called band, bands, wavelength or wavelengths, else the
        last one.
    nan : {"raise", "drop"}, default="raise"
        Policy for pixels with a gap in a band: raise an error that names the pixel, or leave them out.
    progress : bool or callable, optional
        Whether to show a progress bar while the cube is read, see `scan`.

    Returns
    -------
    Bands
        The picks and what they explain, the mean spectrum, and the noise.

    See Also
    --------
    rgcss_dask.plots.bands : the picked bands on the mean spectrum.

    Examples
    --------
    >>> import numpy as np
    >>> import rgcss_dask as rg
    >>> rng = np.random.default_rng(0)
    >>> scene = np.cumsum(rng.normal(size=(20, 30, 3)), axis=1)
    >>> cube = scene @ rng.normal(size=(3, 12)) + rng.normal(size=(20, 30, 12)) * np.linspace(0.1, 5, 12)
    >>> rg.bands(cube, 3).columns.max() < rg.bands(cube, 3, noise=None).columns.max()
    np.True_
    >>> labels = 1 + (scene[:, :, 0] > 0)
    >>> rg.bands(cube, 2, labels=labels).names is None
    True
    """
    rows, shape = pixels(cube, dim)
    if nan not in ("raise", "drop"):
        raise ValueError(f"nan must be 'raise' or 'drop'; got {nan!r}.")
    if labels is None and share != 1.0:
        raise ValueError("share is the share of the labels in the loss: give labels as well.")
    shown: dict[str, Any] = {"nan": nan, "progress": progress}
    asked = Problem(lam=lam, include=include, exclude=exclude, center=True)
    targets = None if labels is None else _targets(placed_as(cube, labels), shape, unlabelled)
    alone = targets is not None and share == 1.0
    looks = isinstance(noise, str) and not alone
    variance = None if alone else _given(noise, rows.shape[1])
    with _naming_pixels(shape[1]):
        if targets is None or looks:
            moments = scan(rows, noise=looks, **shown)
            variance = _found(moments) if looks else variance
        if targets is not None:
            moments = scan(with_targets(rows, targets), rows=targets.values != unlabelled, **shown)
            _check_classes(moments, targets)
    problem = _with_noise(asked, moments, variance)
    if targets is not None:
        problem = carrying_y(problem, moments, targets, share)
    (picked,) = answered(moments, k, problem)
    if refine or effort:
        picked = improved(picked, moments, effort=effort).selection
    carried = _words(variance, targets, share)
    spectrum = (moments.mean[: rows.shape[1]], None if variance is None else np.sqrt(variance), _at(rows.names))
    return Bands(picked, *spectrum, carried).known(PickedFrom.of(moments, {"address": rows.address}))


@contextmanager
def _naming_pixels(width: int) -> Iterator[None]:
    """Name the pixel of a value that is not finite by its line and column."""
    try:
        yield
    except NotFiniteError as error:
        line, place = pixel_at(error.row, width)
        band = error.column if error.name is None else f"{error.column} ({error.name})"
        raise ValueError(
            f"values must be finite; the pixel in line {line} and column {place} has {error.value} in band {band}. Use "
            "nan='drop' to leave out such pixels, or take the band out of the cube."
        ) from None


def _at(names: tuple[str, ...] | None) -> Array | None:
    """Return the coordinates of the bands, if their names contain them."""
    return next(iter(coordinates(names).values()), None)


def _words(variance: Array | None, targets: Targets | None, share: float) -> str:
    """Describe the targets in words."""
    own = "the variation of all bands" if variance is None else "the signal in all bands, in units of their noise"
    if targets is None:
        return own
    classes = f"what tells {len(targets.names):,} classes apart"
    return classes if share == 1.0 else f"{classes} (which counts {percent(share)}) and of {own}"


def _given(noise: str | ArrayLike | None, count: int) -> Array | None:
    """Return the given noise variances, one for each band."""
    if noise is None or isinstance(noise, str):
        if noise not in (None, "neighbours"):
            raise ValueError(f"noise must be 'neighbours', variances or None; got {noise!r}.")
        return None
    values = np.asarray(noise, dtype=np.float64)
    if values.shape != (count,) or not np.all(np.isfinite(values)) or np.any(values < 0):
        raise ValueError(f"noise must be {count} variances, 0 or more, one for each band; got {noise!r}.")
    return values


def _found(moments: Moments) -> Array:
    """Return the noise variances estimated from neighbouring rows, each at most the variance of its band."""
    assert moments.differences is not None  # the pass was run with noise=True
    return np.minimum(moments.differences.variance, moments.spread**2)


def _with_noise(problem: Problem, moments: Moments, variance: Array | None) -> Problem:
    """Return the problem with signals as targets and errors divided by the noise; constant bands get weight 0."""
    if variance is None:
        return problem
    spread = moments.spread[: len(variance)]
    varies = spread > 0.0
    silent = varies & (variance == 0.0)
    if silent.any():
        raise ValueError(
            f"noise must be above 0 in every band that varies, because errors count in units of it; band "
            f"{int(np.argmax(silent))} has none. Give variances, or noise=None to count all bands as they are."
        )
    counts = np.divide(1.0, variance, out=np.zeros_like(variance), where=varies)
    aims = Aims(noise=np.minimum(variance, spread**2), column_weights=counts)
    return replace(problem, aims=aims)


def _targets(labels: Any, shape: tuple[int, int], unlabelled: int) -> Targets:
    """Return the classes of the pixels, in the order of the rows; unlabelled pixels are in no class."""
    values = np.asarray(labels)
    if values.shape != shape:
        raise ValueError(f"labels must have one entry for each of {shape[0]} x {shape[1]} pixels; got {values.shape}.")
    if values.dtype.kind not in "biu":
        raise ValueError(f"labels must be whole numbers, {unlabelled} for pixels without one; got {values.dtype}.")
    classes, counts = np.unique(values[values != unlabelled], return_counts=True)
    if len(classes) < 2:
        raise ValueError(f"labels must be of two classes or more; got {len(classes)} besides {unlabelled} for none.")
    if counts.min() < 2:
        alone = classes[int(np.argmin(counts))]
        raise ValueError(f"each class must have two pixels or more; {alone} has one. Leave it unlabelled.")
    return Targets(in_turns(values), classes, tuple(f"class={label}" for label in classes))


def _check_classes(moments: Moments, targets: Targets) -> None:
    """Refuse classes whose pixels all have gaps."""
    there = moments.mean[-len(targets.names) :] > 0.0
    if not there.all():
        gone = targets.names[int(np.argmin(there))]
        raise ValueError(f"each class must have pixels without gaps; {gone} has none. Leave it unlabelled.")
