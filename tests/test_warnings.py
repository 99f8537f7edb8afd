"""Whose warnings fail a test: those of this package and its tests always, announcements of other packages never."""

import warnings
from pathlib import Path

import pytest

ANNOUNCEMENTS = [DeprecationWarning, PendingDeprecationWarning, FutureWarning]
OURS = [
    "rgcss_dask",
    "rgcss_dask.core.solver.gram",
    "examples.paper.sampling",
    *(p.stem for p in Path(__file__).parent.glob("*.py")),
]


def warn(category, module):
    warnings.warn_explicit(f"this is {category.__name__}", category, f"{module}.py", 1, module=module, registry={})


@pytest.mark.parametrize("module", OURS)
def test_a_warning_of_ours_is_an_error(module):
    for category in [*ANNOUNCEMENTS, UserWarning]:
        with pytest.raises(category, match="this is"):
            warn(category, module)


@pytest.mark.parametrize("category", [UserWarning, RuntimeWarning, ResourceWarning])
def test_what_is_wrong_now_is_an_error_anywhere(category):
    with pytest.raises(category, match="this is"):
        warn(category, "numpy.lib._nanfunctions_impl")


@pytest.mark.parametrize("category", ANNOUNCEMENTS)
@pytest.mark.parametrize("module", ["anndata._core.anndata", "pandas", "testing", "oracles.db"])
def test_what_another_package_announces_is_shown(module, category):
    heard = []
    with warnings.catch_warnings():  # as pytest has set them up; only where they are shown changes
        warnings.showwarning = lambda *shown: heard.append(shown[1])
        warn(category, module)
    assert heard == [category]
