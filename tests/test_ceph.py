"""The same against a real object store: Ceph's RADOS gateway, behind a proxy that fails when told to."""

import dask
import fsspec
import numpy as np
import pytest
from buckets import CHUNKS, PARTS, kill_at_a_checkpoint, put_matrix, set_up_user
from distributed import Client, LocalCluster
from faulty_proxy import FaultyProxy, forget_sessions
from processes import same_bits
from radosgw import KEY, SECRET, Ceph, missing_programs

import rgcss_dask as rg
from rgcss_dask.io.files import LARGE, Folder
from rgcss_dask.io.retry import StoreError

pytestmark = pytest.mark.integration

ROWS, COLUMNS, CHUNK = 131_072, 24, 4_096


@pytest.fixture(scope="module")
def proxy(tmp_path_factory):
    missing = missing_programs()
    if missing:
        pytest.skip(f"needs Ceph; not installed: {', '.join(missing)} (Debian: ceph-mon ceph-osd ceph-common radosgw)")
    with Ceph(tmp_path_factory.mktemp("ceph")) as ceph, FaultyProxy(ceph.address) as proxy:
        yield proxy


@pytest.fixture(scope="module")
def stored(proxy, tmp_path_factory):
    """The matrix in the store and its moments; a user's settings are in the environment."""
    folder = tmp_path_factory.mktemp("local")
    with pytest.MonkeyPatch.context() as patch:
        set_up_user(patch, proxy.url, KEY, SECRET)
        forget_sessions()
        put_matrix(fsspec.filesystem("s3"), folder, ROWS, COLUMNS, CHUNK)
        yield rg.scan(folder / "a.zarr", folds=2)
        forget_sessions()


@pytest.fixture
def wanted(proxy, stored):
    proxy.heal()
    with dask.config.set({"rgcss.store.tries": 4, "rgcss.store.wait": 0.05}):
        yield stored
    proxy.heal()


def test_kills_on_the_way(proxy, wanted, place):
    """A driver killed again and again; what checkpoints have is not read again."""
    for _ in range(2):
        kill_at_a_checkpoint(proxy, f"{place}/m.zarr", after=20)
    same_bits(rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2), wanted)
    assert len(proxy.asked("GET", CHUNKS)) <= 16, "two checkpoints of eight chunks are taken up"
    same_bits(rg.load(f"{place}/m.zarr"), wanted)
    assert not fsspec.filesystem("s3").exists(f"{place}/m.zarr/checkpoints")


@pytest.mark.parametrize("kind", [503, 500, "drop", "truncate", "slow"])
def test_reads_that_fail(proxy, wanted, place, kind):
    """A few failures are passed over; those that never end are an error, and the same call goes on when all is well."""
    options = {"config_kwargs": {"read_timeout": 5}} if kind == "slow" else {}
    proxy.fail(kind, path=CHUNKS + "(3|17|29)/", times=3, seconds=20)
    proxy.fail(kind, path=CHUNKS + "31/", seconds=20, behind=PARTS if kind != "slow" else "")
    with pytest.raises(StoreError, match=r"s3://data/a.zarr/c/31/0 could not be read; tried 4 times"):
        rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2, storage_options=options)
    proxy.heal()
    same_bits(rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2, storage_options=options), wanted)
    assert len(proxy.asked("GET", CHUNKS)) < 32 or kind == "slow"


@pytest.mark.parametrize("kind", [503, "drop", "cut", "lost"])
@pytest.mark.parametrize("path", [PARTS, r"/m\.zarr/v\w+/", r"/m\.zarr/zarr\.json"])
def test_writes_that_fail(proxy, wanted, place, kind, path):
    fault = proxy.fail(kind, method="PUT", path=path, times=3)
    same_bits(rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2), wanted)
    assert fault.done == 3
    same_bits(rg.load(f"{place}/m.zarr"), wanted)


@pytest.mark.parametrize("path", [PARTS, r"/m\.zarr/v\w+/product", r"/m\.zarr/zarr\.json"])
def test_writes_that_never_succeed(proxy, wanted, place, path):
    proxy.fail("cut", method="PUT", path=path)
    with pytest.raises(StoreError, match=rf"{place}/m\.zarr/.* could not be written; tried 4 times"):
        rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2)
    proxy.heal()
    with pytest.raises(FileNotFoundError, match="no finished archive"):
        rg.load(f"{place}/m.zarr")
    same_bits(rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2), wanted)
    same_bits(rg.load(f"{place}/m.zarr"), wanted)


def test_wrong_credentials_and_missing_things(wanted):
    with pytest.raises(
        PermissionError, match=r"s3://data/a\.zarr/\S+ could not be read: access was refused .*SignatureDoesNotMatch"
    ):
        rg.scan("s3://data/a.zarr", storage_options={"key": KEY, "secret": "wrong"})
    with pytest.raises(PermissionError, match=r"access was refused .*InvalidAccessKeyId"):
        rg.scan("s3://data/a.zarr", storage_options={"key": "nobody", "secret": SECRET})
    with pytest.raises(FileNotFoundError, match=r"no Zarr array at s3://data/nothing\.zarr"):
        rg.scan("s3://data/nothing.zarr")


def test_large_objects_go_in_parts_and_a_part_that_fails_goes_again(proxy, wanted, place):
    content = np.random.default_rng(1).bytes(LARGE + 1000)
    folder = Folder(place)
    fault = proxy.fail(503, method="PUT", path="partNumber=2", times=2)
    folder.write("large", content)
    assert fault.done == 2
    assert folder.read("large") == content
    assert len(proxy.asked("PUT", "partNumber=1")) == 1, "parts that are there are not sent again"
    proxy.heal()
    proxy.fail(503, method="PUT", path="partNumber=2")
    with pytest.raises(StoreError, match=r"large \(in parts, each up to 4 times\) could not be written"):
        folder.write("large", content[::-1])
    assert folder.read("large") == content, "the old object is there until the new one is whole"


def test_a_cluster_through_a_bad_line(proxy, wanted, place):
    """Every seventh request or so fails, in any of five ways; the bits are those of a good line."""
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster,
        Client(cluster),
        dask.config.set({"rgcss.store.tries": 10}),
    ):
        for i, kind in enumerate((503, 500, "drop", "truncate", "lost")):
            for after in range(i, 300, 35):
                proxy.fail(kind, after=after, times=1)
        same_bits(rg.scan("s3://data/a.zarr", archive=f"{place}/m.zarr", folds=2), wanted)
        met = [request.kind for request in proxy.log if request.kind is not None]
        assert len(met) >= 10, met
        assert set(met) == {503, 500, "drop", "truncate", "lost"}
    proxy.heal()
    same_bits(rg.load(f"{place}/m.zarr"), wanted)
