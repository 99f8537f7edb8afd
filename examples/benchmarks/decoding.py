"""How fast chunks are decoded, and what becomes of damaged ones: ours, Zarr's default pipeline, and that of zarrs.

    pip install zarrs
    python examples/benchmarks/decoding.py [--rows 200000] [--columns 784] [--repeats 9]

Each way reads all chunks of one local archive on the same number of threads, a chunk a task as a pass does, into memory
that is used again. The ways take turns, and each time is divided by that of our own reader in the same turn, so that a
busy machine shifts both. CPU time is that of the whole process.
"""

import argparse
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import zarr
import zarrs  # noqa: F401 (Zarr finds its pipeline by name)
from zarr.buffer.cpu import NDBuffer
from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec

from rgcss_dask.runtime.cpus import available_cpus
from rgcss_dask.runtime.page_pool import empty_rows, freed_memory_kept
from rgcss_dask.sources.registry import open_source

CHUNK = 4_000
FLIPS = 200
PIPELINES = {
    "zarr": "zarr.core.codec_pipeline.BatchedCodecPipeline",
    "zarrs": "zarrs.ZarrsCodecPipeline",
}
LAYOUTS = {
    "uint8, zstd": ("u1", [ZstdCodec()]),
    "uint8, zstd + crc32c": ("u1", [ZstdCodec(), Crc32cCodec()]),
    "float64, zstd + crc32c": ("f8", [ZstdCodec(), Crc32cCodec()]),
    "float64, blosc lz4": ("f8", [BloscCodec(cname="lz4")]),
    "uint8, gzip": ("u1", [GzipCodec()]),
}
Read = Callable[[int, int], np.ndarray]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--columns", type=int, default=784)
    parser.add_argument("--repeats", type=int, default=9)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rgcss-decoding-"))
    try:
        for name, (dtype, codecs) in LAYOUTS.items():
            rows = options.rows // np.dtype(dtype).itemsize
            measure(name, make_array(folder / name, rows, options.columns, dtype, codecs), options.repeats)
        damages(folder)
    finally:
        shutil.rmtree(folder)


def make_array(path: Path, rows: int, columns: int, dtype: str, codecs: list) -> str:
    rng = np.random.default_rng(0)
    array = zarr.create_array(path, shape=(rows, columns), chunks=(CHUNK, columns), dtype=dtype, compressors=codecs)
    for start in range(0, rows, CHUNK):
        block = rng.integers(0, 256, (min(CHUNK, rows - start), columns), dtype=np.uint8)
        block[rng.random(block.shape) < 0.7] = 0  # most of a picture of a digit is empty
        array[start : start + CHUNK] = block if dtype == "u1" else block + rng.random(block.shape)
    return str(path)


def opened(path: str, pipeline: str) -> zarr.Array:
    with zarr.config.set({"codec_pipeline.path": PIPELINES[pipeline]}):
        return zarr.open_array(path, mode="r")


def reader(array: zarr.Array) -> Read:
    """Read as Zarr lets a pass do it: into memory that is used again."""

    def read(start: int, stop: int) -> np.ndarray:
        rows = empty_rows((stop - start, array.shape[1]), array.dtype)
        array.get_basic_selection(slice(start, stop), out=NDBuffer.from_numpy_array(rows))
        return rows

    return read


def measure(name: str, path: str, repeats: int) -> None:
    ours, threads = open_source(path), available_cpus()
    ways: dict[str, tuple[Read, int, int]] = {
        "ours": (ours.read, threads, CHUNK),
        "zarr": (reader(opened(path, "zarr")), threads, CHUNK),
        "zarrs": (reader(opened(path, "zarrs")), threads, CHUNK),
        "zarrs, its own threads": (reader(opened(path, "zarrs")), 1, 8 * CHUNK),
    }
    rows = ours.shape[0]
    spans = {step: [(i, min(i + step, rows)) for i in range(0, rows, step)] for _, _, step in ways.values()}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(repeats + 1):
        for way, (read, count, step) in ways.items():
            with freed_memory_kept(), ThreadPoolExecutor(count) as pool:
                began, worked = time.perf_counter(), time.process_time()
                sums = list(pool.map(lambda span, read=read: int(read(*span)[0, 0]), spans[step]))
                taken = time.perf_counter() - began, time.process_time() - worked
            assert len(sums) == len(spans[step])
            if turn:  # the first fills caches
                found[way].append(taken)
    print(f"\n{name}, {rows:,} x {ours.shape[1]}, {threads} threads, {repeats} turns: median (least to most)")
    for way, times in found.items():
        words = [f"{way:24s}"]
        for what, i in (("time", 0), ("CPU", 1)):
            ratios = [taken[i] / base[i] for taken, base in zip(times, found["ours"], strict=True)]
            median = statistics.median(taken[i] for taken in times)
            words.append(f"{what} {median:6.3f} s, {statistics.median(ratios):5.2f} times ours")
            words.append(f"({min(ratios):.2f} to {max(ratios):.2f})")
        print("  " + " ".join(words))


def damages(folder: Path) -> None:
    """Say what each way makes of chunks that are not as they were written."""
    print("\nDamaged chunks: what is read, or the error")
    for codecs in ([ZstdCodec()], [ZstdCodec(), Crc32cCodec()], [BloscCodec(cname="lz4")], [GzipCodec()]):
        kind = " + ".join(type(codec).__name__.removesuffix("Codec").lower() for codec in codecs)
        for damage in (missing, cut, bomb):
            path = folder / f"damaged {kind} {damage.__name__}"
            data = np.arange(CHUNK * 20, dtype="f8").reshape(CHUNK, 20) % 97
            array = zarr.create_array(path, shape=data.shape, chunks=data.shape, dtype="f8", compressors=codecs)
            array[:] = data
            damage(path / "c" / "0" / "0", array, codecs)
            for way in ("ours", "zarr", "zarrs"):
                with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as alone:  # its memory is its own
                    words = alone.submit(outcome, str(path), way, data).result()
                print(f"  {kind:16s} {damage.__name__:8s} {way:6s} {words}")
        for way in ("ours", "zarr", "zarrs"):
            print(f"  {kind:16s} {'flipped':8s} {way:6s} {flips(folder / f'damaged {kind} flipped', codecs, way)}")


def flips(path: Path, codecs: list, way: str) -> str:
    """Count what becomes of a chunk with one bit turned, many times over."""
    rng = np.random.default_rng(0)
    data = rng.integers(0, 200, (CHUNK, 20)) / 8
    array = zarr.create_array(path, shape=data.shape, chunks=data.shape, dtype="f8", compressors=codecs, overwrite=True)
    array[:] = data
    file = path / "c" / "0" / "0"
    whole, counts = file.read_bytes(), Counter()
    for at in rng.integers(0, len(whole), FLIPS):
        content = bytearray(whole)
        content[at] ^= 1 << int(rng.integers(8))
        file.write_bytes(content)
        counts[outcome(str(path), way, data).split(":")[0]] += 1
    errors = FLIPS - counts["WRONG"] - counts["the right values"]
    return (
        f"of {FLIPS} flips {errors} are errors, {counts['WRONG']} wrong values, {counts['the right values']} harmless"
    )


def missing(file: Path, array: zarr.Array, codecs: list) -> None:
    file.unlink()


def cut(file: Path, array: zarr.Array, codecs: list) -> None:
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def bomb(file: Path, array: zarr.Array, codecs: list) -> None:
    """Put a chunk of zeros there that is 2,000 times as large as it may be."""
    large = zarr.create_array(
        file.parents[3] / "large", shape=(2000 * CHUNK, 20), chunks=(2000 * CHUNK, 20), dtype="f8", compressors=codecs,
        overwrite=True, config={"write_empty_chunks": True},
    )  # fmt: skip
    large[:] = 0.0
    file.write_bytes((file.parents[3] / "large" / "c" / "0" / "0").read_bytes())


def outcome(path: str, way: str, data: np.ndarray) -> str:
    before = resident_peak()
    try:
        read = open_source(path).read if way == "ours" else reader(opened(path, way))
        rows = read(0, len(data))
        wrong = int((rows != data).sum())
        words = "the right values" if not wrong else f"WRONG: {wrong:,} of {data.size:,} values, and no error"
    except Exception as error:
        words = f"{type(error).__name__}: {' '.join(str(error).split())[:90]}"
    grown = (resident_peak() - before) / 2**20
    return words + (f" [memory grew by {grown:,.0f} MiB]" if grown > 100 else "")


def resident_peak() -> int:
    """Return the most memory this process had so far (Linux)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


if __name__ == "__main__":
    main()
