"""Numbers as files spell them."""

from __future__ import annotations

from math import isinf, isnan

import numpy as np


def number_text(value: np.float32) -> str:
    """The shortest text that reads back as the same float32; NaN and Infinity spelled out."""
    if isnan(value):
        return "NaN"
    if isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(value)


def short(value: float) -> str:
    """Three digits, for people: ``0.540``, ``12.3``, ``3.1e-03``."""
    if isnan(value) or isinf(value):
        return number_text(np.float32(value))
    size = abs(value)
    if value == int(value) and size < 1e4:
        return str(int(value))
    return f"{value:#.3g}".removesuffix(".") if 0.00995 <= size < 999.5 else f"{value:.1e}"
