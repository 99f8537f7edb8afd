import io
import time

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster
from rich.console import Console

from rgcss_dask import scan
from rgcss_dask.cluster.progress import BarDisplay, Progress, Reporter, display, figures


@pytest.fixture
def stored(tmp_path):
    A = np.random.default_rng(0).integers(0, 256, (100_000, 8), dtype=np.uint8)
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(1_000, 8))
    return tmp_path / "a.zarr"


def test_a_callback_sees_rows_grow_to_the_end(stored):
    states = []
    scan(stored, progress=states.append)
    assert [s.rows for s in states] == sorted(s.rows for s in states)
    assert states[-1].rows == states[-1].total_rows == 100_000
    assert states[-1].spans == states[-1].total_spans > 1
    assert states[-1].bytes == 800_000
    assert states[-1].rate > 0


def test_a_callback_on_a_cluster(stored):
    states = []
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
    ):
        scan(stored, progress=states.append)
        for _ in range(100):  # events may come after the result
            if states[-1].rows == 100_000:
                break
            time.sleep(0.05)
    assert states[-1].rows == 100_000
    assert states[-1].spans == states[-1].total_spans


def test_an_error_in_a_callback_stops_the_pass(stored):
    def fail(state):
        if state.rows > 0:
            raise KeyError("stop")

    with pytest.raises(KeyError, match="stop"):
        scan(stored, progress=fail)


def test_quiet_when_not_a_terminal(stored, capfd):
    scan(stored)
    assert capfd.readouterr() == ("", "")


def test_a_bar_shows_rows_bytes_rate_and_time_left():
    text = io.StringIO()
    with BarDisplay(Console(file=text, force_terminal=True, width=200)) as show:
        show(Progress(500_000, 2_000_000, 1_000, 2.0))
    assert "500,000 of 2,000,000 rows, 500 MB, 250 MB/s, 6 s left" in text.getvalue()


def test_figures_before_there_is_a_rate():
    assert figures(Progress(0, 10, 8, 0.0)) == "0 of 10 rows, 0 bytes, 0 bytes/s"
    resumed = Progress(60, 100, 8, 1.0, resumed_rows=50)
    assert resumed.rate == 10
    assert resumed.seconds_left == 4


def test_rows_read_twice_do_not_pass_the_total():
    states = []
    reporter = Reporter(states.append, rows=10, row_bytes=1, spans=1)
    reporter.add(8)
    reporter.add(8)
    assert states[-1].rows == 10


def test_a_bar_can_be_forced_or_forbidden():
    assert isinstance(display(True), BarDisplay)
    assert not isinstance(display(False), BarDisplay)


def test_a_notebook_shows_a_line_that_is_written_anew(monkeypatch):
    """Output of a kernel is no terminal; it is known by its class."""
    kernel = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr("sys.stderr", kernel)
    with display(None) as show:
        for seconds, rows in ((0.1, 10), (1.2, 20), (1.3, 30), (1.9, 40), (2.0, 100)):
            show(Progress(rows=rows, total_rows=100, row_bytes=8, seconds=seconds))
    lines = kernel.getvalue().split("\r")
    assert [line.split(" of ")[0] for line in lines] == ["", "reading: 20", "reading: 40", "reading: 100"]
    assert kernel.getvalue().endswith("\n")
    with display(False) as show:
        show(Progress(rows=1, total_rows=2, row_bytes=8, seconds=9.0))


def test_a_short_pass_shows_nothing_in_a_notebook(monkeypatch):
    kernel = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})()
    monkeypatch.setattr("sys.stderr", kernel)
    scan(np.ones((50, 3)))
    assert not kernel.getvalue()
