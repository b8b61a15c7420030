"""Finds and opens the C kernel, and borrows the thread pool torch already runs.

Everything crosses as addresses and numbers in two plain structs: no PyTorch headers, no ABI to
match, so one build serves every torch version.
"""

from __future__ import annotations

import ctypes
import logging
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

log = logging.getLogger("torchvitals")

ABI = 14

FINITE, NO_MEMORY, NOT_FINITE = range(3)
"""What `torchvitals_measure` says."""

ACTIVITY = np.dtype(
    [
        ("units", "i8"),
        ("inner", "i8"),
        ("step", "i8"),
        ("counts", "u8"),
        ("totals", "u8"),
        ("floor", "f8"),
    ]
)
"""`activity` of kernel.c."""


class Batch(ctypes.Structure):
    """`batch` of kernel.c."""

    _fields_ = (
        ("num", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
        ("old", ctypes.c_void_p),
        ("grad", ctypes.c_void_p),
        ("ends", ctypes.c_void_p),
        ("sums", ctypes.c_void_p),
        ("delta_sums", ctypes.c_void_p),
        ("dots", ctypes.c_void_p),
        ("outside", ctypes.c_void_p),
        ("grad_sums", ctypes.c_void_p),
        ("active", ctypes.c_void_p),
        ("bins", ctypes.c_void_p),
        ("delta_bins", ctypes.c_void_p),
        ("grad_bins", ctypes.c_void_p),
        ("parallel", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
        ("stride", ctypes.c_int32),
        ("roll", ctypes.c_int32),
        ("thin", ctypes.c_int32),
        ("part", ctypes.c_int32),
        ("phase", ctypes.c_int32),
    )


class Gather(ctypes.Structure):
    """`gather` of kernel.c."""

    _fields_ = (
        ("num", ctypes.c_int64),
        ("data", ctypes.c_void_p),
        ("count", ctypes.c_void_p),
        ("dtype", ctypes.c_void_p),
        ("start", ctypes.c_void_p),
        ("stride", ctypes.c_void_p),
        ("lines", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


@cache
def kernel() -> ctypes.CDLL | None:
    """The opened kernel, or None where it was not built or can't be loaded."""
    spec = find_spec("torchvitals.stats.native._kernel")
    if spec is None or spec.origin is None:
        return None
    try:
        library = ctypes.CDLL(spec.origin)
        if library.torchvitals_abi() != ABI:
            raise OSError(f"it has interface {library.torchvitals_abi()}, this code wants {ABI}")
    except (OSError, AttributeError) as error:
        log.warning(
            "The C kernel at %s can't be used (%s); the slower torch backend serves. "
            "Reinstall torchvitals to build it anew.",
            spec.origin,
            error,
        )
        return None
    library.torchvitals_measure.argtypes = [ctypes.POINTER(Batch)]
    library.torchvitals_copy.argtypes = [ctypes.POINTER(Batch)]
    library.torchvitals_gather.argtypes = [ctypes.POINTER(Gather)]
    library.torchvitals_gather.restype = None
    library.torchvitals_same.argtypes = [ctypes.POINTER(Gather)]
    library.torchvitals_simd.restype = ctypes.c_char_p
    library.torchvitals_use.argtypes = [ctypes.c_char_p]
    return library


@cache
def pool() -> int | None:
    """Address of GOMP_parallel in the OpenMP runtime torch runs on; None: one thread.

    Asking through torch's own library finds the copy torch is linked to, whatever its file is
    called, so both share one pool of threads and nobody is oversubscribed.
    """
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        path = folder / name
        if path.exists():
            try:
                return ctypes.cast(ctypes.CDLL(str(path)).GOMP_parallel, ctypes.c_void_p).value
            except (OSError, AttributeError):
                return None
    return None


def simd() -> str | None:
    """Name of the instruction set in use ("avx512", "avx2" …), or None without the kernel."""
    library = kernel()
    return None if library is None else library.torchvitals_simd().decode()
