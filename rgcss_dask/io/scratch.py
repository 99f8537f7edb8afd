"""The folder for n x n matrices that do not fit into memory, from Dask's configuration."""

from __future__ import annotations

import os
from pathlib import Path

import dask

SETTING = "rgcss.scratch"


def scratch_folder() -> Path | None:
    """Return the folder that the user gave for large matrices, or None."""
    given = dask.config.get(SETTING, None)
    if given is None:
        return None
    folder = Path(str(given)).expanduser().absolute()
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise NotADirectoryError(f"{SETTING} must be a folder that this process may write to; got {str(given)!r}.")
    return folder
