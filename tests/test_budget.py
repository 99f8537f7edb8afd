"""How much memory a pass may use, when nobody says: what is free, here and in the cgroups of this process."""

import tracemalloc
from types import SimpleNamespace

import numpy as np
import psutil
import pytest

import rgcss_dask as rg
from rgcss_dask import answering
from rgcss_dask.core.resampling import planned_bytes
from rgcss_dask.io.sizes import parse_memory
from rgcss_dask.runtime import memory_limit as budget
from rgcss_dask.runtime.memory_limit import SHARE, default_budget

GB = 10**9


def group(folder, files):
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name).write_text(f"{content}\n")


@pytest.fixture
def free(monkeypatch, tmp_path):
    """The budget of a process whose machine is what the test writes below a folder."""
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GB))
    (tmp_path / "proc/self").mkdir(parents=True)
    groups = budget._free_in_groups
    monkeypatch.setattr(budget, "_free_in_groups", lambda root: groups(tmp_path))
    return tmp_path


def test_without_cgroups_it_is_a_share_of_what_is_free(free):
    assert default_budget() == int(SHARE * (64 * GB))


def test_the_group_of_the_process_counts_and_those_above_it(free):
    (free / "proc/self/cgroup").write_text("0::/slurm/job_7\n")
    group(free / "sys/fs/cgroup/slurm/job_7", {"memory.max": 10 * GB, "memory.current": 2 * GB})
    group(free / "sys/fs/cgroup/slurm", {"memory.max": "max", "memory.current": 30 * GB})
    assert default_budget() == int(SHARE * (8 * GB))
    group(free / "sys/fs/cgroup/slurm", {"memory.max": 33 * GB})
    assert default_budget() == int(SHARE * (3 * GB))


def test_files_that_were_read_do_not_count_as_used(free):
    (free / "proc/self/cgroup").write_text("0::/\n")
    files = {"memory.max": 8 * GB, "memory.current": 7 * GB, "memory.stat": f"anon 1\ninactive_file {6 * GB}"}
    group(free / "sys/fs/cgroup", files)
    assert default_budget() == int(SHARE * (7 * GB))


def test_the_older_kind_of_groups(free):
    (free / "proc/self/cgroup").write_text("5:cpu,cpuacct:/\n4:memory:/docker/abc\n0::/\n")
    files = {
        "memory.limit_in_bytes": 4 * GB,
        "memory.usage_in_bytes": 3 * GB,
        "memory.stat": f"total_inactive_file {GB}",
    }
    group(free / "sys/fs/cgroup/memory/docker/abc", files)
    assert default_budget() == int(SHARE * (2 * GB))


@pytest.mark.parametrize(
    ("text", "size"),
    [
        *(("4e9", 4 * GB), ("4 GB", 4 * GB), ("2GiB", 2**31), ("1.5k", 1500), (7, 7), (4e9, 4 * GB)),
        *((" 4 gbytes ", 4 * GB), ("12 bytes", 12), ("4_000", 4000), ("1e+3 kiB", 1_024_000), ("1Ti", 2**40)),
        *((np.int64(7), 7), (np.float32(8.0), 8), (2**62, 2**62)),
    ],
)
def test_sizes_as_people_write_them(text, size):
    assert parse_memory(text) == size


NO_SIZES = ["1.2.3", "4 apples", "0", "-1", "1e400", True, "", "i"]
NO_SIZES += ["GB", "inf", "nan", "0.5", 0, 2**63, "1e400 GB", None, "4 GB GB"]


@pytest.mark.parametrize("text", NO_SIZES)
def test_other_sizes_are_refused(text):
    with pytest.raises(ValueError, match=r"must be a number of bytes such as 4e9 or '4 GB'; got"):
        parse_memory(text)


@pytest.mark.parametrize("ask", ["select", "cross_validate", "stability", "refine"])
def test_questions_that_take_more_than_there_is_are_refused(ask, monkeypatch):
    A = np.random.default_rng(0).normal(size=(60, 30))
    moments = rg.scan(A, folds=3, groups=4)
    picked = rg.select(moments, k=3)
    question = (lambda: rg.refine(picked, moments)) if ask == "refine" else (lambda: getattr(rg, ask)(moments, k=3))
    monkeypatch.setattr(answering, "WORTH_A_LOOK", 0)
    assert question() is not None
    monkeypatch.setattr(answering, "unused_memory", lambda: 5_000)
    with pytest.raises(MemoryError, match=r"takes .* and 5 kB of memory are free.*take\(columns\)"):
        question()


def peak(question):
    """The most that arrays of a question take at once, in n x n matrices of 400 columns."""
    question()
    tracemalloc.start()
    question()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most / (8 * 400**2)


@pytest.mark.parametrize("exact", [True, False])
def test_a_selection_holds_one_prepared_matrix(exact):
    A = np.random.default_rng(0).integers(0, 256, (500, 400), dtype=np.uint8)
    moments = rg.scan(A if exact else A + 0.5)
    assert moments.exact == exact
    assert peak(lambda: rg.select(moments, k=4, center=True)) < 1.5


def test_resamples_are_within_the_memory_that_was_given():
    A = np.random.default_rng(0).integers(0, 256, (900, 400), dtype=np.uint8)
    moments = rg.scan(A, groups=4)
    for at_once in (1, 3):
        memory = planned_bytes(400, 4, 4, at_once)
        used = peak(lambda memory=memory: rg.stability(moments, 4, center=True, resamples=6, memory=memory))
        assert used * 8 * 400**2 <= memory
