"""What the figures say: where ours is first, tied or behind, and which targets are met; computed, never typed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from examples.benchmarks.contenders import GREEDY, REFINED, TUNED
from examples.benchmarks.measure import Spread, figure, ratios, spread
from examples.benchmarks.passes import COVARIANCE, INCREMENTAL, OURS, PCA, PRODUCT

Row = Mapping[str, Any]

TIED = 0.01  # of what is left unexplained
PARTS = {"train": "on the rows used", "held_out": "on held-out rows"}
# How many times as long as ours another pass should take, at least; see CONTRIBUTING.md on speed.
TARGETS = {
    ("uint8", PRODUCT): 1.5,
    ("float64", PRODUCT): 1.0,
    **{(dtype, name): 3.0 for dtype in ("uint8", "float64") for name in (COVARIANCE, PCA, INCREMENTAL)},
}


@dataclass(frozen=True)
class Standing:
    """One of ours against the best of the others, on one data set at one k."""

    data: str
    k: int
    place: str  # "first", "tied" or "behind"
    explained: float
    best: str  # of the others
    best_explained: float


def standings(results: Sequence[Row], name: str, part: str) -> list[Standing]:
    """Return where one of ours stands in each case; ``part`` is a key of `PARTS`."""
    found = []
    for case in dict.fromkeys((row["data"], row["k"]) for row in results):
        shares = {row["contender"]: row[part] for row in results if (row["data"], row["k"]) == case}
        if name in shares:
            others = {other: share for other, share in shares.items() if other not in (GREEDY, TUNED, REFINED)}
            best = max(others, key=others.__getitem__)
            place = compare(1.0 - shares[name], 1.0 - others[best])
            found.append(Standing(*case, place, shares[name], best, others[best]))
    return found


def compare(ours: float, other: float) -> str:
    """Say which leaves less unexplained, by more than `TIED` of the smaller of the two."""
    if abs(ours - other) <= TIED * min(ours, other):
        return "tied"
    return "first" if ours < other else "behind"


def selection_statements(results: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each of ours and each part, then one for each case in which the best of ours is behind."""
    for name in (REFINED, TUNED, GREEDY):
        for part, where in PARTS.items():
            found = standings(results, name, part)
            if found:
                yield f"{name}, {where}: {tally([one.place for one in found], 'first')}."
    for part, where in PARTS.items():
        for one in standings(results, REFINED, part):
            if one.place == "behind":
                yield (
                    f"Behind {where}, {one.data}, k = {one.k}: {one.best} explains {one.best_explained:.2%}, "
                    f"{REFINED} {one.explained:.2%}."
                )


def tally(places: Sequence[str], best: str) -> str:
    """Count the places."""
    counts = [f"{word} in {places.count(word)}" for word in (best, "tied", "behind")]
    return f"{', '.join(counts)} of {len(places)} cases"


def against_ours(results: Sequence[Row], dtype: str) -> dict[str, Spread]:
    """Return how many times as long as our pass each other one took."""
    rows = {row["contender"]: row["seconds"] for row in results if row["dtype"] == dtype}
    return {name: spread(ratios(taken, rows[OURS])) for name, taken in rows.items() if name != OURS}


def pass_place(taken: Spread) -> str:
    """Say whether ours is ahead: in the middle half of the rounds, not only in the middle."""
    if taken.low > 1.0:
        return "ahead"
    return "behind" if taken.high < 1.0 else "tied"


def pass_statements(results: Sequence[Row]) -> Iterator[str]:
    """Yield a sentence for each dtype, one for each pass that ours is not ahead of, and one for each target."""
    for dtype in dict.fromkeys(row["dtype"] for row in results):
        others = against_ours(results, dtype)
        places = {name: pass_place(taken) for name, taken in others.items()}
        yield f"{dtype}: our pass is {tally(list(places.values()), 'ahead')}."
        for name, taken in others.items():
            if places[name] != "ahead":
                yield f"{dtype}: not ahead of {name}, which takes {taken} times as long as ours."
    for (dtype, name), least in TARGETS.items():
        taken = against_ours(results, dtype).get(name) if any(row["dtype"] == dtype for row in results) else None
        if taken is not None:
            met = "met" if taken.middle >= least else "not met"
            yield f"{dtype}: {name} to take {figure(least)} times as long as ours or more: {met}, {taken}."
