"""The scikit-learn and dask-ml face of the package."""

from rgcss_dask.estimator.gcss import GCSS as GCSS
from rgcss_dask.estimator.selector import RGCSS as RGCSS
