"""The commands, end to end: what they print where, what they leave behind, and what they say to mistakes."""

import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import numpy as np
import pytest
import zarr

import rgcss_dask as rg
from rgcss_dask.cli import cli, main

SCRIPT = Path(sys.executable).parent / "rgcss"


def rgcss(*arguments, code=0, cwd=None, **options):
    """Run the installed script through pipes and return what it printed."""
    done = subprocess.run(
        [SCRIPT, *map(str, arguments)], capture_output=True, text=True, cwd=cwd, check=False, **options
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert "\x1b" not in done.stdout + done.stderr  # through a pipe there is neither colour nor a bar
    return done


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a matrix, its moments and a result, made by the commands themselves."""
    folder = tmp_path_factory.mktemp("cli")
    rng = np.random.default_rng(0)
    A = (rng.normal(size=(3000, 5)) @ rng.normal(size=(5, 36)) * 10 + rng.normal(size=(3000, 36)) + 100).astype("u1")
    np.save(folder / "a.npy", A)
    rgcss("convert", "a.npy", "a.zarr", cwd=folder)
    rgcss("scan", "a.zarr", "-o", "m.zarr", "--folds", 4, "--groups", 12, cwd=folder)
    rgcss("select", "m.zarr", "-k", 6, "--center", "-o", "r.json", cwd=folder)
    return folder


def test_moments_are_those_of_the_matrix(folder):
    moments = rg.load(folder / "m.zarr")
    A = np.load(folder / "a.npy").astype(int)
    assert np.array_equal(moments.gram(), A.T @ A)
    assert (len(moments.folds), len(moments.groups)) == (4, 12)


def _three(moments):
    return rg.cross_validate(moments, 3, center=True, fixed_k=True).selection


def test_a_result_is_what_the_library_gives(folder):
    result = rg.load_result(folder / "r.json")
    moments = rg.load(folder / "m.zarr")
    tuned = rg.cross_validate(moments, 6, center=True, fixed_k=True)
    assert list(result.selection.columns) == list(rg.refine(tuned.selection, moments).columns)
    done = rgcss("select", "m.zarr", "-k", 6, "--center", "--no-refine", "--json", cwd=folder)
    assert json.loads(done.stdout)["columns"] == list(tuned.selection.columns)
    done = rgcss("select", "m.zarr", "-k", 3, "--center", "--effort", 8, "--exact", "--json", cwd=folder)
    assert json.loads(done.stdout)["columns"] == list(rg.refine(_three(moments), moments, exact=True).columns)
    assert "8 of 8 more searches made" in done.stderr
    assert "Proved to be the best 3 columns" in done.stderr
    assert result.selection.lam == tuned.lam
    assert result.tuning.folds == 4
    assert result.trust.resamples == 100
    assert result.sentence.startswith("6 of 36 columns keep ")
    assert "principal components would keep" in result.sentence


def test_json_on_stdout_talk_on_stderr(folder):
    done = rgcss("select", "m.zarr", "-k", 4, "--json", cwd=folder)
    content = json.loads(done.stdout)
    assert len(content["columns"]) == 4
    assert "cross-validation" in done.stderr
    several = json.loads(
        rgcss("select", "m.zarr", "-k", 2, "--lam", "0.1,1,10", "--json", "-o", "l.json", cwd=folder).stdout
    )
    assert [one["lambda"] for one in several] == [0.1, 1.0, 10.0]
    assert all((folder / f"l-{lam}.json").exists() for lam in ("0.1", "1", "10"))


def test_defaults_explain_themselves(folder):
    done = rgcss("select", "a.zarr", cwd=folder)
    assert "\n10 of 36 columns keep " in done.stdout
    assert "lambda = 1, because there are no folds to cross-validate with" in done.stderr
    assert "reading it once" in done.stderr


def test_few_rows_are_worked_on_as_they_are(folder):
    np.save(folder / "wide.npy", np.random.default_rng(1).normal(size=(12, 40)) + 5)
    rgcss("convert", "wide.npy", "wide.zarr", cwd=folder)
    done = rgcss(
        "select", "wide.zarr", "-k", 5, "--center", "--scale", "std", "--lam", 0.5, "--json", "-o", "w.json", cwd=folder
    )
    assert "12 rows are fewer than 40 columns" in done.stderr
    X = np.load(folder / "wide.npy")
    picked = rg.select(rg.Moments.of(X), 5, lam=0.5, center=True, scale="std")
    content = json.loads(done.stdout)
    assert content["columns"] == list(picked.columns)
    np.testing.assert_allclose(content["loss"], picked.loss, rtol=1e-9)
    result = rg.load_result(folder / "w.json")
    np.testing.assert_allclose(result.weights, picked.weights(rg.Moments.of(X)), atol=1e-10)
    assert result.spectrum.sum() == pytest.approx(picked.start)


def test_tune_chooses_lambda_and_k(folder):
    done = rgcss("tune", "m.zarr", "-k", 10, "--one-se", "--lams", "1,100,10000", "-o", "t.json", cwd=folder)
    result = rg.load_result(folder / "t.json")
    assert result.k == result.tuning.k <= 10
    assert result.selection.lam in (1.0, 100.0, 10000.0)
    assert "smallest model within a standard error" in done.stderr


def test_inspect_knows_every_kind(folder):
    for name, kind in (("a.zarr", "matrix"), ("m.zarr", "moments"), ("r.json", "result")):
        assert json.loads(rgcss("inspect", name, "--json", cwd=folder).stdout)["kind"] == kind
    assert "moments" in rgcss("inspect", "m.zarr", cwd=folder).stdout


def test_append_and_merge(folder):
    A = np.load(folder / "a.npy")
    grown = zarr.create_array(folder / "grow.zarr", data=A[:2000], chunks=(500, 36))
    rgcss("scan", "grow.zarr", "-o", "grow-m.zarr", cwd=folder)
    grown.resize((3000, 36))
    grown[2000:] = A[2000:]
    rgcss("scan", "grow.zarr", "-o", "grow-m.zarr", "--append", cwd=folder)
    assert np.array_equal(rg.load(folder / "grow-m.zarr").gram(), rg.load(folder / "m.zarr").gram())
    rgcss("merge", "grow-m.zarr", "grow-m.zarr", "-o", "twice.zarr", cwd=folder)
    assert rg.load(folder / "twice.zarr").rows == 6000


def test_report(folder):
    pytest.importorskip("matplotlib")
    rgcss("report", "r.json", "-o", "r.html", "--image-shape", "6x6", "--rows", "a.zarr", cwd=folder)
    page = (folder / "r.html").read_text()
    assert rg.load_result(folder / "r.json").sentence.split(";")[0] in page


def test_report_of_rows_with_chunks_left_out(folder):
    pytest.importorskip("matplotlib")
    zarr.create_array(folder / "gaps.zarr", shape=(3000, 36), chunks=(500, 36), dtype="f8", fill_value=1.0)
    asked = ["report", "r.json", "-o", "gaps.html", "--rows", "gaps.zarr"]
    assert "missing='fill'" in rgcss(*asked, cwd=folder, code=1).stderr
    rgcss(*asked, "--missing", "fill", cwd=folder)
    assert (folder / "gaps.html").exists()


def test_apply_reduces_and_reconstructs(folder):
    rgcss("apply", "r.json", "a.zarr", "-o", "reduced.zarr", cwd=folder)
    rgcss("apply", "r.json", "a.zarr", "-o", "rebuilt.zarr", "--reconstruct", "--dtype", "float64", cwd=folder)
    result = rg.load_result(folder / "r.json")
    A, S = np.load(folder / "a.npy"), result.selection.columns
    assert np.array_equal(zarr.open_array(folder / "reduced.zarr", mode="r")[:], A[:, np.sort(S)])
    X = A - A.mean(axis=0)
    rebuilt = zarr.open_array(folder / "rebuilt.zarr", mode="r")[:]
    np.testing.assert_allclose(
        np.delete(rebuilt - A.mean(axis=0), S, axis=1), np.delete(X[:, S] @ result.weights, S, axis=1), atol=1e-9
    )


def test_workers_give_the_same_bits(folder):
    rgcss("scan", "a.zarr", "-o", "on-workers.zarr", "--workers", 2, cwd=folder)
    assert np.array_equal(rg.load(folder / "on-workers.zarr").product, rg.load(folder / "m.zarr").product)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["select", "nothing.zarr"], 1, "nothing.zarr"),
        (["select", "m.zarr", "--lam", "x"], 2, "neither 'cv' nor numbers"),
        (["select", "m.zarr", "--lam", "-1"], 1, "lam must be a finite number, 0 or more; got -1"),
        (["select", "m.zarr", "-k", "0"], 2, "0 is not in the range"),
        (["select", "m.zarr", "-k", "37"], 1, "k must be a whole number from 1 to 36, the columns that may be picked"),
        (["select", "m.zarr", "--explained", "1.1"], 2, "1.1 is not in the range"),
        (["select", "m.zarr", "--explained", "0.9", "--stop-loss", "0.1"], 1, "Give one of them"),
        (["select", "m.zarr", "--nan", "drop"], 1, "m.zarr holds moments"),
        (["select", "m.zarr", "--scale", "zero"], 2, "neither 'std' nor a number"),
        (["select", "m.zarr", "--scale", "0"], 1, "scale must be positive and finite"),
        (["select", "m.zarr", "--include", "99"], 1, "a column index must be between 0 and 35; got 99"),
        (["select", "m.zarr", "--include", "1", "--exclude", "1"], 1, "both included and excluded"),
        (["select", "m.zarr", "--include", "here"], 1, "column 'here' does not exist"),
        (["tune", "m.zarr", "--lams", "cv"], 2, "numbers separated by commas"),
        (["tune", "plain.zarr", "-k", "5"], 1, "folds"),
        (["scan", "a.zarr"], 2, "Missing option '-o'"),
        (["scan", "a.zarr", "-o", "x.zarr", "--folds", "1"], 1, "folds"),
        (["scan", "a.zarr", "-o", "x.zarr", "--memory", "3 potatoes"], 1, "potatoes"),
        (["scan", "a.zarr", "-o", "x.zarr", "--append"], 1, "x.zarr"),
        (["scan", "a.zarr", "-o", "x.zarr", "--append", "--folds", "3"], 2, "leave out --folds"),
        (["scan", "a.zarr", "-o", "x.zarr", "--append", "--nan", "raise"], 2, "leave out --nan"),
        (["scan", "a.zarr", "-o", "x.zarr", "--workers", "1", "--scheduler", "tcp://127.0.0.1:1"], 2, "give one of"),
        (["scan", "a.zarr", "-o", "m.zarr", "--folds", "7"], 1, "m.zarr"),
        (["merge", "m.zarr", "plain.zarr", "-o", "x.zarr"], 1, "the same number of folds; got 4 and 0"),
        (["report", "nothing.json", "-o", "x.html"], 1, "there is no result at nothing.json"),
        (["report", "broken.json", "-o", "x.html"], 1, "is not a result of `rgcss select`"),
        (["report", "r.json", "-o", "x.html", "--image-shape", "6"], 2, "is not of the form 28x28"),
        (["report", "r.json", "-o", "x.html", "--image-shape", "6x7"], 1, "36"),
        (["inspect", "nothing"], 1, "nothing"),
        (["convert", "a.npy", "a.zarr"], 1, "exists already"),
        (["batch", "nothing.toml"], 1, "nothing.toml"),
        (["dance"], 2, "No such command 'dance'"),
    ],
)
def test_mistakes_are_met_in_one_line_and_leave_nothing(folder, arguments, code, message, monkeypatch, capsys):
    if not (folder / "plain.zarr").exists():
        rgcss("scan", "a.zarr", "-o", "plain.zarr", cwd=folder)
        (folder / "broken.json").write_text("{")
    before = sorted(p.name for p in folder.iterdir())
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "argv", ["rgcss", *arguments])  # in this process: a new one takes seconds to import
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr()
    assert ended.value.code == code, printed.err
    assert message in printed.err
    assert printed.out == ""
    assert len(printed.err.strip().splitlines()) <= (1 if code == 1 else 6), printed.err
    assert sorted(p.name for p in folder.iterdir()) == before


def test_debug_shows_where_an_error_came_from(folder):
    done = subprocess.run(
        [SCRIPT, "--debug", "select", "nothing.zarr"], capture_output=True, text=True, cwd=folder, check=False
    )
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_help_is_quick_and_has_an_example_for_every_command():
    listed = rgcss("--help").stdout
    for name in ("batch", "convert", "demo", "inspect", "merge", "report", "scan", "select", "tune", "apply"):
        assert name in listed
        assert "Example: rgcss" in " ".join(cli.commands[name].help.split()), name
    code = "import sys; import rgcss_dask.cli; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"numpy", "dask", "sklearn", "zarr", "numba", "matplotlib"} & set(loaded)


def test_shell_completion():
    done = rgcss(env={**os.environ, "_RGCSS_COMPLETE": "bash_source"})
    assert "_rgcss_completion" in done.stdout


def test_ctrl_c_while_python_puts_itself_away_is_no_failure():
    code = (
        "import atexit, os, signal, sys\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"  # what is registered first runs last
        "from rgcss_dask.cli import main\n"
        "sys.argv = ['rgcss', '--version']\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_while_the_command_line_is_loaded_ends_in_one_line(tmp_path):
    (tmp_path / "click.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    command = [sys.executable, "-m", "rgcss_dask", "--version"]
    settings = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=settings)
    assert (done.returncode, done.stderr) == (130, "interrupted before the command started.\n")
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"rgcss": "rgcss_dask.__main__:main"}  # the script begins there too


@pytest.mark.parametrize(("ending", "code"), [("KeyboardInterrupt", 130), ("OSError('no room')", 1)])
def test_what_is_cut_off_ends_in_one_line_though_zarr_is_still_busy(ending, code):
    busy = (
        "import sys, time\n"
        "from zarr.core import sync\n"
        "from rgcss_dask import cli\n"
        "def work(*a, **k):\n"
        "    sync._get_loop().call_soon_threadsafe(time.sleep, 1)\n"  # longer than Zarr waits when it closes the loop
        f"    raise {ending}\n"
        "cli.cli.commands['inspect'].callback = work\n"
        "sys.argv = ['rgcss', *sys.argv[1:], 'inspect', 'a.zarr']\n"
        "cli.main()\n"
    )
    done = subprocess.run([sys.executable, "-c", busy], capture_output=True, text=True, check=False)
    assert (done.returncode, len(done.stderr.strip().splitlines())) == (code, 1), done.stderr
    shown = subprocess.run([sys.executable, "-c", busy, "--debug"], capture_output=True, text=True, check=False)
    assert shown.returncode == code
    assert "Cannot close a running event loop" in shown.stderr  # what the first run kept to itself


@pytest.mark.integration
def test_ctrl_c_at_any_moment_and_the_rerun_goes_on(tmp_path):
    """A clean message, nothing half-written passes for whole, and the same command ends with the right bits."""
    A = np.random.default_rng(0).integers(0, 256, (400_000, 300), dtype=np.uint8)
    np.save(tmp_path / "a.npy", A)
    wanted = rg.Moments.of(A)
    clean = 0
    for command, target in (
        (["convert", "a.npy", "a.zarr"], "a.zarr"),
        (["scan", "a.zarr", "-o", "m.zarr", "--folds", "3"], "m.zarr"),
    ):
        for delay in (0.3, 1.2, 1.6, 2.0, 2.4):
            running = subprocess.Popen([SCRIPT, *command], cwd=tmp_path, stderr=subprocess.PIPE, text=True)
            time.sleep(delay)
            running.send_signal(signal.SIGINT)
            message = running.communicate(timeout=60)[1]
            assert running.returncode in (0, 1, 130), message
            if running.returncode == 130:
                clean += 1
                assert "resumes from there" in message
                assert "Traceback" not in message
            if running.returncode == 0:
                break
        if not (tmp_path / target).exists() or target == "m.zarr":
            rgcss(*command, cwd=tmp_path)
    assert clean > 0
    assert np.array_equal(zarr.open_array(tmp_path / "a.zarr", mode="r")[:], A)
    assert np.array_equal(rg.load(tmp_path / "m.zarr").gram(), wanted.gram())


@pytest.mark.integration
def test_a_full_disk_is_an_error_and_leaves_nothing_that_passes_for_whole(tmp_path):
    small = tmp_path / "small"
    small.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", small], check=False).returncode != 0:
        pytest.skip("needs the right to mount a small tmpfs")
    try:
        A = np.random.default_rng(0).normal(size=(3000, 400))
        np.save(tmp_path / "a.npy", A)
        done = rgcss("convert", "a.npy", "small/a.zarr", code=1, cwd=tmp_path)
        assert "No space left" in done.stderr
        assert not (small / "a.zarr").exists()
        rgcss("convert", "a.npy", "a.zarr", cwd=tmp_path)
        subprocess.run(["rm", "-rf", small / "a.zarr.draft"], check=True)
        rgcss("scan", "a.zarr", "-o", "small/m.zarr", "--folds", 3, code=1, cwd=tmp_path)
        with pytest.raises(FileNotFoundError, match="no finished archive"):
            rg.load(small / "m.zarr")
        rgcss("scan", "a.zarr", "-o", "m.zarr", cwd=tmp_path)
        (small / "fill").write_bytes(
            b"0" * (2**21 - sum(p.stat().st_size for p in small.rglob("*") if p.is_file()) - 65536)
        )
        done = rgcss("select", "m.zarr", "-k", 64, "-o", "small/r.json", code=1, cwd=tmp_path)
        assert "No space left" in done.stderr
        assert not (small / "r.json").exists()
    finally:
        subprocess.run(["umount", small], check=True)


@pytest.mark.integration
def test_a_read_only_target_is_an_error_in_one_line(folder, tmp_path):
    sealed = tmp_path / "sealed"
    sealed.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", sealed], check=False).returncode != 0:
        pytest.skip("needs the right to mount a read-only tmpfs")
    try:
        for command in (
            ["convert", "a.npy", sealed / "a.zarr"],
            ["scan", "a.zarr", "-o", sealed / "m.zarr"],
            ["select", "m.zarr", "-k", 2, "--lam", 1, "-o", sealed / "r.json"],
            ["merge", "m.zarr", "m.zarr", "-o", sealed / "m.zarr"],
            ["apply", "r.json", "a.zarr", "-o", sealed / "x.zarr"],
            ["report", "r.json", "-o", sealed / "r.html"],
        ):
            done = rgcss(*command, code=1, cwd=folder)
            assert "Read-only file system" in done.stderr, done.stderr
            assert done.stderr.strip().splitlines()[-1].startswith("error: ")
    finally:
        subprocess.run(["umount", sealed], check=True)
