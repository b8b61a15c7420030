"""Whether the Triton kernel can serve here, and if not, why: asked once, by a measurement."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec

import torch

from torchvitals.stats import sums as s

INSTALL = "pip install triton"


@cache
def trouble() -> str | None:
    """Why tensors on a GPU are not measured by Triton; None: they are.

    A tiny tensor is measured on the current device. That waits for it, once, and finds what no
    version number tells: a compiler that is missing, a card that is too old, a wrong build.
    """
    if not torch.cuda.is_available():
        return "torch sees no GPU"
    if find_spec("triton") is None:
        return f"triton is not installed: {INSTALL}"
    try:
        from torchvitals.stats.triton.backend import TritonBackend

        x = torch.arange(-2.0, 9000.0, device="cuda")
        found = TritonBackend().measure([x, x.double()]).sums.cpu()
    except Exception as error:  # whatever a compiler or a driver raises
        return f"it failed a trial: {type(error).__name__}: {error}"
    exact = x.double()
    right = torch.stack([exact.sum(), exact.square().sum(), exact.min(), exact.max()]).cpu()
    if not torch.allclose(found[:, s.SUM : s.MAX + 1], right.expand(2, 4), rtol=1e-9, atol=0.0):
        return "it failed a trial: its sums are wrong"
    return None
