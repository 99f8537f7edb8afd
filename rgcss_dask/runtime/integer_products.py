"""Integer products by oneDNN: the only module that loads and checks this library."""

from __future__ import annotations

import ctypes
import functools
import warnings
from importlib import metadata
from typing import Any

import numpy as np
from numpy.typing import NDArray

PACKAGE, LIBRARY, EXTRA = "onednn-cpu-gomp", "libdnnl.so.3", "integer"
# Instructions that multiply bytes and accumulate in 32 bits; without them oneDNN accumulates in 16 bits, which
# overflow.
_ADD_IN_32_BITS = {"avx2_vnni": 0x08, "avx512_core_vnni": 0x40}
# Most rows of extreme u8 by s8 products whose sum does not overflow.
MOST_ROWS = 2**31 // (255 * 128)


class ByteProducts:
    """Products of matrices of bytes, exact in 32 bits; each call runs in the calling thread, without the GIL."""

    def __init__(self, library: Any) -> None:
        self._gemm, self._threads = library.dnnl_gemm_u8s8s32, library.omp_set_num_threads
        char, size, real, place = ctypes.c_char, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
        matrices = [real, place, size, ctypes.c_uint8, place, size, ctypes.c_int8, real, place, size, place]
        self._gemm.argtypes = [char, char, char, size, size, size, *matrices]
        self._most_threads = library.omp_get_max_threads
        self._zero = np.zeros(1, np.int32)
        self.name = f"{_version(library)} {_instructions(library)}"

    def multiply(self, A: NDArray[np.uint8], B: NDArray[np.int8], out: NDArray[np.int32], *, add: bool = False) -> None:
        """Write A'B to ``out``, or add it; rows of all three must be contiguous, and at most `MOST_ROWS`."""
        shape = (A.shape[1], B.shape[1], len(A))
        factors = (1.0, _start(A), A.strides[0], 0, _start(B), B.strides[0], 0)
        result = (float(add), _start(out), out.strides[0] // out.itemsize, _start(self._zero))
        # The number of OpenMP threads is per calling thread. With more than one, each caller would start its own
        # threads.
        before = self._most_threads()
        self._threads(1)
        status = self._gemm(b"T", b"N", b"F", *shape, *factors, *result)
        self._threads(before)
        if status != 0:
            raise RuntimeError(f"{self.name} could not multiply {len(A)} rows: status {status} of dnnl_gemm_u8s8s32.")

    def is_exact(self) -> bool:
        """Test a product of extreme values, which detects accumulation in 16 bits."""
        A, B = np.full((64, 48), 255, np.uint8), np.full((64, 64), -128, np.int8)
        A[::3, ::2], B[:, ::2] = 254, 127
        found = np.empty((48, 64), np.int32)
        self.multiply(A, B, found)
        return np.array_equal(found, A.astype(np.int64).T @ B.astype(np.int64))


def byte_products() -> ByteProducts | None:
    """Return the integer products, if the extra is installed and the processor supports them, else None."""
    return _found()[0]


def in_words() -> str:
    """Describe the integer products of this machine, or why there are none."""
    return _found()[1]


@functools.cache
def _found() -> tuple[ByteProducts | None, str]:
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        return None, f"none: {PACKAGE} is not installed (pip install 'rgcss-dask[{EXTRA}]', on Linux for x86-64)"
    try:
        # dlopen does not normalise paths; the path of an installed package may contain "..".
        place = next((str(file.locate()) for file in files if file.name == LIBRARY), LIBRARY)
        products = ByteProducts(library := ctypes.CDLL(place))
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"{PACKAGE} is installed but cannot be used: {error}. Integers are multiplied in floating point instead, "
            "which takes longer; install what is missing, for example Debian's libgomp1.",
            RuntimeWarning,
            stacklevel=2,
        )
        return None, f"none: {error}"
    if not library.dnnl_get_effective_cpu_isa() & sum(_ADD_IN_32_BITS.values()):
        return None, f"none: {products.name} has no instructions for byte products in 32 bits (VNNI)"
    if not products.is_exact():
        return None, f"none: {products.name} overflows"
    return products, products.name


def _start(array: NDArray[Any]) -> int:
    return int(array.ctypes.data)


def _version(library: Any) -> str:
    class Version(ctypes.Structure):
        _fields_ = [(part, ctypes.c_int) for part in ("major", "minor", "patch")]

    library.dnnl_version.restype = ctypes.POINTER(Version)
    found = library.dnnl_version().contents
    return f"oneDNN {found.major}.{found.minor}.{found.patch}"


def _instructions(library: Any) -> str:
    isa = library.dnnl_get_effective_cpu_isa()
    has = [name for name, bit in _ADD_IN_32_BITS.items() if isa & bit]
    return has[-1] if has else f"isa {isa:#x}"
