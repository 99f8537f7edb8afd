"""What a cluster costs: scaling on this machine, Dask against a bare loop, and the scheduler with 10,000 spans.

    python -m examples.benchmarks.cluster [--only scaling long rates scheduler] [--keep deploy/measured.json]

Ratios are of times measured one after the other in the same round; each printed figure is the median of the rounds.
Beside the time that passed stands the processor time, which a busy machine disturbs less. What is kept are the
constants from which deploy/sizing.py works out how large a cluster should be.
"""

import argparse
import asyncio
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from pathlib import Path
from unittest import mock

import dask
import numpy as np
import psutil
import zarr
from distributed import Client, LocalCluster, Worker, get_worker, wait
from scipy.optimize import nnls

import rgcss_dask as rg
from deploy.sizing import heartbeats
from rgcss_dask.core.partial_sums import Collector, PartialSums
from rgcss_dask.core.pass_options import Options
from rgcss_dask.core.plan import make_plan
from rgcss_dask.runtime.blas import single_threaded_blas
from rgcss_dask.runtime.cpus import available_cpus
from rgcss_dask.runtime.page_pool import freed_memory_kept
from rgcss_dask.sources.registry import open_source

THREADS = available_cpus()
CHUNK_BYTES = 2**22
DIFFERENT = 8  # chunks that are written; the others are links to them, so that reading finds them in memory
REPORTS = 4_000
ROOT = Path(__file__).parents[2]
COLUMNS = (64, 256, 784, 2048, 4096)


def main() -> None:
    parts = {"scaling": scaling, "long": long_pass, "rates": rates, "scheduler": scheduler}
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--rows", type=int, default=1_500_000, help="of 784 columns of 8 bits, for the scaling")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtypes", nargs="+", default=["uint8", "float32", "float64"], help="for the rates")
    parser.add_argument("--spans", type=int, default=10_000, help="given to the scheduler")
    parser.add_argument("--workers", type=int, default=100, help="of the scheduler, an even number")
    parser.add_argument("--keep", type=Path, help="a JSON file in which the constants are replaced by those measured")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rgcss-benchmark-"))
    print(f"{platform.machine()}, {THREADS} threads, Python {platform.python_version()}, Dask {dask.__version__}")
    try:
        for name in options.only:
            print(f"\n{name}")
            found = parts[name](folder, options)
            load = os.getloadavg()[0]
            print(f"  load of the machine at the end: {load:.1f} (by this alone: up to {THREADS})")
            if options.keep:
                keep(options.keep, found | {"load": {name: load}})
    finally:
        shutil.rmtree(folder)


def keep(path: Path, found: dict) -> None:
    """Replace what was measured before; of a table, only the lines that were."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    for name, value in found.items():
        kept[name] = kept.get(name, {}) | value if isinstance(value, dict) else value
    path.write_text(json.dumps(kept, indent=1) + "\n")


def make_array(path: Path, rows: int, columns: int, dtype: str, chunk: int | None = None) -> str:
    """Make a Zarr array of whole chunks, most of which are links to the first few."""
    chunk = chunk or max(1, CHUNK_BYTES // (columns * np.dtype(dtype).itemsize))
    chunks = math.ceil(rows / chunk)
    array = zarr.create_array(path, shape=(chunks * chunk, columns), chunks=(chunk, columns), dtype=dtype)
    rng = np.random.default_rng(0)
    for i in range(min(DIFFERENT, chunks)):
        block = rng.integers(0, 256, (chunk, columns), dtype=np.uint8)
        block[rng.random(block.shape) < 0.7] = 0  # most of a picture of a digit is empty
        array[i * chunk : (i + 1) * chunk] = block if dtype == "uint8" else block + rng.random(block.shape)
    for i in range(DIFFERENT, chunks):
        (path / f"c/{i}").mkdir()
        os.link(path / f"c/{i % DIFFERENT}/0", path / f"c/{i}/0")
    return str(path)


def bare_loop(path: str, threads: int = THREADS) -> PartialSums:
    """Read and add up the spans of a pass in plain threads: the same work without Dask."""
    source = open_source(path)
    made = make_plan(source.geometry, Options(), budget=2**40, threads=threads)

    def span(index: int) -> PartialSums:
        node = made.nodes[index]
        collector = Collector(made.options, source.dtype, (0, source.shape[0]), made.tile_threads)
        for start, stop in made.reads(node):
            collector.add(source.read_block(start, stop), start, None, None)
        return collector.parts(node.start, node.stop)

    with single_threaded_blas(), freed_memory_kept(), ThreadPoolExecutor(threads) as pool:
        return reduce(PartialSums.merge, pool.map(span, made.spans))


def on_threads(path: str, threads: int) -> None:
    with dask.config.set(num_workers=threads):
        rg.scan(path)


@dataclass(frozen=True)
class Times:
    """How long some ways took, in each round: seconds that passed, and seconds of processors."""

    passed: dict[str, list[float]]
    spent: dict[str, list[float]]

    def ratio(self, one: str, other: str, *, spent: bool = False) -> float:
        times = self.spent if spent else self.passed
        return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def timed(ways: dict[str, Callable[[], object]], rounds: int) -> Times:
    times = Times({name: [] for name in ways}, {name: [] for name in ways})
    for _ in range(rounds):
        for name, way in ways.items():
            before, began = processor_seconds(), time.perf_counter()
            way()
            times.passed[name].append(time.perf_counter() - began)
            times.spent[name].append(processor_seconds() - before)
    return times


def processor_seconds() -> float:
    """Count what this process and those it has started have used of processors."""
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in family)


class Workers:
    """As many worker processes as there are threads; a pass on them, and the time it takes to begin and end one."""

    def __init__(self, folder: Path) -> None:
        self.cluster = LocalCluster(n_workers=THREADS, threads_per_worker=1, dashboard_address="127.0.0.1:0")
        small = folder / "small.zarr"
        self.small = str(small) if small.exists() else make_array(small, 2**18, 8, "uint8", 2**13)  # 32 spans
        for _ in range(2):  # every worker imports, and compiles or loads what Numba keeps
            self.scan(self.small)

    def scan(self, path: str) -> None:
        with Client(self.cluster):
            rg.scan(path)

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self.cluster.close()


def scaling(folder: Path, options: argparse.Namespace) -> dict:
    path = make_array(folder / "scaling.zarr", options.rows, 784, "uint8")
    rows = zarr.open_array(path, mode="r").shape[0]
    spans = len(make_plan(open_source(path).geometry, Options(), budget=2**40, threads=THREADS).spans)
    print(f"  {rows:,} x 784 uint8, {spans} spans of {rows / spans * 784 / 1e6:.0f} MB")
    with Workers(folder) as workers:
        ways = {
            "bare loop": lambda: bare_loop(path),
            "1 thread": lambda: on_threads(path, 1),
            "threads": lambda: on_threads(path, THREADS),
            "processes": lambda: workers.scan(path),
        }
        bare_loop(path)
        times = timed(ways, options.rounds)
        start = statistics.median(timed({"": lambda: workers.scan(workers.small)}, 5).passed[""])
    for name in ways:
        faster, passed = times.ratio("1 thread", name), statistics.median(times.passed[name])
        print(f"  {name:10s} {passed:7.2f} s, {faster:.2f} times as fast as 1 thread", end="")
        print(f", {statistics.median(times.spent[name]):7.2f} s of processors")
    found = {"start_seconds": start, "cores": THREADS}
    for name in ("threads", "processes"):
        found[f"speedup_{name}"] = times.ratio("1 thread", name)
        found[f"{name}_over_bare_loop"] = over = times.ratio(name, "bare loop")
        found[f"{name}_over_bare_loop_processor"] = spent = times.ratio(name, "bare loop", spent=True)
        print(
            f"  {THREADS} {name} take {over:.3f} times the bare loop, {spent:.3f} of its processor time (target: 1.10)"
        )
    print(f"  a pass over next to nothing takes {start:.2f} s on the cluster")
    return found


def long_pass(folder: Path, options: argparse.Namespace) -> dict:
    """Compare processes with threads on a pass that takes at least 20 s."""
    probe = make_array(folder / "probe.zarr", 200_000, 784, "uint8")
    on_threads(probe, THREADS)
    seconds = timed({"": lambda: on_threads(probe, THREADS)}, 1).passed[""][0]
    path = make_array(folder / "long.zarr", int(200_000 * 24 / seconds), 784, "uint8")
    with Workers(folder) as workers:
        ways = {"threads": lambda: on_threads(path, THREADS), "processes": lambda: workers.scan(path)}
        times = timed(ways, max(1, options.rounds - 1))
    found, spent = (times.ratio("processes", "threads", spent=spent) for spent in (False, True))
    rows = zarr.open_array(path, mode="r").shape[0]
    taken = statistics.median(times.passed["threads"])
    print(f"  {rows:,} x 784 uint8, {taken:.1f} s on {THREADS} threads")
    print(
        f"  {THREADS} processes take {found:.3f} times the threads, {spent:.3f} of their processor time (target: 1.15)"
    )
    return {
        "processes_over_threads": found,
        "processes_over_threads_processor": spent,
        "processes_over_threads_seconds": taken,
        "overhead": max(1.0, spent),  # of processor time: others on the machine disturb it less
    }


def rates(folder: Path, options: argparse.Namespace) -> dict:
    """Measure processor seconds for a row, with every core busy, and fit them with a n + b n^2."""
    points: dict[str, dict[int, float]] = {}
    for dtype in options.dtypes:
        points[dtype] = {}
        for n in COLUMNS:
            rows = max(THREADS * 2**13, 2**27 // n // np.dtype(dtype).itemsize)
            path = make_array(folder / f"{dtype}-{n}.zarr", rows, n, dtype)
            rows = zarr.open_array(path, mode="r").shape[0]
            times = timed({"": lambda path=path: bare_loop(path)}, options.rounds)
            points[dtype][n] = statistics.median(times.spent[""]) / rows
            shutil.rmtree(path)
        a, b = fit(points[dtype])
        for n, seconds in points[dtype].items():
            off = (a * n + b * n * n) / seconds - 1
            print(f"  {dtype:8s} n = {n:4d} {1 / seconds:12,.0f} rows/s a core ({off:+.0%} in the model)")
    speeds = {dtype: dict(zip(("linear", "quadratic"), map(float, fit(p)), strict=True)) for dtype, p in points.items()}
    rows_per_second = {dtype: {str(n): 1 / s for n, s in p.items()} for dtype, p in points.items()}
    return {"speeds": speeds, "rows_per_second": rows_per_second} | merging()


def fit(points: dict[int, float]) -> np.ndarray:
    """Find a, b >= 0 so that a n + b n^2 is near the measured seconds, relatively."""
    n, seconds = np.array(list(points)), np.array(list(points.values()))
    return nnls(np.stack([n, n**2], axis=1) / seconds[:, None], np.ones(len(n)))[0]


def merging() -> dict:
    rng = np.random.default_rng(0)
    one, other = (rg.scan(rng.normal(size=(2048, 2048))) for _ in range(2))
    seconds = min(timed({"": lambda: one.merge(other)}, 5).passed[""])
    rate = 8 * 2048**2 / seconds
    print(f"  merging adds {rate / 1e9:.2f} GB of a result to another in a second")
    return {"merge_rate": rate}


def scheduler(folder: Path, options: argparse.Namespace) -> dict:
    """Measure the processor time of a real scheduler: many spans of next to no work, and their merges."""
    found, workers = {}, options.workers
    for count, spans in ((2, options.spans // 5), (workers, options.spans)):
        path = make_array(folder / f"spans-{spans}.zarr", 16 * spans, 8, "uint8", 16)
        with Scheduler(folder / f"scheduler-{count}.json", count) as served:
            found[count] = served.measure(path, spans)
        words = [f"{1e6 * found[count][f'{name}_seconds']:.0f} us for a {name}" for name in ("span", "merge", "report")]
        print(f"  {count} workers, {spans:,} spans: scheduler busy {', '.join(words)},")
        memory = f"{found[count]['span_bytes'] / 1e3:.1f} kB for a span and its merge"
        print(f"    {found[count]['idle_share']:.1%} of the time when idle, {memory}")
    # Of an idle scheduler's work only the heartbeats grow with the workers.
    few, many = (found[count]["idle_share"] for count in (2, workers))
    beat = max(0.0, many - few) / (heartbeats(workers) - heartbeats(2))
    print(f"  {1e6 * beat:.0f} us for a heartbeat")
    kept = found[workers] | {"heartbeat_seconds": beat, "idle_share": max(0.0, few - beat * heartbeats(2))}
    return kept | {"spans_measured": options.spans, "workers_measured": workers}


class Scheduler:
    """A scheduler in its own process, workers in others, and what the scheduler's process takes."""

    def __init__(self, file: Path, workers: int) -> None:
        start = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", "0"]
        start += ["--dashboard-address", "127.0.0.1:0", "--scheduler-file", str(file)]
        serve = [sys.executable, "-m", "examples.benchmarks.cluster", "--serve", str(file), str(workers // 2)]
        self.commands = [start, serve, serve]
        self.file, self.workers = file, workers

    def __enter__(self):
        self.processes = [subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=ROOT) for command in self.commands]
        self.process = psutil.Process(self.processes[0].pid)
        while not self.file.exists():
            time.sleep(0.05)
        self.client = Client(scheduler_file=str(self.file), timeout=60)
        self.client.wait_for_workers(self.workers, timeout=120)
        return self

    def __exit__(self, *error) -> None:
        self.client.close()
        for process in reversed(self.processes):
            process.terminate()
            process.wait()

    def busy(self, work: Callable[[], object]) -> tuple[float, float]:
        """Return the processor seconds that the scheduler spends during the work, and the seconds that passed."""
        before, began = self.process.cpu_times(), time.perf_counter()
        work()
        after, taken = self.process.cpu_times(), time.perf_counter() - began
        return after.user + after.system - before.user - before.system, taken

    def measure(self, path: str, spans: int) -> dict[str, float]:
        self.scan(path, spans, [], rows=slice(0, 1600))  # imports
        spent, taken = self.busy(lambda: time.sleep(8))
        idle = spent / taken

        def net(work: Callable[[], object]) -> float:
            spent, taken = self.busy(work)
            return spent - idle * taken

        reporting = net(self.report) / REPORTS
        graphs: list[dict] = []
        with peak(self.process) as memory:
            whole = net(lambda: self.scan(path, spans, graphs))
        flat = net(lambda: self.flat(graphs[0]))
        return {
            "span_seconds": flat / spans - 2 * reporting,  # each reports one read and its end
            "merge_seconds": (whole - flat) / spans,
            "report_seconds": reporting,
            "idle_share": idle,
            "span_bytes": memory() / spans,
        }

    def report(self) -> None:
        """Have all workers report reads, one now and one then as spans do, to a client that listens."""
        each, heard = REPORTS // self.workers, threading.Semaphore(0)
        self.client.subscribe_topic("rgcss-benchmark", lambda event: heard.release())
        places = self.client.scheduler_info(n_workers=-1)["workers"]
        wait([self.client.submit(send_reports, each, workers=place, pure=False) for place in places])
        for _ in range(each * self.workers):
            heard.acquire(timeout=60)
        self.client.unsubscribe_topic("rgcss-benchmark")

    def scan(self, path: str, spans: int, graphs: list[dict], rows: slice | None = None) -> None:
        """Make a pass cut into so many spans, and keep the graph that is sent."""
        send = self.client.get

        def get(graph, keys, **options):
            graphs.append(graph)
            return send(graph, keys, **options)

        small = {"SPAN_LIMIT": spans, "SPAN_COUNT": spans, "SPAN_ROWS": 1}
        cut = mock.patch.multiple("rgcss_dask.core.spans", **small)
        with cut, mock.patch.object(self.client, "get", get), self.client.as_current():
            rg.scan(path, rows=rows)

    def flat(self, graph: dict) -> None:
        """Compute the same spans with hardly a merge: a hundred at a time, and then those."""
        spans = [key for key in graph if key[0].startswith("rgcss-span")]
        flat = {key: graph[key] for key in spans} | {
            key: graph[key] for key in graph if str(key).startswith("rgcss-job")
        }
        groups = [spans[i : i + 100] for i in range(0, len(spans), 100)]
        flat |= {("benchmark-group", i): (len, keys) for i, keys in enumerate(groups)}
        flat["benchmark-end"] = (sum, [("benchmark-group", i) for i in range(len(groups))])
        assert self.client.get(flat, "benchmark-end") == len(spans)


def send_reports(count: int) -> None:
    for _ in range(count):
        get_worker().log_event("rgcss-benchmark", {"rows": 1, "spans": 0})
        time.sleep(0.005)  # or Dask would send many as one message


@contextmanager
def peak(process: psutil.Process) -> Iterator[Callable[[], int]]:
    """Look at the memory of a process; afterwards say by how much it grew."""
    before, largest, over = process.memory_info().rss, [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            largest[0] = max(largest[0], process.memory_info().rss)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield lambda: largest[0] - before
    finally:
        over.set()
        watcher.join()


async def serve(file: str, count: int) -> None:
    """Be so many workers of one thread each, in this process, until it is ended."""
    workers = [
        Worker(scheduler_file=file, nthreads=1, host="127.0.0.1", dashboard=False, memory_limit=0) for _ in range(count)
    ]
    await asyncio.gather(*workers)
    await asyncio.gather(*(worker.finished() for worker in workers))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--serve"]:
        asyncio.run(serve(sys.argv[2], int(sys.argv[3])))
    else:
        main()
