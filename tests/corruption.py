"""Flips bits of files, one at a time, and sees whether a reader notices or does not need to."""

import shutil
from collections import Counter

import numpy as np


def flips(files, count, seed=0):
    """Yield files with the place of a bit: every file is hit, large ones more often, heads and tails always."""
    rng = np.random.default_rng(seed)
    sizes = np.array([path.stat().st_size for path in files], dtype=float)
    share = np.sqrt(sizes) / np.sqrt(sizes).sum()  # so that metadata, which is small, is hit as well
    for path in rng.choice(len(files), size=count, p=share):
        yield files[path], int(rng.integers(sizes[path] * 8))


def flipped(path, bit):
    """Flip one bit of a file and return what it held."""
    content = path.read_bytes()
    damaged = bytearray(content)
    damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(damaged)
    return content


def outcomes(files, count, read, same, name, *, fresh=None, seed=0):
    """Count what becomes of so many flips; one that is neither harmless nor told of fails at once.

    ``read`` returns what is read after a flip, ``same`` says whether it is what was there, and every error must be in
    one line and hold ``name``. With ``fresh``, a folder, all of it is put back after each flip, else the file alone.
    """
    counts = Counter()
    kept = None if fresh is None else shutil.copytree(fresh, fresh.with_name(f"{fresh.name}-kept"))
    for path, bit in flips(files, count, seed):
        content = flipped(path, bit)
        where = f"bit {bit} of {path} ({content[max(0, bit // 8 - 20) : bit // 8 + 20]!r})"
        try:
            found = read()
        except (ValueError, OSError, RuntimeError) as error:
            text = str(error)
            assert name in text, f"{where}: the error does not name {name}: {text}"
            assert "\n" not in text.strip(), f"{where}: more than one line: {text}"
            counts["told"] += 1
        else:
            assert same(found), f"{where}: read in silence as something else"
            counts["harmless"] += 1
        if kept is None:
            path.write_bytes(content)
        else:
            shutil.rmtree(fresh)
            shutil.copytree(kept, fresh)
    return counts
