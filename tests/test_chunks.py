"""Chunks decoded into their place: the same rows as Zarr's own reading, whatever the layout, and no damage unseen."""

import os
import pickle
import sys

import numcodecs
import numpy as np
import pytest
import zarr
import zarr.codecs.numcodecs
from hypothesis import given
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, TransposeCodec, ZstdCodec
from zarr.storage import LocalStore, MemoryStore, WrapperStore

import rgcss_dask as rg
from rgcss_dask.sources.base import Reading
from rgcss_dask.sources.decoding_limits import declared_size
from rgcss_dask.sources.guarded_stores import MissingChunkError
from rgcss_dask.sources.row_chunks import RowChunks
from rgcss_dask.sources.zarr import DamagedChunkError, ZarrSource

ROWS, COLUMNS, HEIGHT = 103, 7, 10
BIG, LITTLE = {"serializer": BytesCodec(endian="big")}, {"serializer": BytesCodec(endian="little")}
# How a chunk is stored, and whether it is decoded into its place.
LAYOUTS = {
    "zstd": ({"compressors": [ZstdCodec(level=1), Crc32cCodec()]}, True),
    "default": ({}, True),
    "checked twice": ({"compressors": [ZstdCodec(), Crc32cCodec(), Crc32cCodec()]}, True),
    "compressed twice": ({"compressors": [ZstdCodec(), BloscCodec()]}, True),
    "blosc": ({"compressors": [BloscCodec(cname="lz4")]}, True),
    "little": (LITTLE, True),
    "checked first": ({"compressors": [Crc32cCodec(), ZstdCodec()]}, False),
    "gzip": ({"compressors": [GzipCodec()]}, False),
    "plain": ({"compressors": None}, True),
    "big": (BIG, False),
    "transposed": ({"filters": [TransposeCodec(order=(1, 0))]}, False),
    "columns apart": ({"chunks": (HEIGHT, 3)}, False),
    "wider chunks": ({"chunks": (HEIGHT, COLUMNS + 1)}, False),
    "sharded": ({"chunks": (5, COLUMNS), "shards": (HEIGHT, COLUMNS)}, False),
    "2, plain": ({"zarr_format": 2, "compressors": None}, True),
    "2, zstd": ({"zarr_format": 2, "compressors": numcodecs.Zstd()}, True),
    "2, blosc": ({"zarr_format": 2, "compressors": numcodecs.Blosc()}, True),
    "2, zlib": ({"zarr_format": 2, "compressors": numcodecs.Zlib()}, False),
    "2, by columns": ({"zarr_format": 2, "order": "F"}, False),
    "2, filtered": ({"zarr_format": 2, "filters": [numcodecs.Delta(dtype="f8")]}, False),
    "2, big": ({"zarr_format": 2, "dtype": ">f8"}, False),
}


def stored(store, A, **layout):
    layout = {"shape": A.shape, "chunks": (HEIGHT, A.shape[1]), "dtype": A.dtype} | layout
    array = zarr.create_array(store, **layout)
    array[:] = A
    return array


@pytest.mark.parametrize("where", ["folder", "memory"])
@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_are_those_that_zarr_reads(name, where, tmp_path):
    layout, direct = LAYOUTS[name]
    A = np.random.default_rng(0).integers(-99, 99, (ROWS, COLUMNS)).astype(float)  # so that differences are exact
    array = stored(tmp_path / "a.zarr" if where == "folder" else MemoryStore(), A, **layout)
    chunks = RowChunks(array, str(tmp_path / "a.zarr") if where == "folder" else None)
    # Of other stores Zarr reads what needs no decoding.
    assert bool(chunks._decoders) == (direct and (where == "folder" or layout.get("compressors", "") is not None))
    for start, stop in ((0, ROWS), (0, 10), (3, 8), (3, 41), (20, 40), (95, 103), (100, 103), (10, 100)):
        rows = np.full((stop - start, COLUMNS), np.nan)
        chunks.read_into(rows, start)
        np.testing.assert_array_equal(rows, A[start:stop])


DTYPES = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
# For each format of Zarr the codecs, and whether a chunk of whole rows is then decoded into its place.
CODECS = {
    3: {
        "none": (None, True),
        "gzip": (GzipCodec(), False),
        "zstd": (ZstdCodec(), True),
        "blosc": (BloscCodec(), True),
        "zstd and checksum": ([ZstdCodec(), Crc32cCodec()], True),
        "default": ("auto", True),
    },
    2: {
        "none": (None, True),
        "zlib": (numcodecs.Zlib(), False),
        "zstd": (numcodecs.Zstd(), True),
        "blosc": (numcodecs.Blosc(), True),
        "default": ("auto", True),
    },
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("version", "codec", "shards"),  # Zarr 2 has no shards
    [(v, codec, shards) for v in CODECS for codec in CODECS[v] for shards in (None, (2 * HEIGHT, COLUMNS))[: v - 1]],
)
@pytest.mark.parametrize("order", ["little", "big"])
def test_any_kind_of_number_in_any_format(dtype, version, codec, shards, order):
    rng = np.random.default_rng(0)
    A = (rng.integers(0, 100, (ROWS, COLUMNS)) + (rng.random((ROWS, COLUMNS)) if dtype[0] == "f" else 0)).astype(dtype)
    compressors, direct = CODECS[version][codec]
    kept = np.dtype(dtype).newbyteorder(order) if version == 2 else A.dtype
    of_version = {"shards": shards, "serializer": BytesCodec(endian=order)} if version == 3 else {}
    array = stored(MemoryStore(), A, dtype=kept, zarr_format=version, compressors=compressors, **of_version)
    source = ZarrSource(array, "a")
    direct = direct and compressors is not None  # of other stores than folders Zarr reads what needs no decoding
    assert bool(source._chunks._decoders) == (direct and not shards and (order == sys.byteorder or A.itemsize == 1))
    np.testing.assert_array_equal(source.read(3, ROWS), A[3:])
    assert source.read(0, ROWS).dtype == kept
    np.testing.assert_array_equal(rg.scan(array).gram(), rg.Moments.of(A).gram())


def test_an_array_within_a_group_and_after_a_journey(tmp_path):
    A = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    group = zarr.create_group(tmp_path / "g.zarr")
    array = group.create_array("deep/a", data=A, chunks=(HEIGHT, COLUMNS))
    source = pickle.loads(pickle.dumps(ZarrSource(array, "a")))
    np.testing.assert_array_equal(source.read(5, 87), A[5:87])


@given(size=st.integers(0, 70_000), filling=st.integers(0, 255), level=st.sampled_from([-5, 1, 19]))
def test_the_head_of_a_chunk_says_its_size(size, filling, level):
    content = np.full(size, filling, np.uint8)
    for codec in (numcodecs.Zstd(level=level), numcodecs.Zstd(checksum=True), numcodecs.Blosc()):
        assert declared_size(np.frombuffer(codec.encode(content), np.uint8), codec.codec_id) == size


@pytest.mark.parametrize("size", [255, 256, 257, 65_791, 65_792, 65_793, 2**24 + 1])
def test_every_width_of_the_size(size):
    codec = numcodecs.Zstd()
    assert declared_size(np.frombuffer(codec.encode(np.zeros(size, np.uint8)), np.uint8), codec.codec_id) == size


@pytest.mark.parametrize(
    "head",
    [b"", b"\x28\xb5\x2f\xfd", b"no zstd in this", bytes.fromhex("28b52ffd0058"), bytes.fromhex("28b52ffda012")],
    ids=["nothing", "cut off", "another format", "no size", "cut in the size"],
)
def test_a_head_that_says_nothing_is_left_to_zarr(head):
    assert declared_size(np.frombuffer(head, np.uint8), "zstd") is None
    assert declared_size(np.frombuffer(head[:7], np.uint8), "blosc") is None


@pytest.mark.parametrize("where", ["folder", "memory"])
@pytest.mark.parametrize("rows", [HEIGHT - 1, HEIGHT + 1, 0])
@pytest.mark.parametrize("compressor", [ZstdCodec(), BloscCodec()])
def test_a_chunk_of_another_size_is_damage(compressor, rows, where, tmp_path):
    """A decoder fills what it has and leaves the rest as it was: rows of an earlier chunk, in memory used again."""
    A = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    store = LocalStore(tmp_path / "a.zarr") if where == "folder" else MemoryStore()
    source = ZarrSource(stored(store, A, compressors=[compressor]), "a.zarr")
    codec = numcodecs.Zstd() if isinstance(compressor, ZstdCodec) else numcodecs.Blosc()
    _put(store, "c/4/0", codec.encode(A[:rows]))
    with pytest.raises(DamagedChunkError, match=r"a.zarr: chunk c/4/0 \(rows 40 to 49\) cannot be read"):
        source.read(0, ROWS)
    np.testing.assert_array_equal(source.read(0, 40), A[:40])


def _put(store, key, content):
    if isinstance(store, LocalStore):
        (store.root / key).write_bytes(content)
    else:
        store._store_dict[key] = zarr.buffer.cpu.Buffer.from_bytes(content)


def test_a_frame_without_its_size_is_read_all_the_same(tmp_path):
    """Streams that were compressed before their length was known have none in their head."""
    A = np.ones((HEIGHT, COLUMNS))
    source = ZarrSource(stored(tmp_path / "a.zarr", A), "a")
    # Magic, a window of 1 KiB and no size; one last block: 560 times the byte 0 (RFC 8878, 3.1.1.2).
    block = (1 | 1 << 1 | A.nbytes << 3).to_bytes(3, "little")
    _put(LocalStore(tmp_path / "a.zarr"), "c/0/0", bytes.fromhex("28b52ffd0000") + block + b"\x00")
    np.testing.assert_array_equal(source.read(0, HEIGHT), 0 * A)


@pytest.mark.parametrize("missing", ["raise", "fill"])
def test_a_chunk_that_is_not_there(missing, tmp_path):
    A = np.ones((ROWS, COLUMNS))
    array = stored(tmp_path / "a.zarr", A, fill_value=4.0)
    (tmp_path / "a.zarr/c/3/0").unlink()
    source = ZarrSource(array, "a.zarr", missing)
    if missing == "raise":
        with pytest.raises(MissingChunkError, match=r"no chunk c/3/0 \(rows 30 to 39\)"):
            source.read(0, ROWS)
    else:
        A[30:40] = 4.0
        np.testing.assert_array_equal(source.read(0, ROWS), A)


class Mirrored(WrapperStore):
    """A store of the user's own making."""

    async def get(self, key, prototype, byte_range=None):
        return await super().get(key.replace("c/0/", "c/1/"), prototype, byte_range)


def test_what_a_user_wraps_around_a_store_is_asked(tmp_path):
    A = np.arange(20.0)[:, None] * np.ones(3)
    stored(tmp_path / "a.zarr", A)
    array = zarr.open_array(Mirrored(LocalStore(tmp_path / "a.zarr")), mode="r")
    source = ZarrSource.of(array, Reading())
    np.testing.assert_array_equal(source.read(0, 20), np.vstack([A[10:], A[10:]]))


def test_memory_used_again_keeps_nothing_of_earlier_rows(tmp_path):
    """Chunks that shrink and grow, in a pass whose blocks of memory go from one to the next."""
    rng = np.random.default_rng(0)
    A = rng.integers(0, 256, (160_000, 100), dtype=np.uint8)
    A[40_000:80_000] = 7  # a few bytes when compressed, among others that are as many as before
    zarr.create_array(tmp_path / "a.zarr", data=A, chunks=(20_000, 100))  # 2 MB: smaller ones have no block
    assert np.array_equal(rg.scan(tmp_path / "a.zarr").gram(), rg.Moments.of(A).gram())


@pytest.mark.parametrize("where", ["folder", "memory"])
@pytest.mark.parametrize("chunk", [4, 5], ids=["whole", "the last rows"])
@pytest.mark.parametrize("width", [100, 60], ids=["rows", "columns apart"])
@pytest.mark.parametrize("name", ["zstd", "blosc", "zstd in blosc", "2, blosc"])
def test_a_chunk_that_was_cut_off_is_damage(name, width, chunk, where, tmp_path):
    """Blosc would go on in the memory after it, where an earlier chunk was."""
    codecs = {"zstd": [ZstdCodec()], "blosc": [BloscCodec()], "zstd in blosc": [ZstdCodec(), BloscCodec()]}
    two = {"zarr_format": 2, "compressors": numcodecs.Blosc()}
    layout = two if name.startswith("2") else {"compressors": codecs[name]}
    A = np.random.default_rng(0).integers(0, 4, (108_000, 100), dtype=np.uint8)  # compresses
    store = LocalStore(tmp_path / "a.zarr") if where == "folder" else MemoryStore()
    array = stored(store, A, chunks=(20_000, width), **layout)
    key = f"{chunk}.0" if name.startswith("2") else f"c/{chunk}/0"
    content = (tmp_path / "a.zarr" / key).read_bytes() if where == "folder" else store._store_dict[key].as_numpy_array()
    for share in (0.0, 0.001, 0.3, 0.9, 0.999):
        _put(store, key, bytes(content[: int(share * len(content))]))
        with pytest.raises(DamagedChunkError, match=f"chunk {key} .* cannot be read"):
            rg.scan(tmp_path / "a.zarr" if where == "folder" else array)


@pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr version 3")
def test_a_chunk_of_blosc_that_is_not_zarrs_own_was_cut_off(tmp_path):
    A = np.random.default_rng(0).integers(0, 4, (40, 100), dtype=np.uint8)
    array = stored(tmp_path / "a.zarr", A, compressors=[zarr.codecs.numcodecs.Blosc()])
    source = ZarrSource(array, "a.zarr")
    np.testing.assert_array_equal(source.read(0, 40), A)
    file = tmp_path / "a.zarr/c/2/0"
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(DamagedChunkError, match="this one is truncated after"):
        source.read(0, 40)


def test_a_chunk_that_is_a_folder_or_below_a_file_is_not_there(tmp_path):
    array = stored(tmp_path / "a.zarr", np.ones((ROWS, COLUMNS)), fill_value=4.0)
    (tmp_path / "a.zarr/c/3/0").unlink()
    (tmp_path / "a.zarr/c/3/0").mkdir()
    (tmp_path / "a.zarr/c/4/0").unlink()
    (tmp_path / "a.zarr/c/4").rmdir()
    (tmp_path / "a.zarr/c/4").write_text("")
    with pytest.raises(MissingChunkError, match="no chunk c/3/0"):
        ZarrSource(array, "a.zarr").read(30, 40)
    with pytest.raises(MissingChunkError, match="no chunk c/4/0"):
        ZarrSource(array, "a.zarr").read(40, 50)
    assert (ZarrSource(array, "a.zarr", "fill").read(20, 60).mean(axis=1) == np.repeat([1, 4, 4, 1], 10)).all()


@pytest.mark.parametrize("limit", [None, 1, 10])
def test_any_number_of_chunks_is_asked_for_at_once(limit):
    A = np.random.default_rng(0).normal(size=(ROWS, COLUMNS))
    source = ZarrSource(stored(MemoryStore(), A), "a")
    with zarr.config.set({"async.concurrency": limit}):
        np.testing.assert_array_equal(source.read(0, ROWS), A)


def test_a_file_that_is_shorter_than_it_said_is_left_to_zarr(tmp_path, monkeypatch):
    """Another process may cut it off meanwhile."""
    array = stored(tmp_path / "a.zarr", np.ones((ROWS, COLUMNS)))
    larger = os.stat_result([0] * 6 + [10_000] + [0] * 3)
    monkeypatch.setattr("rgcss_dask.sources.row_chunks.os.fstat", lambda file: larger)
    assert (ZarrSource(array, "a.zarr").read(0, ROWS) == 1).all()
