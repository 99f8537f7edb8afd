"""How many random cases are tried: a moderate number by default, RGCSS_FUZZ of each kind where that is set."""

import os

from hypothesis import HealthCheck, Phase, settings

CASES = int(os.environ.get("RGCSS_FUZZ", 0))


def fuzz(cases):
    quiet = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much]
    phases = (Phase.reuse, Phase.generate) if CASES else tuple(Phase)  # making a case smaller takes longest
    return settings(max_examples=CASES or cases, deadline=None, suppress_health_check=quiet, phases=phases)
