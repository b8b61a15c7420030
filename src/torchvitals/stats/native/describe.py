"""Asks torch, in one call, where the tensors of a list lie and whether the kernel can read them.

Through the C interface that torch offers by DLPack's exchange protocol. An older torch has none:
`describe` then always says no, and the tensors are asked one by one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

from torch import Tensor
from torch.nn import Parameter

from torchvitals.stats.native.library import kernel

DLPACK_MAJOR = 1
PLAIN = (Tensor, Parameter)
"""Subclasses are asked in Python: they may say other things of themselves than torch would."""


class Exchange(ctypes.Structure):
    """`DLPackExchangeAPI` of DLPack 1."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("older", ctypes.c_void_p),
        ("allocate", ctypes.c_void_p),
        ("managed", ctypes.c_void_p),
        ("to_object", ctypes.c_void_p),
        ("describe", ctypes.c_void_p),
        ("stream", ctypes.c_void_p),
    )


class Asking(ctypes.Structure):
    """`asking` of describe.c."""

    _fields_ = (
        ("describe", ctypes.c_void_p),
        ("item", ctypes.c_void_p),
        ("forget", ctypes.c_void_p),
        ("type", ctypes.c_void_p),
        ("drop", ctypes.c_void_p),
        ("plain", ctypes.py_object * len(PLAIN)),
    )


class Places(NamedTuple):
    """Where the columns of a table are."""

    data: int
    sizes: int
    dtypes: int
    shapes: int


def describe(tensors: Sequence[Tensor], places: Places, *, known: bool = False) -> bool:
    """Fill in the columns of a table at these places; whether the kernel can read all tensors.

    `known`: sizes, dtypes and shapes are there already, and must be the same.
    """
    found = _asked()
    if found is None:
        return False
    how = found.lists if isinstance(tensors, list) else found.tuples
    if how is found.tuples and not isinstance(tensors, tuple):
        return False
    return bool(found.ask(how, tensors, len(tensors), *places, known))


class Asked(NamedTuple):
    """The function of describe.c, and what it needs to walk over lists and tuples."""

    ask: Callable[..., int]
    lists: Any
    tuples: Any


@cache
def _asked() -> Asked | None:
    library, exchange = kernel(), _exchange()
    if library is None or exchange is None or not exchange.describe:
        return None
    # Opened again so that calls keep the interpreter's lock: objects are touched.
    ask = ctypes.PyDLL(library._name).torchvitals_describe
    ask.argtypes = [
        ctypes.c_void_p,
        ctypes.py_object,
        ctypes.c_int64,
        *[ctypes.c_void_p] * len(Places._fields),
        ctypes.c_int,
    ]
    python = ctypes.pythonapi
    others = map(_address, (python.PyErr_Clear, python.PyObject_Type, python.Py_DecRef))
    types: tuple[Any, ...] = PLAIN
    rest = (*others, (ctypes.py_object * len(PLAIN))(*types))
    lists, tuples = (
        ctypes.byref(Asking(exchange.describe, _address(item), *rest))
        for item in (python.PyList_GetItem, python.PyTuple_GetItem)
    )
    return Asked(ask, lists, tuples)


def _exchange() -> Exchange | None:
    capsule = getattr(Tensor, "__dlpack_c_exchange_api__", None)
    if capsule is None:
        return None
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found = Exchange.from_address(pointer(capsule, b"dlpack_exchange_api"))
    return found if found.major == DLPACK_MAJOR else None


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
