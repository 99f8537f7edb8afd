"""The recipes in deploy/ for one machine and for hosts reached by SSH, run as their READMEs say."""

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import time
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
import zarr

import rgcss_dask as rg

pytestmark = pytest.mark.integration

DEPLOY = Path(__file__).parent.parent / "deploy"
BIN = Path(sys.executable).parent
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
LIMIT = 600  # seconds, for a machine with much else to do

# What a recipe does in three ways is to bring up two workers; this is run in the place of `rgcss scan`.
KILL_A_WORKER = """
import os, signal, sys, time
from contextlib import suppress
from distributed import Client

def listening():
    import psutil
    found = set()
    for process in psutil.process_iter(["environ"]):
        if (process.info["environ"] or {}).get("RECIPE") == MARK:
            with suppress(psutil.NoSuchProcess):
                found |= {c.laddr.ip for c in process.net_connections() if c.status == "LISTEN"}
    return sorted(found)

MARK = os.environ["RECIPE"]
with Client(scheduler_file=sys.argv[sys.argv.index("--scheduler-file") + 1], timeout=120) as client:
    client.wait_for_workers(2, timeout=120)
    print("scheme", client.scheduler.address.split(":")[0])
    print("listening", *listening())
    before = client.run(lambda: (os.getpid(), os.getppid()))
    worker, nanny = next(iter(before.values()))
    os.kill(nanny, signal.SIGKILL)  # the nanny first, or it would start another worker itself
    with suppress(ProcessLookupError):  # it ends when its nanny does
        os.kill(worker, signal.SIGKILL)
    while len(after := client.run(lambda: os.getpid(), on_error="ignore")) < 2 or worker in after.values():
        time.sleep(0.2)
    print("workers", len(after))
"""

# The end of a connection. On both sides: the process that serves it is killed. On this side only, as when a cable is
# cut: that process is stopped, so that the host learns nothing, and ssh is told to end as if the line were dead.
CUT_A_CONNECTION = """
import os, sys, time
from contextlib import suppress
import psutil
from distributed import Client

def served(process):
    parent = process.parent()
    return parent is not None and "sshd" in parent.name()

def of_the_worker(kind):
    found = []
    for process in psutil.process_iter(["cmdline", "environ"]):
        words = " ".join(process.info["cmdline"] or ())
        if (process.info["environ"] or {}).get("RECIPE") == os.environ["RECIPE"] and "worker-0.pid" in words:
            with suppress(psutil.NoSuchProcess):
                found += [process] if kind(process) else []
    return found

with Client(scheduler_file=sys.argv[sys.argv.index("--scheduler-file") + 1], timeout=120) as client:
    client.wait_for_workers(2, timeout=120)
    before = set(client.run(os.getpid).values())
    (shell,) = of_the_worker(served)
    session = shell.parent()
    if sys.argv[1] == "both":
        session.kill()
    else:
        (ssh,) = of_the_worker(lambda process: process.name() == "ssh")
        session.suspend()
        ssh.terminate()
    while len(after := set(client.run(os.getpid, on_error="ignore").values())) < 2 or after == before:
        time.sleep(0.2)
    print("workers", len(after), "of them new", len(after - before), "supervised", len(of_the_worker(served)), "times")
"""


def blocks(readme):
    """Return the fenced blocks of a page, in order: what they are in, and their lines."""
    return re.findall(r"^```(bash|text)\n(.*?)^```$", readme.read_text(), re.M | re.S)


def pattern(line):
    """Three dots in a line of output stand for anything."""
    return re.compile("^" + ".*".join(re.escape(part) for part in line.split("...")) + "$", re.M)


@contextmanager
def nothing_left_behind(environment):
    """Mark the processes that a recipe starts; all must be gone in the end."""
    environment["RECIPE"] = mark = uuid.uuid4().hex
    try:
        yield
        deadline = time.monotonic() + 300
        while (left := _marked(mark)) and time.monotonic() < deadline:
            time.sleep(0.1)
        assert not left
    finally:
        _kill_marked(mark)


def _kill_marked(mark):
    for process in _marked(mark):
        with suppress(psutil.NoSuchProcess):
            process.kill()


def _marked(mark):
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("RECIPE") == mark:
                found.append(process)
        except psutil.Error:  # gone, or somebody else's
            continue
    return found


@pytest.fixture
def place(tmp_path):
    """A folder that looks like the top of a checkout, and the environment of somebody who has installed the package."""
    (tmp_path / "deploy").symlink_to(DEPLOY)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DASK", "RGCSS", "COVERAGE"))}
    environment = kept | {"PATH": f"{BIN}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    with nothing_left_behind(environment):
        yield tmp_path, environment


def run(script, folder, environment):
    command = ["bash", "-euo", "pipefail", "-c", script]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=folder, env=environment, **pipes) as process:
        try:
            out, err = process.communicate(timeout=LIMIT)
        except subprocess.TimeoutExpired:
            _kill_marked(environment["RECIPE"])
            logs = "\n".join(f"{log}:\n{log.read_text()[-2000:]}" for log in folder.rglob("*.log"))
            pytest.fail(f"not done within {LIMIT} s. {logs}")
    assert process.returncode == 0, f"{out}\n{err}"
    return out


def run_readme(name, folder, environment):
    """Run all commands of a recipe's page, and compare what they print with what the page says."""
    page = blocks(DEPLOY / name / "README.md")
    out = run("".join(lines for kind, lines in page if kind == "bash"), folder, environment)
    expected = [line for kind, lines in page if kind == "text" for line in lines.splitlines()]
    assert len(out.splitlines()) == len(expected), out
    for said, line in zip(expected, out.splitlines(), strict=True):
        assert pattern(said).match(line), f"the page says {said!r}, and the recipe {line!r}"


def test_local_runs_as_its_page_says(place):
    run_readme("local", *place)


def test_local_runs_a_batch_likewise(place):
    folder, environment = place
    zarr.create_array(folder / "rows.zarr", data=np.random.default_rng(0).normal(size=(500, 6)))
    outputs = 'moments = "{stem}.m.zarr"\nresult = "{stem}.json"\nreport = ""'
    (folder / "jobs.toml").write_text(f'[defaults]\nk = 2\nlam = 1.0\n{outputs}\n[[jobs]]\ndata = "rows.zarr"\n')
    script = "python deploy/make_certificates.py certificates; deploy/local/run.sh rgcss batch jobs.toml"
    assert run(script, folder, environment).splitlines()[-1] == "1 done, 0 failed."
    assert rg.load_result(folder / "rows.json").k == 2


def check_restart(script, folder, environment):
    (folder / "kill_a_worker.py").write_text(KILL_A_WORKER)
    out = run(f"{script} python kill_a_worker.py", folder, environment)
    assert out.splitlines()[-3:] == ["scheme tls", "listening 127.0.0.1", "workers 2"]


def test_local_workers_are_restarted(place):
    check_restart("python deploy/make_certificates.py certificates; deploy/local/run.sh", *place)


@pytest.mark.parametrize("recipe", ["local", "ssh"])
def test_a_script_without_certificates_says_so(place, recipe):
    folder, environment = place
    done = subprocess.run(
        [f"deploy/{recipe}/run.sh", "rgcss"], cwd=folder, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "no certificates in certificates. Make them: make_certificates.py certificates" in done.stderr


@contextmanager
def script_to_kill(recipe, folder, environment):
    """Run a recipe's script with a command that waits, and kill both in the end: all else ends by itself."""
    environment["SUPERVISE_GRACE"] = "3"  # a worker whose scheduler goes too does not stop when it is asked to
    run("python deploy/make_certificates.py certificates", folder, environment)
    wait = [f"deploy/{recipe}/run.sh", "python", "-c", "print('up', flush=True); import time; time.sleep(1000)"]
    with subprocess.Popen(wait, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "up\n"
        children = psutil.Process(process.pid).children()
        (command,) = [child for child in children if child.cmdline()[1:2] == ["-c"]]
        try:
            yield
        finally:
            process.kill()
            command.kill()


@pytest.mark.parametrize("recipe", ["local", "ssh"])
def test_a_killed_script_leaves_nothing_behind(request, recipe):
    """SIGKILL gives a script no time to clean up; the pipes do it, on the other hosts too."""
    with script_to_kill(recipe, *request.getfixturevalue("place" if recipe == "local" else "hosts")):
        pass


# Hosts reached by SSH


@pytest.fixture
def hosts(place):
    """Three hosts, node0 to node2, played by one sshd on loopback; and the recipe's settings for them."""
    folder, environment = place
    if SSHD is None:
        pytest.skip("needs sshd: apt-get install openssh-server")
    keys = folder / "keys"
    keys.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
    port = free_port()
    (keys / "known").write_text(f"[127.0.0.1]:{port} {(keys / 'host.pub').read_text()}")
    (keys / "ssh_config").write_text(SSH_CONFIG.format(keys=keys, port=port))
    (keys / "sshd_config").write_text(SSHD_CONFIG.format(keys=keys, port=port))
    (folder / "hosts.conf").write_text(settings(folder, keys))
    environment["RGCSS_CLUSTER"] = "hosts.conf"
    with sshd(keys, port):
        yield folder, environment


SSH_CONFIG = """
Host node0 node1 node2
  HostName 127.0.0.1
  Port {port}
  IdentityFile {keys}/user
  IdentitiesOnly yes
  UserKnownHostsFile {keys}/known
  StrictHostKeyChecking yes
"""
SSHD_CONFIG = """
ListenAddress 127.0.0.1
Port {port}
HostKey {keys}/host
AuthorizedKeysFile {keys}/user.pub
AcceptEnv RECIPE SUPERVISE_GRACE
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PidFile none
UsePAM no
# The folder of a test lies below one that anybody may write to.
StrictModes no
"""


def settings(folder, keys):
    """The recipe's own settings with the values of this place."""
    text = (DEPLOY / "ssh" / "hosts.conf").read_text()
    here = {
        "WORKERS": "(node1 node2)",
        "INTERFACE": "lo",
        "PORT": "0",
        "MEMORY": "2GiB",
        "DASK": shlex.quote(str(BIN / "dask")),
        "FOLDER": shlex.quote(str(folder / "there")),
        "SSH_OPTIONS": f"(-F {shlex.quote(str(keys / 'ssh_config'))} -o SendEnv=RECIPE -o SendEnv=SUPERVISE_GRACE)",
    }
    for name, value in here.items():
        text, changed = re.subn(rf"^{name}=.*$", f"{name}={value}", text, flags=re.M)
        assert changed == 1
    return text


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def sshd(keys, port):
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # Debian's service makes it; sshd will not start without
    with open(keys / "sshd.log", "w") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", keys / "sshd_config"], stderr=log)
    try:
        deadline = time.monotonic() + 300
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        else:
            pytest.fail(f"sshd does not start: {(keys / 'sshd.log').read_text()}")
        yield
    finally:
        _kill_stopped(psutil.Process(process.pid).children())
        process.terminate()
        process.wait(300)


def _kill_stopped(processes):
    """Those that go on must end by themselves; those that a test has stopped cannot."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            if process.status() == psutil.STATUS_STOPPED:
                process.kill()


def test_ssh_runs_as_its_page_says(hosts):
    run_readme("ssh", *hosts)
    folder, _ = hosts
    there = {file.name for file in (folder / "there").glob("*.pem")}
    assert there == {"ca.pem", "scheduler.pem", "scheduler-key.pem", "worker.pem", "worker-key.pem"}  # no client's
    assert {file.stat().st_mode & 0o777 for file in (folder / "there").glob("*-key.pem")} == {0o600}


def test_ssh_workers_are_restarted(hosts):
    check_restart("python deploy/make_certificates.py certificates; deploy/ssh/run.sh", *hosts)


@pytest.mark.parametrize("sides", ["both", "one"])
def test_ssh_connections_that_are_lost_are_made_again(hosts, sides):
    folder, environment = hosts
    (folder / "cut_a_connection.py").write_text(CUT_A_CONNECTION)
    script = f"python deploy/make_certificates.py certificates; deploy/ssh/run.sh python cut_a_connection.py {sides}"
    assert run(script, folder, environment).splitlines()[-1] == "workers 2 of them new 1 supervised 1 times"


def test_a_script_that_is_killed_while_no_host_can_be_reached_leaves_nothing_behind(hosts):
    folder, environment = hosts
    with script_to_kill("ssh", folder, environment):
        config = folder / "keys" / "ssh_config"
        config.write_text(re.sub(r"Port \d+", "Port 1", config.read_text()))  # nobody is there
        for session in sessions(environment["RECIPE"]):
            session.kill()


def sessions(mark):
    """The processes of sshd that serve a recipe, once there is one for its scheduler and each of its two workers."""
    found, deadline = [], time.monotonic() + 300
    while len(found) < 3:
        assert time.monotonic() < deadline, found
        with suppress(psutil.NoSuchProcess):
            parents = {process.parent() for process in _marked(mark)} - {None}
            found = [parent for parent in parents if "sshd" in parent.name()]
    return found


def test_ssh_says_why_no_scheduler_starts(hosts):
    folder, environment = hosts
    with open(folder / "hosts.conf", "a") as out:
        out.write("DASK=/nowhere/dask\n")
    script = "python deploy/make_certificates.py certificates && ! deploy/ssh/run.sh rgcss scan a -o b 2>&1"
    out = run(script, folder, environment)
    assert "error: no scheduler starts on node0" in out
    assert "cannot be run, so it is not tried again" in out
