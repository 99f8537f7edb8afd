"""Which few columns carry the rest: regularised greedy column subset selection for tall matrices."""

from __future__ import annotations

import importlib
import logging
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

logging.getLogger(__name__).addHandler(logging.NullHandler())  # the application decides what is shown

# Public name -> the module that defines it. Modules are imported at the first use (PEP 562): Dask and
# scikit-learn take a second or more, and `rgcss --help` needs neither.
_HOME = {
    "Aims": "core.aims",
    "Band": "core.band",
    "Bands": "imaging",
    "CrossValidation": "core.tuning",
    "Downstream": "core.downstream",
    "Factor": "core.solver.factor",
    "Field": "sources.xarray",
    "GCSS": "estimator",
    "GenePanel": "core.panel",
    "Moments": "core.moments",
    "Progress": "cluster.progress",
    "RGCSS": "estimator",
    "Refinement": "core.refinement",
    "Selection": "core.selection",
    "Sensors": "sensing",
    "Sketch": "core.sketch",
    "Stability": "core.stability",
    "Stop": "core.stop",
    "append": "scanning.append",
    "bands": "imaging",
    "convert": "conversion.convert",
    "choose_k": "core.choose_k",
    "cross_validate": "questions",
    "downstream": "learning.downstream",
    "expected_jaccard": "core.stability",
    "gene_panel": "panels",
    "load": "archive.archive",
    "load_result": "archive.result_file",
    "merge": "archive.merging",
    "record_activations": "conversion.activations",
    "refine": "questions",
    "report": "reporting",
    "save": "archive.archive",
    "scan": "scanning.scan",
    "select": "selecting",
    "sensors": "sensing",
    "select_wide": "two_readings",
    "show_versions": "runtime.environment",
    "stability": "questions",
    "stability_under_noise": "core.stability",
    "verify": "scanning.verify",
    "write_reconstruction": "conversion.apply_selection",
    "write_reduced": "conversion.apply_selection",
    "write_report": "reporting",
}

__all__ = sorted(_HOME)

if TYPE_CHECKING:  # for mypy, pyright and editors; every name must be here and in _HOME
    from rgcss_dask.archive.archive import load as load
    from rgcss_dask.archive.archive import save as save
    from rgcss_dask.archive.merging import merge as merge
    from rgcss_dask.archive.result_file import load_result as load_result
    from rgcss_dask.cluster.progress import Progress as Progress
    from rgcss_dask.conversion.activations import record_activations as record_activations
    from rgcss_dask.conversion.apply_selection import write_reconstruction as write_reconstruction
    from rgcss_dask.conversion.apply_selection import write_reduced as write_reduced
    from rgcss_dask.conversion.convert import convert as convert
    from rgcss_dask.core.aims import Aims as Aims
    from rgcss_dask.core.band import Band as Band
    from rgcss_dask.core.choose_k import choose_k as choose_k
    from rgcss_dask.core.downstream import Downstream as Downstream
    from rgcss_dask.core.moments import Moments as Moments
    from rgcss_dask.core.panel import GenePanel as GenePanel
    from rgcss_dask.core.refinement import Refinement as Refinement
    from rgcss_dask.core.selection import Selection as Selection
    from rgcss_dask.core.sketch import Sketch as Sketch
    from rgcss_dask.core.solver.factor import Factor as Factor
    from rgcss_dask.core.stability import Stability as Stability
    from rgcss_dask.core.stability import expected_jaccard as expected_jaccard
    from rgcss_dask.core.stability import stability_under_noise as stability_under_noise
    from rgcss_dask.core.stop import Stop as Stop
    from rgcss_dask.core.tuning import CrossValidation as CrossValidation
    from rgcss_dask.estimator import GCSS as GCSS
    from rgcss_dask.estimator import RGCSS as RGCSS
    from rgcss_dask.imaging import Bands as Bands
    from rgcss_dask.imaging import bands as bands
    from rgcss_dask.learning.downstream import downstream as downstream
    from rgcss_dask.panels import gene_panel as gene_panel
    from rgcss_dask.questions import cross_validate as cross_validate
    from rgcss_dask.questions import refine as refine
    from rgcss_dask.questions import stability as stability
    from rgcss_dask.reporting import report as report
    from rgcss_dask.reporting import write_report as write_report
    from rgcss_dask.runtime.environment import show_versions as show_versions
    from rgcss_dask.scanning.append import append as append
    from rgcss_dask.scanning.scan import scan as scan
    from rgcss_dask.scanning.verify import verify as verify
    from rgcss_dask.selecting import select as select
    from rgcss_dask.sensing import Sensors as Sensors
    from rgcss_dask.sensing import sensors as sensors
    from rgcss_dask.sources.xarray import Field as Field
    from rgcss_dask.two_readings import select_wide as select_wide
else:

    def __getattr__(name: str) -> Any:
        if name in _HOME:
            return getattr(importlib.import_module(f"rgcss_dask.{_HOME[name]}"), name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
