"""Ceph in a folder: one monitor, one OSD in memory and a RADOS gateway, on loopback ports that the system chose."""

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

PROGRAMS = ("ceph-mon", "ceph-osd", "radosgw", "radosgw-admin", "ceph", "monmaptool")
KEY, SECRET = "rgcss", "rgcss-secret"

CONFIGURATION = """
[global]
fsid = {fsid}
mon host = v2:127.0.0.1:{mon}
public addr = 127.0.0.1
cluster addr = 127.0.0.1
auth cluster required = none
auth service required = none
auth client required = none
ms mon client mode = crc
run dir = {folder}
log file = {folder}/$name.log
admin socket = {folder}/$name.asok
pid file = {folder}/$name.pid
mon data = {folder}/mon
osd data = {folder}/osd
rgw data = {folder}
osd objectstore = memstore
memstore device bytes = 2147483648
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 2
osd crush chooseleaf type = 0
mon allow pool size one = true
mon max pg per osd = 1000
mon data avail crit = 1
osd check max object name len on startup = false
rgw frontends = beast endpoint=127.0.0.1:{rgw}
rgw enable usage log = false
rgw run sync thread = false
rgw enable gc threads = false
rgw enable lc threads = false
rgw enable quota threads = false
"""


def missing_programs():
    """Which of the programs are not installed; some of them live where only root looks."""
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


class Ceph:
    """Use it as a context; `address` is the gateway's host and port."""

    def __init__(self, folder):
        self.folder, self.processes = Path(folder), []

    def __enter__(self):
        mon, rgw = _free_ports(2)
        self.address = ("127.0.0.1", rgw)
        self.config = self.folder / "ceph.conf"
        fsid = str(uuid.uuid4())
        self.config.write_text(CONFIGURATION.format(fsid=fsid, folder=self.folder, mon=mon, rgw=rgw))
        (self.folder / "osd").mkdir()
        try:
            self._start_monitor(fsid, mon)
            self._start_osd()
            self._start("radosgw", "-n", "client.admin")
            self._call(
                "radosgw-admin", "user", "create", "--uid=rgcss", "--display-name=rgcss",
                f"--access-key={KEY}", f"--secret-key={SECRET}",
            )  # fmt: skip
            self._wait_for_gateway()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in reversed(self.processes):
            process.kill()
            process.wait()

    def _start_monitor(self, fsid, port):
        monmap = self.folder / "monmap"
        self._call("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{port}]", monmap)
        self._call("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap)
        self._start("ceph-mon", "-i", "a")

    def _start_osd(self):
        name = str(uuid.uuid4())
        self._call("ceph", "osd", "new", name)
        self._call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", name)
        self._start("ceph-osd", "-i", "0")

    def _start(self, name, *arguments):
        log = (self.folder / f"{name}.out").open("wb")
        with log:
            self.processes.append(subprocess.Popen(self._command(name, arguments, "-f"), stdout=log, stderr=log))

    def _call(self, name, *arguments):
        done = subprocess.run(self._command(name, arguments), capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, f"{name} {arguments}: {done.stderr}"

    def _command(self, name, arguments, *more):
        config = [] if name == "monmaptool" else ["-c", self.config]
        return [shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/sbin"), *config, *more, *map(str, arguments)]

    def _wait_for_gateway(self):
        deadline = time.monotonic() + 300
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.address[1]}", timeout=5).close()
                return
            except (OSError, urllib.error.URLError):
                assert time.monotonic() < deadline, (self.folder / "radosgw.out").read_text()[-2000:]
                time.sleep(0.2)


def _free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
