"""Tensor → sums in one pass: `native` (C) on CPUs, `triton` on GPUs, `torch` everywhere else.

All fill the same nine sums and the same histogram bins, so whatever reads them need not know
which one ran. `choose_backend()` picks. `stats.norm`, `stats.rms` … are the statistics by name, for
metrics of one's own.
"""

from torchvitals.stats.named import absmax, max, mean, min, norm, rms, std, zero_frac

__all__ = ["absmax", "max", "mean", "min", "norm", "rms", "std", "zero_frac"]
