"""Numbers as bytes: a JSON header and arrays behind it, as docs/api.md describes."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from torchvitals.record.row import is_missing
from torchvitals.views.as_json import plain, spelled

Arrays = Mapping[str, NDArray[Any]]

ALIGN: Final = 8
DTYPES: Final = ("float64", "float32", "uint8")


def frame(header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The header and the arrays, each at a multiple of 8 bytes, in little-endian order."""
    described: dict[str, Any] = {}
    pieces: list[bytes] = []
    offset = 0
    for name, array in arrays.items():
        if array.dtype.name not in DTYPES:
            raise TypeError(f"array {name} is {array.dtype}, not one of {', '.join(DTYPES)}")
        data = np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<"), copy=False)
        described[name] = {
            "dtype": array.dtype.name, "shape": list(array.shape), "offset": offset,
        }  # fmt: skip
        padding = -data.nbytes % ALIGN
        pieces += [data.tobytes(), bytes(padding)]
        offset += data.nbytes + padding
    text = json_bytes({**header, "arrays": described})
    text += b" " * (-(4 + len(text)) % ALIGN)
    return b"".join([struct.pack("<I", len(text)), text, *pieces])


def frame_as_json(header: Mapping[str, Any], arrays: Arrays) -> bytes:
    """The same as one JSON document: lists instead of arrays."""
    return json_bytes({**header, "arrays": {name: listed(array) for name, array in arrays.items()}})


def listed(array: NDArray[Any]) -> Any:
    """Nested lists; what is not finite is spelled out, what was not measured is None."""
    if array.dtype.kind != "f" or np.isfinite(array).all():
        return array.tolist()
    out = array.astype(object)
    bad = ~np.isfinite(array)
    out[bad] = [spelled(value) for value in array[bad].tolist()]
    if array.dtype == np.float32:
        out[is_missing(array)] = None
    return out.tolist()


def json_bytes(value: Any) -> bytes:
    """Strict JSON without spaces."""
    text = json.dumps(plain(value), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    # Half of a surrogate pair in somebody's metric name must not end the answer.
    return text.encode("utf-8", errors="replace")
