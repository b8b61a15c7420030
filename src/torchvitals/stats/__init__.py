"""Tensor → sums in one pass. `native` is C for CPU tensors, `torch` serves everywhere else.

Both fill the same nine sums and the same histogram bins, so whatever reads them need not know
which one ran. `choose_backend()` picks.
"""
