"""The base class of selections, swaps and cross-validations: attributes, tables, plots."""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from html import escape
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from rgcss_dask.core.words import ELLIPSIS, listed, percent, printable
from rgcss_dask.runtime.extras import imported

Array = NDArray[np.float64]

SHOWN = 20  # picks in the table of a notebook


class Pick(NamedTuple):
    """One picked column."""

    column: int
    name: str | None  #: None if the columns have no names
    loss: float  #: the objective after this pick
    explained: float  #: the share explained after this pick


class Origin(Protocol):
    """The moments or rows of a selection, with functions of higher layers."""

    def result(self, picked: Any, **shown: Any) -> Any:
        """Compute everything that a report shows of a selection."""

    def save(self, result: Any, path: str | Path, *, overwrite: bool) -> None:
        """Write a result to a file."""


def plotted(plot: str, *values: Any, **options: Any) -> Any:
    """Plot with a function of `rgcss_dask.plots`, a higher layer, which is imported on demand."""
    return getattr(importlib.import_module("rgcss_dask.plots"), plot)(*values, **options)


class Answer:
    """Picked columns in pick order: their names, losses and shares, with a table and a plot."""

    columns: NDArray[np.intp]
    names: tuple[str, ...] | None
    loss: Array

    @property
    def explained(self) -> Array:
        """Share of the squared norm that is explained after each pick, (k,)."""
        raise NotImplementedError

    @property
    def share_of(self) -> str:
        """What `explained` is a share of, in words: "variation" or "squared norm"."""
        raise NotImplementedError

    @property
    def sentence(self) -> str:
        """The result in one sentence."""
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self.columns)

    def __bool__(self) -> bool:
        """Return True, also if no column was picked."""
        return True

    def __iter__(self) -> Iterator[Pick]:
        names = self.names or [None] * len(self)
        for column, name, loss, share in zip(self.columns, names, self.loss, self.explained, strict=True):
            yield Pick(int(column), name, float(loss), float(share))

    def __str__(self) -> str:
        return f"{self.sentence}\n{self.picks}"

    def __repr__(self) -> str:
        return str(self)

    @property
    def picks(self) -> str:
        """The picks, in one line."""
        return f"Picked, in order: {listed(self._labels())}." if len(self) else "Nothing is picked."

    def _labels(self) -> list[Any]:
        return list(self.columns if self.names is None else self.names)

    def _repr_html_(self) -> str:
        """Return an HTML table of the picks, with names escaped."""
        head = "".join(f"<th>{title}</th>" for title in ("", "column", "explained"))
        rows = "".join(
            f"<tr><td>{place}</td><td>{escape(printable(label))}</td><td>{percent(share)}</td></tr>"
            for place, (label, share) in enumerate(zip(self._labels()[:SHOWN], self.explained, strict=False), start=1)
        )
        more = f"<tr><td colspan='3'>{ELLIPSIS} {len(self) - SHOWN:,} more</td></tr>" if len(self) > SHOWN else ""
        return f"<p>{escape(self.sentence)}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}{more}</tbody></table>"

    def to_frame(self) -> Any:
        """Return the picks as a pandas data frame.

        Returns
        -------
        pandas.DataFrame
            One row per pick, in pick order, with loss and explained share.
        """
        pandas = imported("pandas", extra="dataframe", by="to_frame()")
        return pandas.DataFrame(self._table(), index=pandas.RangeIndex(1, len(self) + 1, name="picked"))

    def _table(self) -> dict[str, Any]:
        """Return the columns of the table, by title."""
        names = {} if self.names is None else {"name": list(self.names)}
        return {"column": self.columns, **names, "loss": self.loss, "explained": self.explained}

    def plot(self, ax: Any = None) -> Any:
        """Plot the share explained after each pick, with matplotlib; see `rgcss_dask.plots.path`.

        Parameters
        ----------
        ax : Axes, optional
            Where to plot; by default a new figure.

        Returns
        -------
        Axes
            The axes.
        """
        return plotted("path", self, ax, components=False)

    @property
    def compared(self) -> dict[str, Array]:
        """Other shares after 1, 2, ... picks, for comparison in plots, by label."""
        return {}

    def result(self, **shown: Any) -> Any:
        """Return everything that a report shows.

        Parameters
        ----------
        **shown : dict
            Additional content, such as ``trust=stability.summary``.

        Returns
        -------
        Result
            The selection with bounds, weights, condition number and the origin of the rows.
        """
        if self.origin is None:
            raise ValueError(
                "a result needs the moments or rows of the picks, which are not known here: pickles, and selections "
                "from a Gram alone, do not keep them. Pick again from rows or moments, with rgcss_dask.select, refine "
                "or cross_validate."
            )
        return self.origin.result(self._selected(), **{**self._shown(), **shown})

    def save(self, path: str | Path, *, overwrite: bool = False) -> None:
        """Write the result to a JSON file, for `load_result`, `rgcss report` and `rgcss apply`.

        Parameters
        ----------
        path : str or Path
            Where to write. An existing result is replaced.
        overwrite : bool, default=False
            Replace the file at ``path`` even if it is not a result.
        """
        result = self.result()
        assert self.origin is not None  # or there would be no result
        self.origin.save(result, path, overwrite=overwrite)

    def _selected(self) -> Any:
        """Return the selection."""
        return self

    def _shown(self) -> dict[str, Any]:
        """Return additional content of a report, as keyword arguments of `Origin.result`."""
        return {}

    @property
    def origin(self) -> Origin | None:
        """The moments or rows of the picks, if a public function of the package set them; not in pickles."""
        return self.__dict__.get("_origin")

    def known(self, origin: Origin | None) -> Self:
        """Return the same answer with its origin, for `rgcss_dask.reporting` and `save`.

        Parameters
        ----------
        origin : Origin or None
            The moments or rows that the columns were picked from.

        Returns
        -------
        Answer
            A copy that shares its arrays.
        """
        return self if origin is None else self._from(origin)

    def _from(self, origin: Origin) -> Self:
        twin = copy.copy(self)
        twin.__dict__["_origin"] = origin
        return twin

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the origin, because its n x n numbers would make pickles large."""
        return {name: value for name, value in self.__dict__.items() if name != "_origin"}


class AboutSelection(Answer):
    """An answer that contains a selection; columns, names and losses are those of the selection."""

    selection: Any

    @property
    def columns(self) -> NDArray[np.intp]:  # type: ignore[override]
        """The picked columns in pick order, (k,)."""
        return self.selection.columns

    @property
    def names(self) -> tuple[str, ...] | None:  # type: ignore[override]
        """Names of the picked columns, (k,), if columns have names."""
        return self.selection.names

    @property
    def loss(self) -> Array:  # type: ignore[override]
        """The objective on all rows after each pick, (k,)."""
        return self.selection.loss

    @property
    def explained(self) -> Array:
        """Share of the squared norm of all rows that is explained after each pick, (k,)."""
        return self.selection.explained

    @property
    def share_of(self) -> str:
        """What `explained` is a share of, in words: "variation" or "squared norm"."""
        return str(self.selection.share_of)

    @property
    def origin(self) -> Origin | None:
        """The origin of the selection."""
        return self.selection.origin

    def _from(self, origin: Origin) -> Self:
        twin = copy.copy(self)
        twin.__dict__["selection"] = self.selection.known(origin)
        return twin

    def _selected(self) -> Any:
        return self.selection
