"""A small training for `vitals watch` to follow: ``python watched_training.py RUN [WORD]…``.

It goes on until there is a file ``stop`` in the run's folder. Words: ``fault`` leaves a layer out
of the optimizer, ``undiagnosed`` switches its own diagnosis off.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

import torch
from torch import nn

import torchvitals


def main(run: str, words: list[str]) -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )
    left_out = "2." if "fault" in words else "none"
    held = [p for name, p in model.named_parameters() if not name.startswith(left_out)]
    optimizer = torch.optim.Adam(held, lr=1e-3)
    truth = torch.randn(20, 10)
    diagnose = "undiagnosed" not in words
    with torchvitals.watch(model, optimizer, run=run, every=2, diagnose=diagnose) as monitor:
        while not Path(run, "stop").exists():
            x = torch.randn(64, 20)
            loss = nn.functional.cross_entropy(model(x), (x @ truth).argmax(1))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)
            time.sleep(0.01)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
