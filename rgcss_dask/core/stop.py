"""The rules that may end a selection before k columns are picked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stop:
    """When to stop before k columns are picked; whichever rule is met first ends the selection.

    Parameters
    ----------
    loss : float, optional
        Stop when the loss is at most this share of the loss before the first pick.
    bound : float, optional
        Stop when the loss is at most this factor (1 or more) times the tight lower bound for as many columns.

    Examples
    --------
    >>> from sklearn.datasets import load_wine
    >>> import rgcss_dask as rg
    >>> rows = load_wine().data
    >>> rg.select(rows, 13, center=True, scale="std", stop=rg.Stop(loss=0.3)).k  # 70 % explained
    5
    """

    loss: float | None = None
    bound: float | None = None

    def __post_init__(self) -> None:
        if self.loss is not None and not 0 <= self.loss <= 1:
            raise ValueError(f"stop at a share of the loss between 0 and 1; got loss={self.loss!r}.")
        if self.bound is not None and not self.bound >= 1:
            raise ValueError(f"no selection can be below the bound: its factor must be 1 or more; got {self.bound!r}.")

    def met(self, loss: float, start: float, bound: float | None) -> bool:
        """Say whether either rule holds.

        Parameters
        ----------
        loss : float
            The loss now.
        start : float
            The loss before the first pick.
        bound : float or None
            The tight lower bound for as many columns.

        Returns
        -------
        bool
            True if the selection ends here.
        """
        return (self.loss is not None and loss <= self.loss * start) or (
            self.bound is not None and bound is not None and loss <= self.bound * bound
        )
