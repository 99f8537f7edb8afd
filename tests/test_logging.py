"""A pass tells what it does through `logging`, and only to who asked for it."""

import logging
import re
import subprocess
import sys

import numpy as np
import zarr

import rgcss_dask as rg


def test_a_pass_says_what_it_reads_and_how_long_that_took(tmp_path, caplog):
    zarr.create_array(tmp_path / "data.zarr", data=np.ones((300, 4)), chunks=(100, 4))
    with caplog.at_level(logging.INFO, logger="rgcss_dask"):
        rg.scan(tmp_path / "data.zarr")
    first, last = [record.getMessage() for record in caplog.records if record.name == "rgcss_dask"]
    assert re.fullmatch(r"reading 300 rows of .*data\.zarr, 0 of them resumed, in \d+ spans", first)
    assert re.fullmatch(r"read 300 rows of .*data\.zarr in \d+\.\d\d s", last)


def test_no_password_is_logged(caplog):
    address = "memory://user:PASSWORD@host/logged.zarr"
    zarr.create_array(zarr.storage.FsspecStore.from_url(address), data=np.ones((10, 4)))
    with caplog.at_level(logging.INFO, logger="rgcss_dask"):
        rg.scan(address)
    assert "host/logged.zarr" in caplog.text
    assert "PASSWORD" not in caplog.text


def test_nothing_is_shown_unless_asked_for():
    code = 'import rgcss_dask as rg; rg.scan(__import__("numpy").eye(3, 2), progress=False)'
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
