"""Unreadable Zarr metadata: errors that name the archive instead of a position in its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

from zarr.errors import ContainsGroupError, MetadataValidationError, NodeTypeValidationError

from rgcss_dask.io.safe_text import without_secrets

Kinds = tuple[type[Exception], ...]
ANOTHER_NODE: Kinds = (ContainsGroupError, NodeTypeValidationError)  # a group in place of an array
OF_ZARR: Kinds = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, BadZipFile)
# Without ValueError, for code in which this package raises ValueErrors of its own.
OF_JSON: Kinds = (json.JSONDecodeError, UnicodeDecodeError, MetadataValidationError, *OF_ZARR[1:4], BadZipFile)


@contextmanager
def metadata_named(address: str | Path, errors: Kinds = OF_ZARR, *, told: Kinds = ()) -> Iterator[None]:
    """Name the archive in errors of Zarr about unreadable metadata; errors of the kinds ``told`` pass unchanged."""
    try:
        yield
    except errors as error:
        if isinstance(error, (OSError, *told)):
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
        raise ValueError(
            f"the metadata of {without_secrets(address)} cannot be read ({reason}): they are damaged, or were written "
            "for another version of Zarr. Copy the archive again, or write it again."
        ) from error
