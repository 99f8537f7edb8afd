"""Sums of integers are those integers: by instructions that multiply bytes or without, the same bits."""

import hashlib
import os
import subprocess
import sys
import zlib
from concurrent.futures import ThreadPoolExecutor
from importlib import metadata

import numpy as np
import pytest
import scipy.sparse
import zarr
from distributed import Client, LocalCluster
from hypothesis import given, settings
from hypothesis import strategies as st

import rgcss_dask as rg
from rgcss_dask.archive.archive import folder_of, require
from rgcss_dask.archive.checkpoints import Checkpoints
from rgcss_dask.core import integers, triangle
from rgcss_dask.core.accumulate import Accumulator, buffer_bytes
from rgcss_dask.core.moments import Moments
from rgcss_dask.core.partial_sums import PartialSums, Read
from rgcss_dask.io.files import Folder
from rgcss_dask.runtime import integer_products

EIGHT_BITS = ("uint8", "int8", "bool")
WIDER = ("uint16", "int16", "int32", "uint32", "int64", "float16", "float32", "float64")
HERE = pytest.mark.skipif(
    integer_products.byte_products() is None, reason=f"integer products: {integer_products.in_words()}"
)


@pytest.fixture
def hidden(monkeypatch):
    """Return a function that calls another where the library is not there."""

    def call(function, *arguments, **options):
        with monkeypatch.context() as patch:
            patch.setattr(integers, "byte_products", lambda: None)
            return function(*arguments, **options)

    return call


def python_gram(A, w=None):
    """Sums of products by Python's own integers, which have any number of digits."""
    rows = [[int(x) for x in row] for row in A]
    weights = [1] * len(rows) if w is None else [int(x) for x in w]
    n = range(A.shape[1])
    return [[sum(v * row[i] * row[j] for v, row in zip(weights, rows, strict=True)) for j in n] for i in n]


def numbers(moments):
    """All bits of moments."""
    parts = [moments, *moments.folds, *moments.groups]
    return [
        (p.rows, p.weight, p.exact, *(getattr(p, a).tobytes() for a in ("shift", "total", "product"))) for p in parts
    ]


def values_of(dtype):
    """Extremes of a type, as far as they are taken for small integers."""
    if dtype == "bool":
        return 0, 1
    if dtype == "float16":  # larger ones are not all there
        return -2048, 2048
    if np.dtype(dtype).kind == "f":
        return -integers.LARGEST // 2, integers.LARGEST // 2
    info = np.iinfo(dtype)
    return (0, 65535) if info.min == 0 and info.bits > 8 else (max(info.min, -32768), min(info.max, 32767))


@pytest.mark.parametrize("dtype", EIGHT_BITS + WIDER)
@pytest.mark.parametrize("pattern", ["least", "most", "alternating", "one of each"])
def test_extremes_are_exact(dtype, pattern, hidden):
    least, most = values_of(dtype)
    A = np.full((5_000, 3), least if pattern == "least" else most, dtype)  # more rows than are added at once
    if pattern == "alternating":
        A[::2], A[1::3, 1] = least, least
    if pattern == "one of each":
        A[-1] = least
    got = Moments.of(A)
    assert got.exact
    assert got.gram().tolist() == python_gram(A)
    assert numbers(got) == numbers(hidden(Moments.of, A))


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_geometry_is_exact(data):
    dtype = np.dtype(data.draw(st.sampled_from(EIGHT_BITS + WIDER)))
    m, n = data.draw(st.integers(1, 70)), data.draw(st.sampled_from([1, 2, 3, 63, 255, 256, 257, 300]))
    least, most = sorted(data.draw(st.integers(*values_of(dtype.name))) for _ in range(2))
    A = np.random.default_rng(m * n).integers(least, most + 1, (m, n)).astype(dtype)
    layout = data.draw(st.sampled_from(["rows", "columns", "every other", "swapped"]))
    A = {
        "rows": A,
        "columns": np.asfortranarray(A),
        "every other": np.repeat(A, 2, axis=1)[:, ::2],
        "swapped": A.astype(dtype.newbyteorder("S")),
    }[layout]
    weights = data.draw(st.sampled_from([None, np.arange(m)])) if m > 1 else None
    accumulator = Accumulator(n, A.dtype, threads=data.draw(st.sampled_from([1, 3])))
    accumulator.add(A, weights)
    got = Moments(*accumulator.numbers())
    whole = A.astype(np.int64)  # every sum is below 2^63
    assert got.exact
    assert np.array_equal(got.gram(), whole.T @ (whole if weights is None else whole * weights[:, None]))


@HERE
@pytest.mark.parametrize(("dtype", "words"), [("uint8", "oneDNN"), ("int32", "oneDNN"), ("float64", "float64")])
def test_an_archive_says_by_what_its_products_were_made(tmp_path, dtype, words):
    A = np.random.default_rng(0).normal(size=(50, 4)) if dtype == "float64" else np.ones((50, 4), dtype)
    rg.scan(A, archive=tmp_path / "m.zarr")
    assert f"scanned rows 0 to 50, products by {words}" in require(folder_of(tmp_path / "m.zarr")).history[0]


def test_folds_groups_weights_and_masks_have_the_same_bits(tmp_path, hidden):
    rng = np.random.default_rng(1)
    for dtype, most in (("uint8", 256), ("uint16", 65_536), ("int32", 300)):
        A = rng.integers(0, most, (9_000, 20)).astype(dtype)
        array = zarr.create_array(tmp_path / f"{dtype}.zarr", data=A, chunks=(1_000, 20))
        for options in (
            {"folds": 3, "groups": 4},
            {"weights": rng.integers(0, 5, len(A))},
            {"rows": 0.5, "folds": 2},
            {"rows": rng.random(len(A)) < 0.3},
        ):
            got = rg.scan(array, **options)
            assert got.exact
            assert numbers(got) == numbers(hidden(rg.scan, array, **options))


SCAN = """
import hashlib, sys
import rgcss_dask as rg
from rgcss_dask.runtime import integer_products
moments = rg.scan(sys.argv[1], archive=sys.argv[2])
print(hashlib.sha256(moments.product.tobytes() + moments.total.tobytes()).hexdigest(), integer_products.in_words())
"""


@HERE
@pytest.mark.parametrize("instructions", ["AVX2", "AVX512_CORE"])
def test_a_processor_without_the_instructions_has_the_same_bits(tmp_path, instructions):
    """Bytes are added up in 16 bits there, which overflow: tried with the library's own switch."""
    A = np.random.default_rng(2).choice(np.array([0, 255], np.uint8), (3_000, 30))
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(500, 30))
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": instructions}
    command = [sys.executable, "-c", SCAN, str(tmp_path / "a.zarr"), str(tmp_path / "m.zarr")]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout
    here = rg.scan(tmp_path / "a.zarr")
    assert said.split()[0] == hashlib.sha256(here.product.tobytes() + here.total.tobytes()).hexdigest()
    assert "has no instructions for byte products in 32 bits" in said
    record = require(folder_of(tmp_path / "m.zarr"))
    assert "products by float32" in record.history[0]
    # Another processor, the same pass: nothing is scanned again.
    assert numbers(rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr")) == numbers(here)
    assert require(folder_of(tmp_path / "m.zarr")) == record


@HERE
@pytest.mark.integration
def test_workers_without_the_instructions_have_the_same_bits(tmp_path):
    A = np.random.default_rng(3).integers(0, 256, (40_000, 24), dtype=np.uint8)
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(1_000, 24))
    environment = {"ONEDNN_MAX_CPU_ISA": "AVX2"}
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=":0", env=environment) as cluster,
        Client(cluster),
    ):
        rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr")
    assert "products by float32" in require(folder_of(tmp_path / "m.zarr")).history[0]
    assert numbers(rg.load(tmp_path / "m.zarr")) == numbers(rg.scan(tmp_path / "a.zarr"))


def test_a_pass_goes_on_by_other_products_with_the_same_bits(tmp_path, hidden, monkeypatch):
    A = np.random.default_rng(4).integers(0, 256, (100_000, 24), dtype=np.uint8)
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(1_000, 24))
    saved, enough = [], RuntimeError("killed")

    def save(self, name, parts, keep=Checkpoints.save):
        keep(self, name, parts)
        saved.append(name)
        raise enough

    with monkeypatch.context() as patch:
        patch.setattr(Checkpoints, "save", save)
        with pytest.raises(RuntimeError, match="killed"):
            rg.scan(tmp_path / "a.zarr", archive=tmp_path / "m.zarr")
    assert saved
    got = hidden(rg.scan, tmp_path / "a.zarr", archive=tmp_path / "m.zarr")
    assert numbers(got) == numbers(rg.scan(tmp_path / "a.zarr"))
    history = require(folder_of(tmp_path / "m.zarr")).history[0]
    assert "float32" in history
    assert integer_products.byte_products() is None or "oneDNN" in history


def test_checkpoints_of_earlier_versions_are_read(tmp_path):
    there = Checkpoints(Folder(str(tmp_path)))
    reads = (Read(0, 10, 7, 0, ("float32",)), Read(10, 20, 8))
    there.save("0-20", PartialSums({}, reads))
    assert there.load("0-20").reads == reads
    line = b'{"format": 2, "crc": 0, "reads": [[0, 10, 7, 0]], "sums": []}'
    there.folder.write("0-10.part", f"{zlib.crc32(line):08x} ".encode() + line + b"\n")
    assert there.load("0-10").reads == (Read(0, 10, 7),)


# --- where integers end


@pytest.mark.parametrize("dtype", ["uint16", "int32", "float64"])
def test_beyond_what_is_exact_the_spread_is_still_right(dtype):
    """Squares about zero add up to more than float64 holds; about the mean they are small."""
    A = np.full((20_000, 3), 65_535).astype(dtype)
    A[::2, 0], A[::4, 1] = 65_533, 65_531
    w = np.full(len(A), 110)
    got = Moments.of(A, w)
    assert not got.exact
    np.testing.assert_allclose(np.diagonal(got.scatter), [2.2e6 * 1, 2.2e6 * 3, 0], rtol=1e-12)
    half = Moments.of(A, w // 2)
    assert half.exact
    merged = half.merge(half)
    assert not merged.exact
    np.testing.assert_allclose(np.diagonal(merged.scatter), np.diagonal(got.scatter), rtol=1e-12)


@pytest.mark.parametrize(
    "last",
    [
        np.array([[70_000, 1]]),
        np.array([[-70_000, 1]]),
        np.array([[0.5, 1.0]]),
        np.array([[2.0**60, 1.0]]),
    ],
)
def test_what_is_no_small_integer_ends_the_exact_sums(last):
    A = np.full((300, 2), 60_000).astype(last.dtype)
    A[::2, 1] += 1
    accumulator = Accumulator(2, A.dtype)
    for block in (A, last, A):
        accumulator.add(block)
    got = Moments(*accumulator.numbers())
    assert not got.exact
    rows = np.vstack([A, last, A]).astype(np.longdouble)
    centred = rows - rows.mean(axis=0)
    np.testing.assert_allclose(got.scatter, (centred.T @ centred).astype(float), rtol=1e-12, atol=1e-9)


def test_a_gap_among_whole_numbers_is_found():
    A = np.ones((20, 3), np.float32)
    A[7, 2] = np.nan
    with pytest.raises(ValueError, match="row 7, column 2 holds nan"):
        Moments.of(A)
    A[7, 2] = np.inf
    with pytest.raises(ValueError, match="row 7, column 2 holds inf"):
        Moments.of(A)


@pytest.mark.parametrize("density", [0.01, 0.4])
def test_sparse_counts_are_exact(density, hidden):
    rows = scipy.sparse.random(3_000, 60, density, "csr", np.float32, np.random.default_rng(5))
    rows.data = np.ceil(rows.data * 40).astype(np.float32)
    got = rg.scan(rows)
    assert got.exact
    assert np.array_equal(got.gram(), rows.toarray().astype(int).T @ rows.toarray().astype(int))
    assert numbers(got) == numbers(hidden(rg.scan, rows))


# --- the library


@HERE
def test_products_start_no_threads_and_may_be_made_by_many_at_once():
    """OpenMP would take four for each thread that calls."""
    code = """
import os
import threading
import numpy as np
from rgcss_dask.runtime.integer_products import byte_products
products, rng = byte_products(), np.random.default_rng(0)
A, B = rng.integers(0, 256, (4_000, 256), dtype=np.uint8), rng.integers(-128, 128, (4_000, 700), dtype=np.int8)
right = A.astype(float).T @ B
found = [np.empty((256, 700), np.int32) for _ in range(3)]
before, done, counted = len(os.listdir("/proc/self/task")), threading.Barrier(4), threading.Event()
def work(out):
    for _ in range(5):
        products.multiply(A, B, out)
    done.wait()
    counted.wait()
threads = [threading.Thread(target=work, args=(out,)) for out in found]
for thread in threads: thread.start()
done.wait()
print(len(os.listdir("/proc/self/task")) - before)
counted.set()
for thread in threads: thread.join()
assert all(np.array_equal(out, right) for out in found)
"""
    environment = {**os.environ, "OMP_NUM_THREADS": "4", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-c", code]
    said = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True).stdout
    assert said.split() == ["3"], "those that call, and no others"


@HERE
def test_threads_with_pieces_of_their_own_get_their_own_sums():
    blocks = [np.random.default_rng(i).integers(0, 65_536, (500, 90), dtype=np.uint16) for i in range(6)]
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(Moments.of, blocks))
    for A, got in zip(blocks, found, strict=True):
        assert np.array_equal(got.gram(), A.astype(np.int64).T @ A.astype(np.int64))


@HERE
def test_a_library_that_cannot_be_loaded_is_told(monkeypatch):
    file = next(file for file in metadata.files(integer_products.PACKAGE) if file.name.startswith("METADATA"))
    monkeypatch.setattr(integer_products, "LIBRARY", file.name)
    with pytest.warns(RuntimeWarning, match=r"cannot be used: .*file too short|invalid ELF header"):
        products, words = integer_products._found.__wrapped__()
    assert products is None
    assert words.startswith("none: ")


def test_a_package_that_is_not_installed_is_said(monkeypatch):
    monkeypatch.setattr(integer_products, "PACKAGE", "no-such-package")
    products, words = integer_products._found.__wrapped__()
    assert products is None
    assert "pip install 'rgcss-dask[integer]'" in words


@HERE
def test_the_library_is_asked_how_it_adds_up(monkeypatch):
    """Even if the processor is said to have the instructions."""
    monkeypatch.setattr(integer_products.ByteProducts, "is_exact", lambda self: False)
    assert integer_products._found.__wrapped__() == (None, f"none: {integer_products.in_words()} overflows")


def test_strips_wider_than_a_tile_are_exact():
    A = np.random.default_rng(8).integers(0, 65_536, (5, 4_500), dtype=np.uint16)
    got = Moments.of(A)
    assert np.array_equal(got.product, A.astype(np.int64).T @ A.astype(np.int64))


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
@pytest.mark.parametrize("n", [300, 2_100])
def test_buffers_are_within_what_is_planned(dtype, n, hidden, monkeypatch):
    """All that is asked for besides the sums, whichever way products are made."""
    A = np.random.default_rng(6).integers(0, 256 if dtype == "uint8" else 65_536, (4_200, n)).astype(dtype)
    sizes = []

    def empty_sums(shape, kind=np.float64):
        array = np.empty(shape, kind)
        sizes.append(array.nbytes)
        return array

    for module, name in ((integers, "empty_sums"), (integers, "scratch"), (triangle, "empty_sums")):
        monkeypatch.setattr(module, name, empty_sums)
    planned = buffer_bytes(n, A.dtype, "double", threads=1, shared=False)
    for call in (Moments.of, lambda X: hidden(Moments.of, X)):
        sizes.clear()
        call(A)
        assert 0 < sum(sizes) <= planned


def test_versions_are_shown(capsys):
    rg.show_versions()
    told = capsys.readouterr().out
    for name in ("Python", "numpy", "BLAS", "processor", "threads", integer_products.in_words()):
        assert name in told
