"""How columns are prepared before they are judged: centred, divided, and with their signals beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rgcss_dask.core.moments import Moments
from rgcss_dask.core.noise import with_signals
from rgcss_dask.core.solver.bases import Wide, base_of
from rgcss_dask.core.solver.gram import Base, Gram

Array = NDArray[np.float64]
Center = bool | ArrayLike
Scale = float | str | ArrayLike | None


class Prepares(Protocol):
    """What columns can be centred and scaled by: moments, or rows."""

    @property
    def mean_rest(self) -> Array | None:
        """What float64 rounds off the means, where that counts."""

    def preparation(self, center: Center, scale: Scale) -> tuple[Array, Array]:
        """Resolve what was asked for to vectors."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """What was subtracted from each column, and what it was divided by."""

    mu: Array  # (n,)
    sigma: Array  # (n,)
    mu_rest: Array | None  # (n,) what float64 rounds off mu, where that counts; see `Moments.mean_rest`
    noise: Array | None = None  # (n,) variance of the noise in each column, before it is divided

    def base(self, moments: Moments | Wide) -> Base:
        """Return the Gram of moments, these or others, that are prepared so; where there is noise, with the signals."""
        if self.noise is None or not isinstance(moments, Moments):
            return base_of(moments, self.mu, self.sigma, rest=self.mu_rest)
        G = moments.gram(self.mu, self.sigma, rest=self.mu_rest)
        return Gram(with_signals(G, moments.weight * self.noise / self.sigma**2))

    @property
    def known(self) -> dict[str, Any]:
        """What a selection keeps of it."""
        return {"mu": self.mu, "sigma": self.sigma, "mu_rest": self.mu_rest}
