"""The smallest sufficient number of columns, by one of three rules."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.selection import Selection
from rgcss_dask.core.tuning import CrossValidation

Array = NDArray[np.float64]


def choose_k(
    result: Selection | CrossValidation,
    *,
    bound: float | None = None,
    heldout: float | None = None,
    explained: float | None = None,
) -> int:
    """Return the smallest number of columns that satisfies one rule.

    Parameters
    ----------
    result : Selection or CrossValidation
        A selection made with ``bound=True`` for ``bound``, a cross-validation for ``heldout``, either for
        ``explained``.
    bound : float, optional
        The loss is at most this factor (1 or more) times the lower bound for the same number of columns.
    heldout : float, optional
        The held-out loss with the chosen lambda is at most this factor (1 or more) times the smallest one.
    explained : float, optional
        This share (above 0, at most 1) of the squared norm is explained; of held-out rows if known.

    Returns
    -------
    int
        The number of columns.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> picked = rg.select(load_wine().data, 10, center=True, scale="std")
    >>> rg.choose_k(picked, explained=0.8)
    7
    """
    rules = {"bound": bound, "heldout": heldout, "explained": explained}
    chosen = [name for name, value in rules.items() if value is not None]
    if len(chosen) != 1:
        raise ValueError(f"give exactly one of bound, heldout and explained; got {' and '.join(chosen) or 'none'}.")
    name, value = chosen[0], float(rules[chosen[0]] or 0.0)
    if name == "explained" and not 0 < value <= 1:
        raise ValueError(f"explained must be a share above 0 and at most 1; got {value:g}.")
    if name != "explained" and not value >= 1:
        raise ValueError(f"{name} must be 1 or more, as a factor on the best possible loss; got {value:g}.")
    reached = _ratio(result, name)
    enough = reached >= value if name == "explained" else reached <= value
    if not enough.any():
        best = reached.max() if name == "explained" else reached.min()
        raise ValueError(
            f"{name}={value:g} must be reachable; with up to {len(reached)} columns the best is {best:.4g}. "
            "Ask for less, or pick more columns."
        )
    return int(enough.argmax()) + 1


def _ratio(result: Selection | CrossValidation, rule: str) -> Array:
    """Return the quantity that the rule limits, for each size, (k,)."""
    if isinstance(result, CrossValidation) and rule != "bound":
        at = int(np.flatnonzero(result.lams == result.lam)[0])
        return result.held_out_explained[at] if rule == "explained" else _over(result.mean[at], result.mean[at].min())
    if isinstance(result, CrossValidation):
        raise ValueError(
            "bound needs a selection; got a cross-validation. Give a selection made by select(..., bound=True)."
        )
    if rule == "heldout":
        raise ValueError("heldout needs a cross-validation; got a selection. Give the result of cross_validate.")
    if rule == "explained":
        return result.explained
    if result.bound is None:
        raise ValueError(
            "bound needs a selection with bounds, and this one has none. Make it with select(..., bound=True)."
        )
    return _over(result.loss, result.bound)


def _over(losses: Array, best: ArrayLike) -> Array:
    """Divide losses by the best possible ones; 0 / 0 counts as 1."""
    best = np.broadcast_to(np.asarray(best, dtype=np.float64), losses.shape)
    worse = np.where(losses > 0, np.inf, 1.0)
    return np.asarray(np.divide(losses, best, out=worse, where=best > 0))
