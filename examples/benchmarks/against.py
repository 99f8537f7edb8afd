"""What an earlier commit answers, beside what this one does: the same bits of moments, picks and losses?

    python -m examples.benchmarks.against COMMIT --data DIR

Both commits are run by the same Python, each on its own sources, over every matrix in the folder. Moments must have the
same bits. A loss may differ by what the solver promises: 1e-9 of it and 1e-12 of the loss at the start.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import warnings
from itertools import product
from pathlib import Path

import numpy as np
import zarr

import rgcss_dask as rg

ROOT = Path(__file__).parents[2]
K = 32
LAMBDAS = (0.0, 1.0, 100.0)
PROMISE = 1e-9, 1e-12  # of the loss, and of the loss at the start


def matrices(folder):
    """Yield the name and the rows of every matrix in the folder, as it is stored."""
    for path in sorted(folder.glob("*.npz")):
        content = np.load(path)
        for name in ("train", "X"):
            if name in content and content[name].ndim == 2 and content[name].dtype.kind in "iuf":
                yield f"{path.stem} {name}", content[name]
    stored = folder / "air_temperature.zarr"
    if stored.exists():
        air = np.asarray(zarr.open_group(stored, mode="r")["air"][:])
        yield "air temperature", air.reshape(len(air), -1)


def answers(rows):
    """Ask everything that is compared: a digest of the moments, and columns and losses of selections."""
    k = min(K, rows.shape[1] // 2)
    moments = rg.scan(rows, folds=3, groups=5, progress=False)
    parts = [moments, *moments.folds, *moments.groups]
    digest = hashlib.sha256(b"".join(p.product.tobytes() + p.total.tobytes() + p.shift.tobytes() for p in parts))
    found = {}
    for objective, center in product(("unselected", "all"), (False, True)):
        how = {"objective": objective, "center": center}
        for picked in rg.select(moments, k, lam=LAMBDAS, **how):
            found[f"{how} lam={picked.lam:g}"] = picked
        found[f"{how} one lambda"] = rg.select(moments, k, lam=1.0, bound=True, **how)
    found["refined"] = rg.refine(rg.select(moments, k, center=True), moments).selection
    found["cross-validated"] = rg.cross_validate(moments, k, lams=[1.0, 100.0], center=True).selection
    selections = {
        name: {"columns": one.columns.tolist(), "loss": one.loss.tolist(), "start": one.start}
        for name, one in found.items()
    }
    return {"moments": digest.hexdigest(), "selections": selections}


def recorded(sources, folder):
    """Have the sources at a place answer in a process of their own."""
    command = [sys.executable, __file__, "--record", "--data", str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(sources)}
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout)


def compared(before, after):
    """Return whether the moments are the same, how many paths pick the same, and the worst difference of losses."""
    same, worst = 0, 0.0
    for name, one in after["selections"].items():
        other = before["selections"][name]
        same += one["columns"] == other["columns"]
        a, b = (np.array(x["loss"]) for x in (one, other))
        if len(a) == len(b):
            allowed = PROMISE[0] * b + PROMISE[1] * other["start"]
            worst = max(worst, float(np.max(np.abs(a - b) / allowed, initial=0.0)) if other["start"] else 0.0)
    return before["moments"] == after["moments"], same, len(after["selections"]), worst


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", nargs="?", default="HEAD~1")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--record", action="store_true", help="print the answers of the sources that are imported")
    arguments = parser.parse_args()
    if arguments.record:
        print(json.dumps({name: answers(rows) for name, rows in matrices(arguments.data)}))
        return
    with tempfile.TemporaryDirectory() as place:
        earlier = Path(place, "earlier")
        git = ["git", "-C", str(ROOT), "worktree"]
        subprocess.run([*git, "add", "-q", "--detach", str(earlier), arguments.commit], check=True)
        try:
            before, after = (recorded(sources, arguments.data.resolve()) for sources in (earlier, ROOT))
        finally:
            subprocess.run([*git, "remove", "--force", str(earlier)], check=True)
    print("| matrix | moments | same picks | largest difference of losses / promised |\n| --- | --- | --- | --- |")
    for name, answer in after.items():
        bits, same, of, worst = compared(before[name], answer)
        print(f"| {name} | {'same bits' if bits else 'DIFFER'} | {same} of {of} | {worst:.2g} |")


if __name__ == "__main__":
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        main()
