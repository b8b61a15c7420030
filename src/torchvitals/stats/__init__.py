"""Tensor → sums in one pass. `native` is C for CPU tensors, `torch` serves everywhere else.

Both fill the same nine sums and the same histogram bins, so whatever reads them need not know
which one ran. `choose_backend()` picks. `stats.norm`, `stats.rms` … are the statistics by name, for
metrics of one's own.
"""

from torchvitals.stats.named import absmax, max, mean, min, norm, rms, std, zero_frac

__all__ = ["absmax", "max", "mean", "min", "norm", "rms", "std", "zero_frac"]
