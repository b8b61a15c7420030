"""Numbers as words: short, aligned, and never hiding that a value is not finite."""

from __future__ import annotations

import math

NOT_MEASURED = "–"


def number(value: float | None) -> str:
    """Three digits: ``0``, ``12``, ``0.540``, ``3.1e-03``, ``NaN``, ``Inf``; a dash for None."""
    if value is None:
        return NOT_MEASURED
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Inf" if value > 0 else "-Inf"
    size = abs(value)
    if value == int(value) and size < 1e4:
        return str(int(value))
    if 0.00995 <= size < 999.5:
        return f"{value:#.3g}".removesuffix(".")
    return f"{value:.0f}" if 999.5 <= size < 9999.5 else f"{value:.1e}"


def share(value: float | None) -> str:
    """A fraction in per cent."""
    if value is None or not math.isfinite(value):
        return number(value)
    percent = 100 * value
    if percent == 0 or 0.05 <= percent <= 99.95 or percent == 100:
        return f"{percent:.0f} %" if percent >= 9.95 or percent == 0 else f"{percent:.1f} %"
    if percent > 100:
        return f"{percent:.0f} %" if percent >= 100.5 else "> 100 %"
    return "< 0.1 %" if percent < 1 else "> 99.9 %"


def percent(value: float) -> str:
    """A fraction in whole per cent, as parts of a whole are read: ``31 %``, ``< 1 %``."""
    return "< 1 %" if 0 < value < 0.005 else f"{100 * value:.0f} %"


def times(value: float | None) -> str:
    """A factor: ``×0.031``."""
    return NOT_MEASURED if value is None else f"×{number(value)}"


def count(value: int) -> str:
    """A whole number with separators."""
    return f"{value:,}"


def amount(value: int) -> str:
    """A large count: ``812 k``, ``0.81 M``, ``7.1 G``."""
    for unit, size in (("G", 1e9), ("M", 1e6)):
        if value >= 0.1 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e3:.3g} k" if value >= 10_000 else count(value)


def short(value: float) -> str:
    """A rate or a count in few characters: ``3.2``, ``4,100``, ``52k``, ``1.3M``."""
    for unit, size, least in (("G", 1e9, 1e9), ("M", 1e6, 1e6), ("k", 1e3, 1e4)):
        if value >= 0.9995 * least:
            return f"{value / size:.3g}{unit}"
    return f"{value:,.0f}" if value >= 99.5 else f"{value:.3g}"


def scaled(value: float, unit: str) -> str:
    """``1.2 TFLOP/s``, ``83 MFLOP/s``."""
    for prefix, size in (("E", 1e18), ("P", 1e15), ("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= 0.9995 * size:
            return f"{value / size:.3g} {prefix}{unit}"
    return f"{value / 1e3:.3g} k{unit}"


def seconds(value: float) -> str:
    """A short time: ``85 µs``, ``310 ms``, ``1.2 s``; long ones as `duration` has them."""
    if value >= 99.5:
        return duration(value)
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= 0.9995 * size or value == 0:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} µs"


def size(num_bytes: float) -> str:
    """``812 B``, ``3.4 kB``, ``12 MB``."""
    value = float(num_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            break
        value /= 1000
    return f"{value:.0f} {unit}" if unit == "B" or value >= 10 else f"{value:.1f} {unit}"


def duration(seconds: float | None) -> str:
    """``0.4 s``, ``58 s``, ``3 min 20 s``, ``5 h 02 min``, ``3 d 04 h``."""
    if seconds is None:
        return NOT_MEASURED
    seconds = max(seconds, 0.0)
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes} min {rest:02} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02} min"
    return f"{hours // 24} d {hours % 24:02} h"


def ago(seconds: float) -> str:
    """``just now``, ``3 min ago``, ``5 d ago``: the largest unit alone."""
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{int(seconds // length)} {unit} ago"
    return "just now"


def plural(num: int, word: str) -> str:
    """``1 step``, ``600 steps``."""
    return f"{count(num)} {word}" if num == 1 else f"{count(num)} {word}s"


def tail(text: str, width: int) -> str:
    """The end of a dotted name, which tells layers apart, when all of it does not fit."""
    return text if len(text) <= width else "…" + text[len(text) - max(width, 2) + 1 :]
