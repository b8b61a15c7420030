"""Numbers and names in sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence


def num(value: float) -> str:
    """Two to three digits as people write them: ``3e-4``, ``0.05``, ``12``, ``1.4e6``, ``NaN``."""
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    size = abs(value)
    if size == 0 or 0.00995 <= size < 9999.5:
        return f"{value:.3g}" if size < 999.5 else f"{value:.0f}"
    digits, _, power = f"{value:.2e}".partition("e")
    digits = digits.rstrip("0").rstrip(".") if "." in digits else digits
    return f"{digits}e{int(power)}"


def share(value: float) -> str:
    """``62 %``."""
    percent = 100.0 * value
    return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.2g} %"


def times(value: float) -> str:
    """``×12``."""
    return f"×{num(value)}"


def places(sites: Sequence[str], most: int = 3) -> str:
    """``fc1, fc2 and 5 more``."""
    if len(sites) <= most:
        return ", ".join(sites)
    return f"{', '.join(sites[:most])} and {len(sites) - most} more"


def nice(value: float) -> float:
    """Rounded to 1, 3 times a power of ten (the way learning rates are chosen)."""
    if not (math.isfinite(value) and value > 0):
        return value
    power = 10.0 ** math.floor(math.log10(value))
    digit = min((1.0, 3.0, 10.0), key=lambda d: abs(math.log(value / power / d)))
    return float(f"{digit * power:.0e}")
