"""What accelerators can do at most: dense FLOP/s of matrix products, from their makers' sheets.

Dense: without the doubling for structured sparsity. For GeForce cards with float32 accumulation, as
torch multiplies; with float16 accumulation their sheets name twice as much. An accelerator that is
not in the table, or only a part of which is ours (MIG), has no known peak: no number is better than
a wrong one. TORCHVITALS_PEAK_FLOPS says it for the device at hand, in FLOP/s: ``312e12``.
"""

from __future__ import annotations

import math
import os
import re
from typing import Any, NamedTuple

import torch

from torchvitals.record import ConfigError

VARIABLE = "TORCHVITALS_PEAK_FLOPS"

TERA = 1e12


class Peak(NamedTuple):
    """TFLOP/s by how the products are computed; None where the hardware can't."""

    float16: float
    bfloat16: float | None
    tf32: float | None
    float32: float


_H100 = Peak(989.4, 989.4, 494.7, 66.9)
_H100_NVL = Peak(835.5, 835.5, 417.5, 60.0)
_MI300X = Peak(1307.4, 1307.4, 653.7, 163.4)

# The first pattern found in the name torch gives the device decides.
_PEAKS: tuple[tuple[str, Peak], ...] = (
    (r"\bGB200\b", Peak(2500.0, 2500.0, 1250.0, 80.0)),
    (r"\bB200\b", Peak(2250.0, 2250.0, 1125.0, 75.0)),
    (r"\bH[12]00 NVL\b", _H100_NVL),
    (r"\b(H200|GH200)\b", _H100),
    (r"\bH[18]00 PCIe\b", Peak(756.5, 756.5, 378.0, 51.2)),
    (r"\bH[18]00\b", _H100),
    (r"\bH20\b", Peak(148.0, 148.0, 74.0, 44.0)),
    (r"\bA[18]00\b", Peak(312.0, 312.0, 156.0, 19.5)),
    (r"\bA40\b", Peak(149.7, 149.7, 74.8, 37.4)),
    (r"\bA30\b", Peak(165.0, 165.0, 82.0, 10.3)),
    (r"\bA10G\b", Peak(70.0, 70.0, 35.0, 31.5)),
    (r"\bA10\b", Peak(125.0, 125.0, 62.5, 31.2)),
    (r"\bRTX A6000\b", Peak(154.8, 154.8, 77.4, 38.7)),
    (r"\bRTX 6000 Ada\b", Peak(364.2, 364.2, 182.1, 91.1)),
    (r"\bL40S\b", Peak(362.0, 362.0, 183.0, 91.6)),
    (r"\bL40\b", Peak(181.0, 181.0, 90.5, 90.5)),
    (r"\bL4\b", Peak(121.0, 121.0, 60.0, 30.3)),
    (r"\bV100S\b", Peak(130.0, None, None, 16.4)),
    (r"\bV100-PCIE\b", Peak(112.0, None, None, 14.0)),
    (r"\bV100-SXM[23]\b", Peak(125.0, None, None, 15.7)),
    (r"\bT4\b", Peak(65.0, None, None, 8.1)),
    (r"\bRTX 5090$", Peak(209.5, 209.5, 104.8, 104.8)),
    (r"\bRTX 4090$", Peak(165.2, 165.2, 82.6, 82.6)),
    (r"\bRTX 4080$", Peak(97.5, 97.5, 48.7, 48.7)),
    (r"\bRTX 3090 Ti$", Peak(80.0, 80.0, 40.0, 40.0)),
    (r"\bRTX 3090$", Peak(71.0, 71.0, 35.6, 35.6)),
    (r"\bMI3(00|25)X\b", _MI300X),
    (r"\bMI300A\b", Peak(980.6, 980.6, 490.3, 122.6)),
    # Two dies, each of which is a device to torch.
    (r"\bMI250X\b", Peak(191.5, 191.5, None, 47.9)),
    (r"\bMI210\b", Peak(181.0, 181.0, None, 45.3)),
)

# The same name, another chip or only a slice of it.
_OTHER = re.compile(r"\b(MIG|Laptop|Max-Q)\b")


def peak_flops(
    device: torch.device | str | int, dtype: torch.dtype = torch.bfloat16
) -> float | None:
    """Peak of a device for products in this dtype, FLOP/s; None if unknown, as for processors.

    Products in float32 may go through TF32, where `torch.set_float32_matmul_precision` allows it.
    """
    given = os.environ.get(VARIABLE, "").strip()
    if given:
        return _parsed(given)
    device = torch.device("cuda", device) if isinstance(device, int) else torch.device(device)
    # Asking for a name would initialise CUDA: without a tensor there, there is nothing to measure.
    cuda: Any = torch.cuda
    if device.type != "cuda" or not cuda.is_initialized():
        return None
    return peak_of(cuda.get_device_name(device), dtype)


def peak_of(name: str, dtype: torch.dtype) -> float | None:
    """Peak of an accelerator of this name, FLOP/s."""
    if _OTHER.search(name):
        return None
    for pattern, peak in _PEAKS:
        if re.search(pattern, name):
            found = _in_dtype(peak, dtype)
            return None if found is None else found * TERA
    return None


def _in_dtype(peak: Peak, dtype: torch.dtype) -> float | None:
    if dtype is torch.float16:
        return peak.float16
    if dtype is torch.bfloat16:
        return peak.bfloat16
    if dtype is torch.float32:
        rounded = torch.get_float32_matmul_precision() != "highest"
        return peak.tf32 if rounded and peak.tf32 is not None else peak.float32
    return None


def _parsed(given: str) -> float:
    try:
        peak = float(given)
    except ValueError:
        peak = math.nan
    if not (math.isfinite(peak) and peak > 0):
        raise ConfigError(
            f"{VARIABLE} must be a positive number of FLOP/s, got {given!r}; "
            f"an accelerator of 312 TFLOP/s is {VARIABLE}=312e12."
        )
    return peak
