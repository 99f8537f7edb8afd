"""What several test modules share: the folder of real data sets, if there is one, and a place in a bucket."""

import os
import re
import signal
import sys
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def _ctrl_c():
    """Let Ctrl-C, which some tests press, be what it is in Python.

    A shell that starts this in the background has it ignored, by all that is started from here too, and packages that
    tests import take it for themselves (dask-jobqueue).
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_figures_left():
    """Close what a test has plotted: pyplot keeps every figure, and warns of many."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


def pytest_addoption(parser):
    parser.addoption("--data", help="folder with the real data sets (default: the environment variable RGCSS_DATA)")


@pytest.fixture(scope="session")
def data_dir(pytestconfig):
    """The folder of real data sets; tests that need it are skipped without one."""
    folder = pytestconfig.getoption("--data") or os.environ.get("RGCSS_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("needs the real data sets: give their folder with --data or RGCSS_DATA")
    return Path(folder)


@pytest.fixture
def place(request):
    """A place of the test's own in the bucket of an object store."""
    return f"s3://data/{re.sub(r'[^a-z0-9]+', '-', request.node.name)}"
