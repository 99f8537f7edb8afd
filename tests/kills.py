"""A process that does things with files again and again, killed before each of them in turn, and once more in peace.

Run as a script: everything is imported once, and each try is a fork. It prints what came out as JSON.
"""

import hashlib
import io
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import traceback
from collections import Counter
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import zarr

import rgcss_dask as rg
from rgcss_dask.archive.ownership import VERSION
from rgcss_dask.archive.result_file import load_result, save_result
from rgcss_dask.batch import run_batch
from rgcss_dask.cli import cli
from rgcss_dask.core import merge_tree
from rgcss_dask.core.result import make_result
from rgcss_dask.io import matrix_writer as writer
from rgcss_dask.io.claim import ArchiveBusyError
from rgcss_dask.reporting import page, write_report

assert page.page  # matplotlib, before the forks

ROWS, COLUMNS = 1_200, 3
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate")
JOBS = '[[jobs]]\ndata = "a.zarr"\nk = 2\nlam = 1.0\nreport = ""\n'


def rows(seed, count=ROWS):
    return np.random.default_rng(seed).integers(0, 256, (count, COLUMNS), dtype=np.uint8)  # exact in any order


def prepare(here):
    """Make everything that is read."""
    for name, seed in (("a", 0), ("b", 1), ("c", 2)):
        zarr.create_array(here / f"{name}.zarr", data=rows(seed), chunks=(100, COLUMNS))
        rg.scan(here / f"{name}.zarr", archive=here / f"m{name}.zarr", progress=False)
    grown = zarr.create_array(here / "grown.zarr", data=rows(3), chunks=(100, COLUMNS))
    rg.scan(grown, archive=here / "mgrown.zarr", progress=False)
    grown.append(rows(4, 600))
    np.save(here / "a.npy", rows(0))
    gappy = np.where(rows(5) > 30, rows(5), np.nan)
    zarr.create_array(here / "gaps.zarr", data=gappy, chunks=(100, COLUMNS))
    rg.scan(here / "a.zarr", archive=here / "mfolds.zarr", folds=2, progress=False)
    moments = rg.load(here / "ma.zarr")
    save_result(make_result(moments, rg.select(moments, 2, lam=1.0)), here / "r.json")
    (here / "jobs.toml").write_text(JOBS)
    shutil.copytree(here / "ma.zarr", here / "other.zarr")


def moments_at(path):
    moments = rg.load(path)
    parts = [moments, *moments.folds]
    digest = hashlib.sha256(b"".join(part.product.tobytes() + part.total.tobytes() for part in parts))
    return [moments.rows, len(moments.folds), digest.hexdigest()]


def matrix_at(path):
    array = zarr.open_array(path, mode="r")
    return [list(array.shape), hashlib.sha256(array[:].tobytes()).hexdigest(), dict(array.attrs)]


@dataclass(frozen=True)
class Try:
    """Something to do in a folder, what it writes, and what is there afterwards."""

    do: object
    reads: tuple  # of what `prepare` makes: what is there before
    writes: str
    outcome: object
    rival: object = None  # what another process does at the same time, if not the same

    def begin(self, template, here):
        """Make a folder with what is there before."""
        here.mkdir()
        for name in self.reads:
            copy = shutil.copytree if (template / name).is_dir() else shutil.copy2
            copy(template / name, here / name)

    def look(self, here):
        return json.loads(json.dumps(self.outcome(here / self.writes)))


@dataclass(frozen=True)
class Calm:
    """What is there when nothing was killed."""

    outcome: object
    inputs: dict
    names: Counter


def one_batch(here):
    (job,) = run_batch(here / "jobs.toml", say=lambda line: None)["jobs"]
    if job["status"] == "failed":
        raise ArchiveBusyError(job["words"]) if "one writer at a time" in job["words"] else RuntimeError(job["words"])


def batched(path):
    result = load_result(path.with_name("a.json"))
    summary = json.loads(path.with_name("summary.json").read_text())
    return [moments_at(path), result.selection.columns.tolist(), result.selection.loss.tolist(), len(summary["jobs"])]


def command(*arguments):
    """Call a command of the command line."""
    with redirect_stdout(io.StringIO()):
        cli.main([str(one) for one in arguments], standalone_mode=False)


def picked_at(path):
    picked = load_result(path).selection
    return [picked.columns.tolist(), picked.loss.tolist(), picked.lam]


def merged(*names):
    return lambda here: rg.merge([here / f"{name}.zarr" for name in names], here / f"{names[0]}.zarr")


def scanned(here, **options):
    rg.scan(here / "a.zarr", progress=False, **options)


TRIES = {
    "scan": Try(lambda here: scanned(here, archive=here / "out", folds=2), ("a.zarr",), "out", moments_at),
    "scan for a sketch": Try(
        lambda here: scanned(here, archive=here / "out", folds=2, sketch=5), ("a.zarr",), "out", moments_at
    ),
    "scan with gaps for a sketch": Try(
        lambda here: rg.scan(here / "gaps.zarr", archive=here / "out", sketch=5, nan="mean", progress=False),
        ("gaps.zarr",),
        "out",
        moments_at,
    ),
    "scan for candidates": Try(
        lambda here: scanned(here, archive=here / "out", folds=2, candidates=[0, 2]), ("a.zarr",), "out", moments_at
    ),
    "overwrite": Try(
        lambda here: scanned(here, archive=here / "other.zarr", folds=2, overwrite=True),
        ("a.zarr", "other.zarr"),
        "other.zarr",
        moments_at,
    ),
    "append": Try(
        lambda here: rg.append(here / "mgrown.zarr", here / "grown.zarr", progress=False),
        ("mgrown.zarr", "grown.zarr"),
        "mgrown.zarr",
        moments_at,
    ),
    "merge": Try(
        lambda here: rg.merge([here / "ma.zarr", here / "mb.zarr"], here / "out"),
        ("ma.zarr", "mb.zarr"),
        "out",
        moments_at,
    ),
    "merge onto an input": Try(
        merged("ma", "mb"), ("ma.zarr", "mb.zarr", "mc.zarr"), "ma.zarr", moments_at, merged("ma", "mc")
    ),
    "save": Try(lambda here: rg.save(rg.load(here / "ma.zarr"), here / "out"), ("ma.zarr",), "out", moments_at),
    "convert": Try(lambda here: rg.convert(here / "a.npy", here / "out"), ("a.npy",), "out", matrix_at),
    "convert Zarr": Try(lambda here: rg.convert(here / "a.zarr", here / "out"), ("a.zarr",), "out", matrix_at),
    "apply": Try(lambda here: rg.write_reduced([0, 2], here / "a.zarr", here / "out"), ("a.zarr",), "out", matrix_at),
    "select -o": Try(
        lambda here: command("select", here / "ma.zarr", "-k", 2, "--lam", 1, "-o", here / "out"),
        ("ma.zarr",),
        "out",
        picked_at,
    ),
    "tune -o": Try(
        lambda here: command("tune", here / "mfolds.zarr", "-k", 2, "--lams", 1, "-o", here / "out"),
        ("mfolds.zarr",),
        "out",
        picked_at,
    ),
    "result": Try(
        lambda here: save_result(load_result(here / "r.json"), here / "out"),
        ("r.json",),
        "out",
        lambda path: path.read_text(),
    ),
    "report": Try(
        lambda here: write_report(load_result(here / "r.json"), here / "out"),
        ("r.json",),
        "out",
        lambda path: len(path.read_text()),
    ),
    "batch": Try(one_batch, ("a.zarr", "jobs.toml"), "a.moments.zarr", batched),
}
# Outputs of a batch beside the moments, which are not input either.
OUTPUTS = ("a.json", "summary.json")


def dies_before(count, here):
    """Have this process die, as by a power cut, before it changes files for the count-th time; return what counts."""
    seen, place = [0], str(here)

    def hook(event, args):
        if event == "open":
            counts = isinstance(args[2], int) and args[2] & WRITES and str(args[0]).startswith(place)
        else:  # within shutil.rmtree names are relative to a folder that is open
            counts = event in CHANGES and (str(args[0]).startswith(place) or not os.path.isabs(str(args[0])))
        if counts:
            seen[0] += 1
            if seen[0] == count:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return seen


def forked(function, *args):
    """Call a function in a fork and return how that ended: what it returned, or None if it was killed."""
    with tempfile.TemporaryFile() as file:
        pid = os.fork()
        if pid == 0:
            try:
                said = function(*args)
            except BaseException as error:
                said = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
            os.write(file.fileno(), json.dumps(said).encode())
            os._exit(0)
        os.waitpid(pid, 0)
        file.seek(0)
        text = file.read()
    return json.loads(text) if text else None


def done(one, here, count=0):
    """Do it, to be killed if asked, and return how often files were changed."""
    seen = dies_before(count, here)
    one.do(here)
    return {"operations": seen[0]}


def done_again(one, here):
    """Do it once more and return what is there then; what is there already may be called so."""
    refused = ""
    try:
        one.do(here)
    except FileExistsError as error:
        if "exists already" not in str(error):
            raise
        refused = str(error)
    return {"outcome": one.look(here), "refused": refused}


def inputs(here, one):
    """Return what must stay as it is."""
    files = (path for path in here.rglob("*") if path.is_file())
    names = {path.relative_to(here).as_posix(): path for path in files}
    read = {name: path for name, path in names.items() if not name.startswith((one.writes, *OUTPUTS))}
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in read.items() if not is_passing(name)}


def is_passing(name):
    return name.endswith((".draft", ".partial", ".part")) or ".draft/" in name or "writer.json" in name


def left(here, wanted):
    """Name what would not be there, or be missing, if nothing had been killed."""
    found = listed(here)
    return sorted((found - wanted).elements()), sorted((wanted - found).elements())


def listed(here):
    """Count the files and folders; versions of archives are as good as each other."""
    return Counter(VERSION.sub("v", path.relative_to(here).as_posix()) for path in here.rglob("*"))


def attacked(name, template, folder, every, twice):
    """Kill it before every so-many-th change of files, and compare what is there after one more call."""
    one, here = TRIES[name], folder / "here"
    one.begin(template, here)
    before = inputs(here, one)
    count = forked(done, one, here)
    assert count is not None, name
    assert "error" not in count, count
    calm = Calm(forked(lambda: {"outcome": one.look(here)})["outcome"], before, listed(here))
    shutil.rmtree(here)
    found = {"operations": count["operations"], "kills": 0, "wrong": [], "lost": [], "stranded": [], "litter": []}
    first = 1 if every == 1 else 1 + every // 2
    counts = range(first, found["operations"] + 1, every)
    asked = [(name, count, twice, template, folder, calm) for count in counts]
    with multiprocessing.get_context("fork").Pool(2) as lanes:
        for kills, faults in lanes.starmap(attack, asked, chunksize=1):
            found["kills"] += kills
            for fault, what in faults.items():
                found[fault].append(what)
    return found


def attack(name, count, twice, template, folder, calm):
    """Kill it once, or once more when it is made again, and say what is not as it should be after one more call."""
    one, here = TRIES[name], folder / f"killed-{os.getpid()}"
    one.begin(template, here)
    kills = int(forked(done, one, here, count) is None)
    if twice:
        kills += int(forked(done, one, here, 1 + 7 * count % 41) is None)
    again, faults = forked(done_again, one, here), {}
    if again is None or "error" in again:
        faults["stranded"] = [count, again]
    elif again["outcome"] != calm.outcome:
        faults["wrong"] = [count, again["outcome"]]
    if inputs(here, one) != calm.inputs:
        faults["lost"] = [count]
    if any(left(here, calm.names)):
        faults["litter"] = [count, *left(here, calm.names)]
    shutil.rmtree(here)
    return kills, faults


def at_once(name, template, folder, times):
    """Do it in two processes at once, then once more, and compare."""
    one, here = TRIES[name], folder / "here"
    rival = replace(one, do=one.rival or one.do)
    one.begin(template, here)
    before = inputs(here, one)
    forked(done, one, here)
    forked(done_again, rival, here)
    calm = Calm(forked(lambda: {"outcome": one.look(here)})["outcome"], before, listed(here))
    shutil.rmtree(here)
    found = {"times": 0, "refused": 0, "wrong": []}
    for _ in range(times):
        one.begin(template, here)
        both = [os.fork() or _leave(one.do, here), os.fork() or _leave(rival.do, here)]
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in both]
        found["times"] += 1
        found["refused"] += ends.count(3)
        forked(done_again, one, here)
        again = forked(done_again, rival, here)
        if set(ends) - {0, 3} or 0 not in ends or again is None or again.get("outcome") != calm.outcome:
            found["wrong"].append([ends, again])
        if inputs(here, one) != calm.inputs or any(left(here, calm.names)):
            found["wrong"].append([ends, *left(here, calm.names)])
        shutil.rmtree(here)
    return found


def _leave(do, here):
    """Do it and end this process: 0 for done, 3 for refused because another is at it, 4 for anything else."""
    code = 4
    try:
        do(here)
        code = 0
    except ArchiveBusyError:
        code = 3
    except FileExistsError as error:
        code = 3 if "exists already" in str(error) else 4
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def warm_up():
    """Load what is compiled before the forks; nothing here may start a thread, which a fork would not have."""
    moments = rg.Moments.of(rows(0)).merge(rg.Moments.of(rows(1)))
    make_result(moments, rg.select(moments, 2, lam=1.0))


def main(folder, every, times, names):
    """Kill all, or every so-many-th; where all, a second time too."""
    merge_tree.SAVE_ROWS = 128
    warm_up()
    writer.CHUNK_BYTES = 200 * COLUMNS
    template = folder / "template"
    template.mkdir()
    made = forked(prepare, template)
    assert made is None or "error" not in made, made
    content = {}
    for name in names or TRIES:
        content[name] = attacked(name, template, folder, every, every == 1)
        content[name]["at once"] = at_once(name, template, folder, times) if times else {"times": 0, "wrong": []}
    print(json.dumps(content))


if __name__ == "__main__":
    with suppress(BrokenPipeError):
        main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:])
