"""Memory promises, measured as the peak of a process of its own."""

import subprocess
import sys
import textwrap

import pytest

PEAK = """
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("VmHWM"))
"""


def run(code):
    """Run code in a fresh process and return the last line it prints."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK + textwrap.dedent(code)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.integration
def test_twenty_thousand_columns_through_a_factor_need_less_than_a_gigabyte():
    """Three hundred rows; the Gram alone would be 3.2 GB."""
    used = run("""
        import numpy as np
        from rgcss_dask import Factor, select
        F = np.random.default_rng(0).standard_normal((300, 20_000))
        assert select(Factor(F), 100).k == 100
        print(peak())
    """)
    assert int(used) < 1e9
