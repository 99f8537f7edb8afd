"""A result comes back from its file as it was, and a file that is something else is refused."""

import base64
import json
import tracemalloc
import zlib
from dataclasses import fields, replace

import numpy as np
import pytest

from rgcss_dask import Moments, load_result, select
from rgcss_dask.archive.result_file import save_result
from rgcss_dask.core import evaluate
from rgcss_dask.core.result import Trust, Tuning, make_result


@pytest.fixture
def result():
    A = np.random.default_rng(0).normal(size=(80, 70)) @ np.diag(np.linspace(0.1, 2, 70)) + 3
    moments = Moments.of(A, names=[f"column {i}" for i in range(70)])
    picked = select(moments, 5, lam=2.0, center=True, scale="std", include=["column 44"], exclude=[1, 2])
    tuning = Tuning(np.array([1.0, 2.0]), np.ones((2, 5)), np.zeros((2, 5)), 4, 2.0, 5, "words")
    trust = Trust(np.linspace(0, 1, 70), 0.5, 0.1, 100, "words")
    return make_result(moments, picked, provenance={"address": "here"}, tuning=tuning, trust=trust)


def equal(a, b):
    if hasattr(a, "__dataclass_fields__"):
        return all(equal(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, np.ndarray):
        return a.dtype == b.dtype and np.array_equal(a, b)
    return a == b


def test_every_bit_comes_back(result, tmp_path):
    save_result(result, tmp_path / "r.json")
    back = load_result(tmp_path / "r.json")
    assert equal(back, result)
    save_result(result, "memory://results/r.json")
    assert equal(load_result("memory://results/r.json"), result)


def test_the_held_out_loss_of_swapped_picks_is_kept_if_there_is_one(result, tmp_path):
    save_result(result, tmp_path / "plain.json")
    assert "swapped" not in json.loads((tmp_path / "plain.json").read_text())["tuning"], "as earlier versions wrote it"
    swapped = replace(result, tuning=replace(result.tuning, swapped=0.25, swapped_error=0.01))
    save_result(swapped, tmp_path / "swapped.json")
    assert equal(load_result(tmp_path / "swapped.json"), swapped)


def test_a_loaded_selection_knows_what_may_be_picked(result, tmp_path):
    save_result(result, tmp_path / "r.json")
    problem = load_result(tmp_path / "r.json").selection.problem
    assert (list(problem.include), list(problem.exclude)) == ([44], [1, 2])


def test_the_numbers_are_those_of_the_selection(result):
    picked = result.selection
    shares = 1 - result.column_loss / result.column_norm
    assert np.all(shares <= 1)
    assert np.delete(result.column_loss, picked.columns).sum() == pytest.approx(picked.loss[-1])
    assert result.spectrum.sum() == pytest.approx(picked.start)
    assert np.all(result.paper_bound <= picked.bound)
    assert np.all(picked.bound <= picked.loss)
    np.testing.assert_allclose(
        result.components_explained,
        evaluate.explained_share(picked.start - np.cumsum(result.spectrum)[:5], picked.start),
    )
    assert result.label(picked.columns[0]) == picked.names[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": 1}', '{"kind": "x", "format": 1}'])
def test_something_else_is_refused(text, tmp_path):
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(ValueError, match=r"is not a result|has kind"):
        load_result(tmp_path / "r.json")


def test_a_result_of_another_format_is_refused(result, tmp_path):
    save_result(result, tmp_path / "r.json")
    content = json.loads((tmp_path / "r.json").read_text())
    (tmp_path / "r.json").write_text(json.dumps({**content, "format": 99}))
    with pytest.raises(ValueError, match=r"format 1 to 3; .* format 99"):
        load_result(tmp_path / "r.json")


def changed(path, change):
    """Change what a file holds, and its checksum too, as somebody with bad intentions would."""
    content = json.loads(path.read_text())
    change(content)
    head = {name: content.pop(name) for name in ("kind", "format", "crc32")}
    crc = zlib.crc32(json.dumps(content, sort_keys=True).encode())
    path.write_text(json.dumps({**head, "crc32": crc, **content}))


def test_a_change_that_its_checksum_does_not_fit(result, tmp_path):
    path = tmp_path / "r.json"
    save_result(result, path)
    path.write_text(path.read_text().replace('"lam": 2.0', '"lam": 3.0', 1))
    with pytest.raises(ValueError, match=r"r\.json is damaged: its checksum is wrong"):
        load_result(path)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda c: c["selection"]["columns"]["array"].__setitem__(0, -1), "between 0 and 70"),
        (lambda c: c["selection"]["columns"]["array"].__setitem__(0, 70), "between 0 and 70"),
        (
            lambda c: c["selection"]["columns"]["array"].__setitem__(0, c["selection"]["columns"]["array"][1]),
            "different",
        ),
        (lambda c: c["selection"]["columns"].update(dtype="<f8"), "whole numbers"),
        (lambda c: c["selection"]["loss"]["array"].pop(), "loss must have shape"),
        (lambda c: c["mean"]["array"].__setitem__(3, float("nan")), "mean must be finite"),
        (lambda c: c["weights"].update(shape=[70, 5]), "weights must have shape"),
        (lambda c: c["weights"].update(shape=[5, 71]), "cannot reshape"),
        (lambda c: c["weights"].update(dtype="|O"), "must hold numbers"),
        (lambda c: c["names"].pop(), "70 names"),
        (lambda c: c["selection"].update(objective="none"), "objective must be"),
        (lambda c: c["selection"].update(lam=-1), "lam must be a number of 0 or more"),
        (lambda c: c["selection"].update(n="70"), "between 0 and 70"),
        (lambda c: c["tuning"]["mean"].update(shape=[5, 2]), "mean must have shape"),
        (lambda c: c.pop("mean"), "mean"),
        (lambda c: c.update(more=1), "more"),
    ],
)
def test_what_no_selection_can_have_made(result, tmp_path, change, reason):
    path = tmp_path / "r.json"
    save_result(result, path)
    changed(path, change)
    with pytest.raises(ValueError, match=rf"r\.json is damaged: .*{reason}"):
        load_result(path)


def test_a_few_bytes_do_not_become_gigabytes(result, tmp_path):
    path = tmp_path / "r.json"
    save_result(result, path)
    bomb = base64.b64encode(zlib.compress(bytes(2**28))).decode()  # 256 MiB
    changed(path, lambda content: content["weights"].update(packed=bomb))
    tracemalloc.start()
    with pytest.raises(ValueError, match=r"cannot reshape|buffer size"):
        load_result(path)
    assert tracemalloc.get_traced_memory()[1] < 2**25
    tracemalloc.stop()


def test_a_result_without_a_checksum_is_still_read(result, tmp_path):
    path = tmp_path / "r.json"
    save_result(result, path)
    content = json.loads(path.read_text())
    del content["crc32"]
    path.write_text(json.dumps({**content, "format": 1}))
    assert equal(load_result(path), result)


def test_no_result_says_how_to_make_one(tmp_path):
    with pytest.raises(FileNotFoundError, match="Create one with `rgcss select"):
        load_result(tmp_path / "r.json")
