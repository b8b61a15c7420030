"""Makes the taps of `probes.taps` of C: see tap.c."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from torchvitals.stats.native.library import kernel

WITH_KEYWORDS = 0x1 | 0x2
"""Flags of a method that takes a tuple of arguments and a dict of keywords."""

FUNCTIONS = (
    "PyObject_Call",
    "PyObject_CallNoArgs",
    "PyObject_CallFunctionObjArgs",
    "PyObject_GetAttr",
    "PyObject_Type",
    "PyDict_GetItem",
    "PyTuple_GetItem",
    "PyList_Append",
    "PyList_Size",
    "Py_DecRef",
    "PyErr_Clear",
)


_pointed_at: list[Any] = []
"""What C keeps the addresses of, for the life of the process."""


class Interpreter(ctypes.Structure):
    """`interpreter` of tap.c."""

    _fields_ = tuple((name, ctypes.c_void_p) for name in FUNCTIONS)


class Method(ctypes.Structure):
    """`PyMethodDef`."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


class Parts(NamedTuple):
    """What a tap is made of, and holds."""

    call: Callable[..., Any]
    module: Any
    """The module, and what calls it."""
    seen: Callable[[Any, Any], object]
    """Told of the module and its output when it can't wait."""
    light: dict[Any, Any]
    """The modules whose outputs may wait, and what is noted with them."""
    sites: list[Any]
    tensors: list[Tensor]
    versions: list[int]
    """These three are added to."""


@cache
def tap_maker(name: str, most: int) -> Callable[[Parts], Callable[..., Any]] | None:
    """Makes functions called `name` that call a module, note what comes out and give it back.

    At most `most` outputs wait. None where there is no kernel, or no lock of the interpreter.
    """
    library = kernel()
    if library is None or not getattr(sys, "_is_gil_enabled", lambda: True)():
        return None
    python = ctypes.pythonapi
    functions = Interpreter(*(_address(getattr(python, function)) for function in FUNCTIONS))
    named: tuple[Any, ...] = (
        *(Tensor, True, None, -1),
        *("training", "_version"),
        *(torch._C._current_graph_task_id, torch._C._functorch.peek_interpreter_stack),
    )
    objects = (ctypes.py_object * len(named))(*named)
    library.torchvitals_tap_setup(ctypes.byref(functions), objects, ctypes.c_int64(most))
    method = Method(name.encode(), _address(library.torchvitals_tap), WITH_KEYWORDS, None)
    _pointed_at.append((named, method))
    new = python.PyCFunction_NewEx
    new.restype = ctypes.py_object
    new.argtypes = [ctypes.POINTER(Method), ctypes.py_object, ctypes.c_void_p]
    return lambda parts: new(method, parts, None)


def _address(function: Any) -> int | None:
    return ctypes.cast(function, ctypes.c_void_p).value
