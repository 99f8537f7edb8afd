"""Rules that stop a selection before k columns are picked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Stop:
    """Rules to stop before k columns are picked; the first rule that is met ends the selection.

    Parameters
    ----------
    loss : float, optional
        Stop when the loss is at most this share of the loss before the first pick.
    bound : float, optional
        Stop when the loss is at most this factor (1 or more) times the tight lower bound for the same number of
        columns.

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
            raise ValueError(f"the share of the loss to stop at must be between 0 and 1; got loss={self.loss!r}.")
        if self.bound is not None and not self.bound >= 1:
            raise ValueError(
                f"the factor of the bound must be 1 or more, because no loss is below it; got {self.bound!r}."
            )

    def met(self, loss: float, start: float, bound: float | None) -> bool:
        """Tell whether a rule is met.

        Parameters
        ----------
        loss : float
            The current loss.
        start : float
            The loss before the first pick.
        bound : float or None
            The tight lower bound for the current number of columns.

        Returns
        -------
        bool
            True if the selection ends here.
        """
        return (self.loss is not None and loss <= self.loss * start) or (
            self.bound is not None and bound is not None and loss <= self.bound * bound
        )
