"""Metadata of Zarr that cannot be read: an error that names the archive instead of a place in some JSON."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from zipfile import BadZipFile

from zarr.errors import ContainsGroupError, MetadataValidationError, NodeTypeValidationError

from rgcss_dask.io.safe_text import without_secrets

Kinds = tuple[type[Exception], ...]
ANOTHER_NODE: Kinds = (ContainsGroupError, NodeTypeValidationError)  # a group, where an array was looked for
OF_ZARR: Kinds = (ValueError, TypeError, LookupError, AttributeError, RuntimeError, BadZipFile)
# Where this package may refuse what it finds, too, which is a ValueError.
OF_JSON: Kinds = (json.JSONDecodeError, UnicodeDecodeError, MetadataValidationError, *OF_ZARR[1:4], BadZipFile)


@contextmanager
def metadata_named(address: str | Path, errors: Kinds = OF_ZARR, *, told: Kinds = ()) -> Iterator[None]:
    """Name the archive in what Zarr says of metadata that it cannot make sense of; what is ``told`` is left alone."""
    try:
        yield
    except errors as error:
        if isinstance(error, (OSError, *told)):
            raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split()).rstrip('.')}"
        raise ValueError(
            f"the metadata of {without_secrets(address)} cannot be read ({reason}): they are damaged, or made for "
            "another version of Zarr. Copy the archive again, or make it anew."
        ) from error
