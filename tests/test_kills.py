"""Whatever changes files is killed before each change, and begun by two at once: nothing is wrong, lost or stranded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

HERE = Path(__file__).parent


def attacked(folder, every, times):
    """Kill all that writes before every so-many-th change of files, check, and return how many kills there were."""
    command = [sys.executable, HERE / "kills.py", folder, str(every), str(times)]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    for name, one in found.items():
        faults = {fault: one[fault] for fault in ("wrong", "lost", "stranded", "litter") if one[fault]}
        print(f"{name}: {one['operations']} changes of files, {one['kills']} kills, {one['at once']['times']} at once")
        assert not faults, f"{name}: {faults}"
        assert not one["at once"]["wrong"], f"{name}: {one['at once']}"
    return sum(one["kills"] for one in found.values())


def test_a_sample_of_kills(tmp_path):
    kills = attacked(tmp_path, every=29, times=1)
    print(f"{kills} kills")
    assert kills >= 20


@pytest.mark.integration
def test_killed_before_every_change_of_files(tmp_path):
    """And once more when it is made again, and two at once."""
    kills = attacked(tmp_path, every=1, times=2)
    print(f"{kills} kills: 0 wrong, 0 lost, 0 stranded, and nothing left behind")
    assert kills >= 1_000
