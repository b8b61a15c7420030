"""Any tensor a user can have → a dense, real, floating tensor with the same statistics.

dense, contiguous float      as it is
permuted or strided          a contiguous copy
sparse (COO, CSR …)          its stored values; the implicit zeros are counted apart
complex                      the modulus
integer, bool                float64
float8                       float32
meta, quantized, fake        refused by name: they hold no values to read
"""

from __future__ import annotations

import torch
from torch import Tensor

from torchvitals.record import UnsupportedTensor

FLOATS = frozenset({torch.float32, torch.float64, torch.float16, torch.bfloat16})


def readable(tensor: Tensor) -> tuple[Tensor, int]:
    """The tensor to measure, and how many zeros to add to what it holds."""
    tensor = tensor.detach()
    if tensor.is_meta:
        raise UnsupportedTensor("a tensor on device 'meta' has no values to measure")
    if tensor.is_quantized:
        raise UnsupportedTensor(f"a quantized tensor ({tensor.dtype}) can't be measured")
    zeros = 0
    if tensor.layout is not torch.strided:
        tensor, zeros = _stored(tensor)
    if tensor.is_complex():
        tensor = tensor.abs()
    if tensor.dtype not in FLOATS:
        tensor = tensor.to(torch.float32 if tensor.dtype.is_floating_point else torch.float64)
    return tensor.contiguous(), zeros


def _stored(tensor: Tensor) -> tuple[Tensor, int]:
    """The stored values of a tensor that is not strided, and the number of its implicit zeros."""
    if tensor.layout is torch.sparse_coo:
        # Duplicates add up: only the coalesced values are the tensor's own.
        values = tensor.coalesce().values()
    elif tensor.layout is torch.jagged:
        return tensor.values(), 0
    elif tensor.layout in {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}:
        values = tensor.values()
    else:
        return tensor.to_dense(), 0
    return values, tensor.numel() - values.numel()
