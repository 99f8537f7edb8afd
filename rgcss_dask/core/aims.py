"""What the picks must explain, and which columns may be picked: weights, targets, noise, groups, costs, limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any, TypedDict

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.input_checks import is_whole
from rgcss_dask.core.names import column_indices
from rgcss_dask.core.places import far_enough, latitude_weights, places_of
from rgcss_dask.core.words import counted

Array = NDArray[np.float64]
Index = NDArray[np.intp]
Columns = Sequence[int] | Sequence[str] | NDArray[Any]
PerColumn = ArrayLike | Mapping[str, float]


class Asked(TypedDict, total=False):
    """The options of `Aims`, as keyword arguments of the functions that ask."""

    column_weights: PerColumn | str | None
    targets: Columns | str
    target_share: float
    candidates: Columns | str | None
    penalties: PerColumn | None
    noise: PerColumn | str | None
    column_groups: Sequence[Columns] | Mapping[str, Columns]
    costs: PerColumn | None
    budget: float | None
    limits: Sequence[tuple[Columns | str, int]]
    distance: float | None
    places: ArrayLike | None


@dataclass(frozen=True, eq=False)
class Aims:
    """What the picks must explain, and which columns may be picked; by default all columns, and any column.

    Column names may be patterns such as ``"band_*"``. Values per column are n numbers, or a mapping from some names to
    numbers.

    Parameters
    ----------
    column_weights : array of shape (n,), mapping or ``"latitude"``
        Weight of the squared error of each column, 0 or more; 1 for columns that a mapping does not name.
        ``"latitude"`` is the cosine of the latitude of columns with coordinates.
    targets : columns
        Columns that the others must explain; targets are never picked.
    target_share : float, default=1.0
        Share of the targets in the loss before the first pick, above 0; the other columns make up the rest.
    candidates : columns
        The only columns that may be picked; by default all columns except targets.
    penalties : array of shape (n,) or mapping
        Factors on lambda for each column, 0 or more: larger for columns that are known to be noisy.
    noise : array of shape (n,), mapping or ``"rows"``
        The noise variance of each column, in the squared units of the data. The picks then explain the signal behind
        the columns, also of the picked columns, which are known only with noise. ``"rows"`` uses the estimate of
        ``scan(source, noise=True)`` from differences of neighbouring rows.
    column_groups : sequence of columns, or mapping from names to columns
        Columns that are picked together or not at all. ``k`` counts columns.
    costs : array of shape (n,) or mapping
        Cost of each column, above 0. Columns are picked by gain per cost, and also by gain alone; the selection with
        the lower loss is returned.
    budget : float
        Limit on the total cost of the picks; each costs 1 without ``costs``.
    limits : sequence of (columns, number)
        Pick at most this number of these columns.
    distance : float
        Minimum distance between picked columns: in km for columns with latitude and longitude, else in the units of
        their coordinates. Columns in ``include`` may lie nearer to each other.
    places : array of shape (n, dimensions)
        Coordinates of the columns, for ``distance``; known for columns of a DataArray.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> wine = load_wine(as_frame=True).data
    >>> picked = rg.select(wine, 3, center=True, scale="std", targets=["alcohol", "proline"])
    >>> print(picked.sentence)
    3 of 13 columns keep 47.0 % of the variation of 2 targets, with lambda = 1.
    >>> rg.select(wine, center=True, scale="std", costs={"flavanoids": 5.0}, budget=3).names
    ('total_phenols', 'color_intensity', 'alcalinity_of_ash')
    """

    # As given, see `Asked`, or as arrays and indices after `by_index`.
    column_weights: Any = None
    targets: Any = ()
    target_share: float | None = 1.0  # None: included in the weights
    candidates: Any = None
    penalties: Any = None
    noise: Any = None
    column_groups: Any = ()
    costs: Any = None
    budget: float | None = None
    limits: Any = ()
    distance: float | None = None
    places: Any = None

    def __post_init__(self) -> None:
        if self.target_share is not None and (not _is_number(self.target_share) or not 0 < self.target_share <= 1):
            raise ValueError(f"target_share must be above 0 and at most 1; got {self.target_share!r}.")
        if self.target_share not in (None, 1) and len(self.targets) == 0:
            raise ValueError("target_share needs targets, of which it is the share in the loss; none were given.")
        for name in ("budget", "distance"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and value > 0):
                raise ValueError(f"{name} must be a number above 0; got {value!r}.")
        if self.places is not None and self.distance is None:
            raise ValueError("places need distance, the minimum distance between picks; it was not given.")

    def by_index(self, n: int, names: tuple[str, ...] | None) -> Aims:
        """Return the aims for n columns of these names, checked, as arrays and indices."""
        weights = self.column_weights
        if isinstance(weights, str):
            if weights != "latitude":
                raise ValueError(f"column_weights must be numbers, a mapping or 'latitude'; got {weights!r}.")
            weights = latitude_weights(names)
        weights = _values(weights, n, names, "column_weights", default=1.0)
        if weights is not None and not weights.any():
            raise ValueError("column_weights must be above 0 for some column; all are 0.")
        noise = self.noise
        if isinstance(noise, str) and noise != "rows":
            raise ValueError(f"noise must be variances, a mapping or 'rows'; got {noise!r}.")
        places, distance = self._places(n, names)
        return replace(
            self,
            column_weights=weights,
            targets=chosen(self.targets, n, names) if len(self.targets) else (),
            candidates=None if self.candidates is None else chosen(self.candidates, n, names),
            penalties=_values(self.penalties, n, names, "penalties", default=1.0),
            noise=noise if isinstance(noise, str) else _values(noise, n, names, "noise", default=0.0),
            column_groups=_groups(self.column_groups, n, names),
            costs=_values(self.costs, n, names, "costs", default=1.0, positive=True),
            limits=tuple((chosen(columns, n, names), _limit(most)) for columns, most in self.limits),
            distance=distance,
            places=places,
        )

    def weighted(self, diagonal: Array) -> Aims:
        """Return the aims with the share of the targets in the weights, given the squared norms of all columns."""
        share = self.target_share
        if len(self.targets) == 0 or share is None:
            return self
        is_target = np.zeros(len(diagonal), dtype=bool)
        is_target[np.asarray(self.targets, dtype=np.intp)] = True
        w = np.ones(len(diagonal)) if self.column_weights is None else np.array(self.column_weights)
        if not w[is_target].any():
            raise ValueError("column_weights must be above 0 for some target; all are 0.")
        others = float(w[~is_target] @ diagonal[~is_target])
        wanted = float(w[is_target] @ diagonal[is_target])
        w[is_target] *= share
        w[~is_target] *= (1.0 - share) * wanted / others if others > 0 else 0.0
        return replace(self, column_weights=w, target_share=None, candidates=self._without_targets(len(w)))

    def extended(self, n: int) -> Aims:
        """Return the aims for n columns followed by their n signals; only the signals count."""
        if self.noise is None:
            return self
        both = {name: getattr(self, name) for name in ("penalties", "costs")}
        twice: Any = {name: None if values is None else np.tile(values, 2) for name, values in both.items()}
        w = np.ones(n) if self.column_weights is None else np.asarray(self.column_weights)
        return replace(
            self,
            column_weights=np.concatenate([np.zeros(n), w]),
            candidates=np.arange(n) if self.candidates is None else self.candidates,
            noise=None,
            places=None if self.places is None else np.tile(self.places, (2, 1)),
            **twice,
        )

    def columns_with_signals(self, n: int) -> int:
        """Return the number of columns, including signals if there is noise."""
        return n if self.noise is None else 2 * n

    def lams(self, lam: float, n: int) -> Array:
        """Return lambda of each column, (n,)."""
        return lam * (np.ones(n) if self.penalties is None else np.asarray(self.penalties, dtype=np.float64))

    def bounding(self, lam: float) -> float:
        """Return the lambda to use in bounds: 0 if it differs between columns, because then no bound is known."""
        return lam if self.penalties is None else 0.0

    def cost(self, columns: ArrayLike) -> float:
        """Return the total cost of columns."""
        index = np.asarray(columns, dtype=np.intp)
        return float(len(index) if self.costs is None else np.asarray(self.costs)[index].sum())

    def allowed(self, picked: Index, candidates: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Return the candidates that the constraints allow in addition to the picks, (n,)."""
        mask = candidates.copy()
        mask[picked] = False
        for columns, most in self.limits:
            if np.isin(picked, columns).sum() >= most:
                mask[np.asarray(columns, dtype=np.intp)] = False
        if self.places is not None and self.distance is not None and len(picked):
            mask &= far_enough(np.asarray(self.places), picked, self.distance)
        if self.budget is not None:
            each = np.ones(len(mask)) if self.costs is None else np.asarray(self.costs)
            mask &= each <= (self.budget - self.cost(picked)) * (1.0 + 1e-12)
        return mask

    def may_be_picked(self, n: int) -> NDArray[np.bool_]:
        """Return which of n columns may be picked, (n,); the aims must be by index."""
        mask = np.zeros(n, dtype=bool)
        mask[slice(None) if self.candidates is None else np.asarray(self.candidates)] = True
        if self.target_share is not None:  # otherwise the targets are excluded already
            mask[np.asarray(self.targets, dtype=np.intp)] = False
        return mask

    def words_for(self, measure: str) -> str:
        """Describe what the losses are shares of, given the words for columns that count alike."""
        if self.column_weights is None:
            return measure
        weights = np.array(self.column_weights, dtype=np.float64)
        targets = np.asarray(self.targets, dtype=np.intp)
        own = weights[targets]
        weights[targets] = 0.0
        if len(targets) and not weights.any():
            return f"{'' if np.all(own == own[0]) else 'weighted '}{measure} of {counted(len(targets), 'target')}"
        return f"weighted {measure}"

    @property
    def suit_rows(self) -> bool:
        """Whether rows without their Gram suffice if they are fewer than columns."""
        return self.noise is None and len(self.column_groups) == 0

    @property
    def said(self) -> dict[str, Any]:
        """The given options in a few words, for results."""
        found = {name: getattr(self, name) for name in type(self).__dataclass_fields__}
        plain = {name: value for name, value in found.items() if isinstance(value, str | int | float)}
        others = {name for name, value in found.items() if name not in plain and value is not None and len(value)}
        if not others and plain == {"target_share": 1.0}:
            return {}
        return plain | dict.fromkeys(sorted(others), "given")

    @property
    def constrains(self) -> bool:
        """Whether the allowed columns depend on the picks."""
        return bool(self.limits) or self.distance is not None or self.budget is not None

    @property
    def constraints(self) -> str:
        """The constraints, in words."""
        words = {"limits": bool(self.limits), "distance": self.distance is not None, "budget": self.budget is not None}
        return " and ".join(name for name, there in words.items() if there)

    def _without_targets(self, n: int) -> Index:
        left = np.flatnonzero(self.may_be_picked(n))
        if len(left) == 0:
            raise ValueError(
                "some column must be a candidate, not a target; none is left. Name fewer targets, or more candidates."
            )
        return left

    def _places(self, n: int, names: tuple[str, ...] | None) -> tuple[Array | None, float | None]:
        if self.distance is None:
            return None, None
        if self.places is None:
            return places_of(names, self.distance)
        places = np.asarray(self.places, dtype=np.float64)
        places = places[:, None] if places.ndim == 1 else places
        if places.ndim != 2 or len(places) != n or not np.all(np.isfinite(places)):
            raise ValueError(f"places must have finite coordinates for each of {n} columns; got shape {places.shape}.")
        return places, self.distance


def chosen(columns: Columns | str, n: int, names: tuple[str, ...] | None) -> Index:
    """Return the indices of columns given by index, name or pattern, each once."""
    found: list[Any] = []
    for column in [columns] if isinstance(columns, str) else columns:
        if isinstance(column, str) and column not in (names or ()) and any(sign in column for sign in "*?["):
            matching = [i for i, name in enumerate(names or ()) if fnmatchcase(name, column)]
            if not matching:
                raise ValueError(f"no column has a name like {column!r}.")
            found += [i for i in matching if i not in found]
        else:
            found.append(column)
    return column_indices(found, n, names)


def _values(
    given: Any, n: int, names: tuple[str, ...] | None, what: str, *, default: float, positive: bool = False
) -> Array | None:
    """Return a number for each column, or None if none were given."""
    if given is None:
        return None
    if isinstance(given, Mapping):
        values = np.full(n, default)
        for column, value in given.items():
            values[chosen([column], n, names)] = value
    else:
        values = np.array(given, dtype=np.float64)
    if values.shape != (n,):
        raise ValueError(f"{what} must have one number for each of {n} columns; got shape {values.shape}.")
    wrong = ~np.isfinite(values) | ((values <= 0) if positive else (values < 0))
    if wrong.any():
        i = int(np.argmax(wrong))
        least = "above 0" if positive else "0 or more"
        label = f"column {i}" if names is None else f"column {names[i]!r}"
        raise ValueError(f"{what} must be finite and {least}; {label} has {values[i]:g}.")
    return values


def _groups(
    given: Sequence[Columns] | Mapping[str, Columns], n: int, names: tuple[str, ...] | None
) -> tuple[Index, ...]:
    """Return the columns of each group; refuse overlapping groups."""
    groups = tuple(chosen(columns, n, names) for columns in _each(given))
    members: list[int] = [int(i) for group in groups for i in group]
    if len(set(members)) < len(members):
        twice = next(i for i in members if members.count(i) > 1)
        label = f"column {twice}" if names is None else f"column {names[twice]!r}"
        raise ValueError(f"column_groups must not overlap; {label} is in more than one.")
    if any(len(group) == 0 for group in groups):
        raise ValueError("each of column_groups must have at least one column; one has none.")
    return groups


def _each(given: Sequence[Columns] | Mapping[str, Columns]) -> Iterable[Columns]:
    return given.values() if isinstance(given, Mapping) else given


def _limit(most: Any) -> int:
    if not is_whole(most) or most < 1:
        raise ValueError(
            f"a limit must be a whole number of columns, 1 or more; got {most!r}. To forbid columns use exclude."
        )
    return int(most)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and bool(np.isfinite(value))
