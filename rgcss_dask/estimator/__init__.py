"""Estimators with the interface of scikit-learn and dask-ml."""

from rgcss_dask.estimator.gcss import GCSS as GCSS
from rgcss_dask.estimator.selector import RGCSS as RGCSS
