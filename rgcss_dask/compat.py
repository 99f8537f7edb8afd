"""Names of Dask, Distributed and Zarr that are not part of their public interface.

A new version of one of them may break a name here, but nothing else in the package: `tests/test_compat.py` reports the
name and the version. No other module imports such names.
"""

from dask.utils import parse_bytes as parse_bytes
from dask.utils import parse_timedelta as parse_timedelta
from distributed.comm.core import CommClosedError as CommClosedError
from distributed.comm.core import connect as connect
from distributed.core import ConnectionPool as ConnectionPool
from distributed.core import clean_exception as clean_exception
from distributed.protocol.pickle import dumps as dumps
from zarr.codecs._v2 import V2Codec as V2Codec
from zarr.core.array_spec import ArraySpec as ArraySpec
from zarr.core.codec_pipeline import BatchedCodecPipeline as BatchedCodecPipeline
from zarr.core.common import concurrent_map as concurrent_map
from zarr.core.sync import sync as sync
