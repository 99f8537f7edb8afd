"""Run the README of the Slurm recipe on a real Slurm and write what happens to deploy/slurm/run.log.

python tests/slurm/machine.py python tests/slurm/keep_log.py
"""

import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from machine import wait_until
from make_data import make
from recipe import ROOT, block, run

QUEUE = ["squeue", "-t", "all", "-o", "%.6i %.13j %.10T %.8M %.4C %.8m %N"]
LOG = ROOT / "deploy" / "slurm" / "run.log"


def main():
    """Run both blocks, looking at the queue meanwhile."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        make()
        lines += said(["sinfo", "--version"]) + said(["sinfo"])
        lines += ["", "# One large matrix", *while_watched(block("cluster"), folder)]
        lines += said(["bash", "-c", "grep -hE 'Start worker|Registered|Memory|End worker' rgcss-logs/rgcss-worker-*"])
        lines += ["", "# Many archives", *while_watched(block("array"), folder)]
        wait_until(lambda: Path("summary.json").exists() and not queue("-t", "PD,R,CG"), 300, "the array to end")
        lines += said(QUEUE) + said(["bash", "-c", "tail -n +1 rgcss-logs/share-* rgcss-logs/summary-*"])
        LOG.write_text(scrubbed("\n".join(lines), folder) + "\n")
    print(LOG)


def while_watched(commands, folder):
    """Run commands and return them, what they said, and the queue as it was while the work went on."""
    seen, over = [], threading.Event()

    def watch():
        while not over.wait(0.5):
            if not seen and queue("-t", "R"):
                time.sleep(2)  # so that all of them have started
                seen.extend(said(QUEUE))

    watcher = threading.Thread(target=watch)
    watcher.start()
    done = run(f"set -x\n{commands}", folder, dict(os.environ), stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    over.set()
    watcher.join()
    assert done.returncode == 0, done.stdout
    shown = re.sub(r"^\+ ", "$ ", done.stdout.rstrip(), flags=re.MULTILINE)
    return [*shown.splitlines(), *(["", "# meanwhile", *seen] if seen else []), *said(QUEUE)]


def queue(*options):
    """Return the jobs in the queue."""
    return subprocess.run(["squeue", "-h", *options], capture_output=True, text=True, check=True).stdout.split()


def said(command):
    """Run a command and return it with what it said."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    shown = command[2] if command[:2] == ["bash", "-c"] else " ".join(command)
    return [f"$ {shown}", *done.stdout.rstrip().splitlines()]


def scrubbed(text, folder):
    """Take out what belongs to the machine: its name, its folders and its users."""
    host = socket.gethostname().split(".")[0]
    places = {folder: ".", str(ROOT): ".", str(Path(sys.prefix)): "venv"}
    for place, name in places.items():
        text = text.replace(place, name)
    return re.sub(rf"\b{re.escape(host)}\b", "node", text)


if __name__ == "__main__":
    main()
