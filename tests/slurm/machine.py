"""A Slurm of one's own: munged, slurmctld and slurmd on loopback, in one folder, gone when it is left.

python tests/slurm/machine.py COMMAND ...     run a command inside it
"""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "sinfo", "scontrol")
LIMIT = 300  # seconds, for a machine with much else to do
CPUS, MEMORY = 16, 65_536  # told to Slurm, whatever the machine has: the jobs share it
CONF = """
ClusterName=rgcss
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld}
SlurmdPort={slurmd}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
# Bind to the address of the node, not to every one of the machine.
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SwitchType=switch/none
MpiDefault=none
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ReturnToService=2
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MinJobAge=300
KillWait=5
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""


def missing():
    """Return the programs that are not installed."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [program for program in PROGRAMS if shutil.which(program, path=path) is None]


@contextmanager
def slurm(folder=None):
    """Start Slurm and yield the environment in which its commands reach it."""
    with ExitStack() as stack:
        # Of munge's own choice: its folders may not be open to others, nor its socket's path be long.
        folder = Path(folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="slurm-")))
        env = dict(os.environ, SLURM_CONF=str(folder / "slurm.conf"))
        env["PATH"] = os.pathsep.join([env.get("PATH", ""), "/usr/sbin", "/sbin"])
        for name in [name for name in env if name.startswith(("SLURM_", "SBATCH_")) and name != "SLURM_CONF"]:
            del env[name]
        _configure(folder)
        _munged(folder / "munge", env, stack)
        for program in ("slurmctld", "slurmd"):
            stack.enter_context(_daemon([program, "-D", "-f", env["SLURM_CONF"]], folder / f"{program}.out", env))
        wait_until(lambda: "idle" in asked(["sinfo", "-h", "-o", "%T"], env), LIMIT, "Slurm's node to be idle", folder)
        stack.callback(_end_jobs, env)
        yield env


def _configure(folder):
    for name in ("state", "spool"):
        (folder / name).mkdir(parents=True)
    with socket.socket() as one, socket.socket() as other:  # both open, so that they differ
        ports = [(s.bind(("127.0.0.1", 0)), s.getsockname()[1])[1] for s in (one, other)]
    filled = CONF.format(
        host=socket.gethostname().split(".")[0],
        user=pwd.getpwuid(os.getuid()).pw_name,
        folder=folder,
        ctld=ports[0],
        slurmd=ports[1],
        cpus=CPUS,
        memory=MEMORY,
    )
    (folder / "slurm.conf").write_text(filled)


def _munged(folder, env, stack):
    folder.mkdir(mode=0o755)
    key = folder / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    command = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder / 'socket'}"]
    command += [f"--{what}-file={folder / what}" for what in ("pid", "log", "seed")]
    stack.enter_context(_daemon(command, folder / "out", env))
    wait_until((folder / "socket").exists, LIMIT, "munge's socket", folder)


@contextmanager
def _daemon(command, log, env):
    with open(log, "wb") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env=env)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _end_jobs(env):
    """Cancel what is left; slurmd must still be there to end the processes of the jobs."""
    names = asked(["squeue", "-h", "-o", "%A"], env).split()
    if names:
        subprocess.run(["scancel", *names], env=env, check=False)
        wait_until(lambda: not asked(["squeue", "-h", "-o", "%A"], env).split(), LIMIT, "jobs to end")


def asked(command, env):
    """Return what a command of Slurm says; one that fails says nothing about the jobs, and is tried again."""
    done = None

    def answered():
        nonlocal done
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        return done.returncode == 0

    wait_until(answered, LIMIT, f"an answer of {command[0]}", Path(env["SLURM_CONF"]).parent)
    return done.stdout


def wait_until(true, seconds, what, logs=None):
    """Wait for something, or fail with what the daemons have logged."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            found = [] if logs is None else [*logs.glob("*.out"), *logs.glob("*.log"), *logs.glob("out")]
            said = "".join(f"\n--- {path.name}\n{path.read_text(errors='replace')[-2000:]}" for path in found)
            raise TimeoutError(f"waited {seconds} s for {what}.{said}")
        time.sleep(0.1)


if __name__ == "__main__":
    if missing():
        sys.exit(f"needs {', '.join(missing())}: apt-get install slurm-wlm munge")
    with slurm() as environment:
        sys.exit(subprocess.run(sys.argv[1:], env=environment, check=False).returncode)
