"""`derived`: the columns of several steps at once as they are stored, by the kernel if it is there.

It runs on the thread that writes, beside the training: in C it takes a quarter of the time and
leaves the interpreter to the training meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from torchvitals.stats import sums as s
from torchvitals.stats.native.library import kernel
from torchvitals.stats.native.tables import address


def derived(
    tables: Sequence[s.Sums], out: NDArray[np.float32], *, skip: int = 0
) -> NDArray[np.float64]:
    """Write the columns of `STATS` but the first `skip` into the first columns of `out`.

    `tables` are the sums of each step, (lines, fields), and `out` is (steps, lines, columns). Gives
    Σ x² of each line of each step, NaN where no element is finite.
    """
    steps, num, width = out.shape
    function = _function()
    if function is None or not out.flags.c_contiguous or not all(map(_is_plain, tables)):
        sums = np.stack(tables)
        with np.errstate(over="ignore", under="ignore"):
            out[..., : len(s.STATS) - skip] = s.derive(sums)[..., skip:]
        return s.finite_sumsq(sums)
    places = np.array([address(table) for table in tables], dtype=np.uint64)
    sumsq = np.empty((steps, num))
    function(address(places), steps, num, skip, address(out), width, address(sumsq))
    return sumsq


def _is_plain(table: NDArray[Any]) -> bool:
    return table.dtype == np.float64 and table.flags.c_contiguous


@cache
def _function() -> Any:
    library = kernel()
    if library is None:
        return None
    function = library.torchvitals_derive
    integer, pointer = ctypes.c_int64, ctypes.c_void_p
    function.argtypes = [pointer, integer, integer, ctypes.c_int, pointer, integer, pointer]
    function.restype = None
    return function
