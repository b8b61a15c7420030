"""An independent float64 reference of the sums and bins, written without our code's shortcuts."""

import math

import numpy as np

from torchvitals.record.bins import NUM_BINS


def reference_sums(values):
    x = np.asarray(values, dtype=np.float64).ravel()
    finite = x[np.isfinite(x)]
    return [
        x.size,
        math.fsum(finite),
        math.fsum(finite * finite),
        finite.min() if finite.size else math.inf,
        finite.max() if finite.size else -math.inf,
        np.count_nonzero(x == 0),
        np.count_nonzero(np.isnan(x)),
        np.count_nonzero(x == math.inf),
        np.count_nonzero(x == -math.inf),
    ]


def reference_bins(values):
    """By definition: walk the edges with frexp, one value at a time."""
    counts = np.zeros(NUM_BINS, dtype=np.int64)
    for v in np.asarray(values, dtype=np.float64).ravel():
        if not math.isfinite(v):
            continue
        counts[reference_bin(float(v))] += 1
    return counts


def reference_bin(v):
    if v == 0:
        return 126
    mantissa, exponent = math.frexp(abs(v))  # abs(v) = mantissa · 2^exponent, mantissa in [.5, 1)
    octave, upper = exponent - 1, mantissa >= 0.75
    if octave < -40:
        side = 0
    elif octave >= 22:
        side = 125
    else:
        side = 1 + 2 * (octave + 40) + upper
    return 127 + side if v > 0 else 125 - side


def reference_sample(values, stride):
    """One group of 32 neighbours in `stride`, small tensors whole."""
    x = np.asarray(values).ravel()
    if stride == 1 or x.size <= 4096:
        return x
    keep = (np.arange(x.size) // 32) % stride == 0
    return x[keep]
