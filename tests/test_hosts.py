"""Hosts on a network of their own, and cables that are pulled: the same bits, or a clear error and then the same bits.

The hosts are network namespaces that a bridge joins. They share the disk, as hosts with a network file system do.
"""

import os
import re
import shutil
import subprocess
import time

import pytest
from counting import spans_read
from processes import Cluster, Host, end, same_bits, slowness, start, stored_rows, wait_for_reads, wait_until

import rgcss_dask as rg

pytestmark = pytest.mark.integration

PAUSE = 1.0  # seconds a read takes, so that the pass outlasts what is done to it
SILENCE = 11  # seconds until a connection without an answer is given up: the least that Dask allows
LIMITS = {"COMM__TIMEOUTS__TCP": SILENCE, "COMM__TIMEOUTS__CONNECT": 5, "SCHEDULER__WORKER_TTL": SILENCE}
NAMES = ("scheduler", "w0", "w1", "client")


class Network:
    """Namespaces joined by a bridge in one more of them; nothing is seen of it outside."""

    def __init__(self, names):
        self._names, self.hosts = names, {}
        self._hub = self._space("hub")

    def __enter__(self):
        try:
            self._ip("netns", "add", self._hub)
            self._in(self._hub, "link", "add", "br0", "type", "bridge")
            self._in(self._hub, "link", "set", "br0", "up")
            for number, name in enumerate(self._names, start=1):
                self._add(name, f"10.77.0.{number}")
        except (OSError, subprocess.CalledProcessError) as error:
            self.__exit__()
            reason = getattr(error, "stderr", None) or error
            pytest.skip(f"needs to make network namespaces (root, ip, bridges): {reason}")
        return self

    def _add(self, name, address):
        space = self._space(name)
        self._ip("netns", "add", space)
        self._in(self._hub, "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", space)
        self._in(self._hub, "link", "set", name, "master", "br0", "up")
        self._in(space, "address", "add", f"{address}/24", "dev", "eth0")
        for link in ("lo", "eth0"):
            self._in(space, "link", "set", link, "up")
        self.hosts[name] = Host(address, ("ip", "netns", "exec", space))

    def cut(self, name):
        """Pull the cable at the other end: the host sees that nothing arrives, no more."""
        self._in(self._hub, "link", "set", name, "down")

    def mend(self, name):
        self._in(self._hub, "link", "set", name, "up")

    def _space(self, name):
        return f"rgcss-{os.getpid()}-{name}"

    def _ip(self, *arguments):
        subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)

    def _in(self, space, *arguments):
        self._ip("-netns", space, *arguments)

    def __exit__(self, *_):
        for name in ("hub", *self._names):
            subprocess.run(["ip", "netns", "delete", self._space(name)], capture_output=True, check=False)


@pytest.fixture(scope="module")
def network():
    if shutil.which("ip") is None:
        pytest.skip("needs ip, of the package iproute2")
    with Network(NAMES) as network:
        yield network


@pytest.fixture(scope="module")
def cluster(network, tmp_path_factory):
    folder, hosts = tmp_path_factory.mktemp("cluster"), network.hosts
    with Cluster(folder, hosts["scheduler"], [hosts["w0"], hosts["w1"]], limits=LIMITS) as cluster:
        wait_until(lambda: joined(cluster, "w0") and joined(cluster, "w1"), lambda: "workers missing")
        yield cluster


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return stored_rows(tmp_path_factory.mktemp("data"), "float64")


def joined(cluster, name):
    """How often the scheduler has taken on a worker."""
    return cluster.scheduler.said(f"name: {name}\n")


class Driver:
    """The process of a user: on the host of the client, the same call each time it is started."""

    def __init__(self, network, cluster, data, folder):
        self._network, self._cluster, self._data = network, cluster, data
        self.log, self.archive, self.output = (folder / name for name in ("log", "m.zarr", "output"))

    def start(self):
        where = self._network.hosts["client"].prefix
        arguments = (self._data[0], self.log, self.archive, PAUSE, self._cluster.address)
        self.process = start("counting.py", *arguments, prefix=where, settings=self._cluster.settings, log=self.output)

    def wait_for_more_reads(self, count):
        wait_for_reads(self.log, spans_read(self.log)[0] + count)

    def errors(self):
        """What ended the process."""
        return re.findall(r"^ended by (.*)", self.output.read_text(), re.MULTILINE)

    def assert_same_bits(self):
        assert self.process.wait(60 * slowness()) == 0, self.errors()
        same_bits(rg.load(self.archive), self._data[1])


@pytest.fixture
def driver(network, cluster, data, tmp_path):
    driver = Driver(network, cluster, data, tmp_path)
    driver.start()
    yield driver
    end([driver.process])


def test_short_cuts_are_not_even_noticed(network, cluster, driver):
    exits = [worker.said(worker.AGAIN) for worker in cluster.workers]
    for name in ("w0", "client", "scheduler"):
        driver.wait_for_more_reads(2)
        network.cut(name)
        time.sleep(SILENCE / 5)
        network.mend(name)
    driver.assert_same_bits()
    begun, different = spans_read(driver.log)
    assert begun == different, "no span was read twice"
    assert [worker.said(worker.AGAIN) for worker in cluster.workers] == exits


def test_a_worker_that_is_cut_off(network, cluster, driver):
    """Its spans are read elsewhere. It exits for good, its nanny too; the supervisor brings it back."""
    worker, before = cluster.workers[1], joined(cluster, "w1")
    exits = worker.said(worker.AGAIN)
    driver.wait_for_more_reads(6)
    network.cut("w1")
    try:
        driver.assert_same_bits()
        begun, different = spans_read(driver.log)
        print(f"worker cut off: {begun - different} of {different} spans read again")
        assert begun - different <= 1, "one was in flight"
        wait_until(lambda: worker.said(worker.AGAIN) > exits, lambda: "the worker lives on", 30)
    finally:
        network.mend("w1")
    wait_until(lambda: joined(cluster, "w1") > before, lambda: "the worker did not come back")


def test_a_client_that_is_cut_off(network, driver):
    """It says so; the same call later goes on from the checkpoints."""
    driver.wait_for_more_reads(6)
    network.cut("client")
    try:
        assert driver.process.wait(60 * slowness()) == 1
    finally:
        network.mend("client")
    (error,) = driver.errors()
    assert re.match("ConnectionError: the Dask scheduler was lost .* make the same call", error)
    driver.start()
    driver.assert_same_bits()
    begun, different = spans_read(driver.log)
    print(f"client cut off: {begun - different} of {different} spans read again")
    assert begun - different <= 2, "each of the two workers had one in flight"
