"""Preparation of columns: centring, scaling, and signals if noise is known."""

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
    """A source of centring and scaling: moments or rows."""

    @property
    def mean_rest(self) -> Array | None:
        """The rounding errors of the means in float64, if they matter."""

    def preparation(self, center: Center, scale: Scale) -> tuple[Array, Array]:
        """Resolve options to vectors."""


@dataclass(frozen=True, eq=False)
class Preparation:
    """The values subtracted from each column, and the divisors."""

    mu: Array  # (n,)
    sigma: Array  # (n,)
    mu_rest: Array | None  # (n,) rounding errors of mu, if they matter; see `Moments.mean_rest`
    noise: Array | None = None  # (n,) noise variance of each column, before scaling

    def base(self, moments: Moments | Wide) -> Base:
        """Return the Gram of moments with this preparation, including signals if there is noise."""
        if self.noise is None or not isinstance(moments, Moments):
            return base_of(moments, self.mu, self.sigma, rest=self.mu_rest)
        G = moments.gram(self.mu, self.sigma, rest=self.mu_rest)
        return Gram(with_signals(G, moments.weight * self.noise / self.sigma**2))

    @property
    def known(self) -> dict[str, Any]:
        """The fields that a selection stores."""
        return {"mu": self.mu, "sigma": self.sigma, "mu_rest": self.mu_rest}
