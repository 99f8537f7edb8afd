"""The commands of deploy/slurm/README.md, run as they stand there."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = ROOT / "deploy" / "slurm" / "README.md"
# What the README tells to edit in slurm.yaml; Dask lets the environment say it.
EDITED = {"INTERFACE": "lo", "CORES": "1", "MEMORY": "1 GiB"}


def block(name):
    """Return the commands of one block."""
    found = re.search(rf"<!-- run: {name} -->\n```bash\n(.*?)```", README.read_text(), re.DOTALL)
    assert found, f"{README} has no block {name}"
    return found[1]


def surroundings(folder, env):
    """Return the environment in which the commands find the recipe, Python and rgcss."""
    deploy = Path(folder, "deploy")
    if not deploy.exists():
        deploy.symlink_to(ROOT / "deploy")
    path = os.pathsep.join([str(Path(sys.executable).parent), env["PATH"]])
    return env | {"PATH": path} | {f"DASK_JOBQUEUE__SLURM__{name}": value for name, value in EDITED.items()}


def run(commands, folder, env, **options):
    """Run commands in a folder, as a reader of the README would."""
    script = f"set -euo pipefail\n{commands}"
    return subprocess.run(["bash", "-c", script], cwd=folder, env=surroundings(folder, env), text=True, **options)
