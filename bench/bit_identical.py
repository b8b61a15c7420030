"""Are the losses the same bit for bit, with and without the monitor? On the four workloads.

    python bench/bit_identical.py [--workloads W1,W3] [--steps 3]

Exit code 1 when they are not.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch

import torchvitals
from workloads import WORKLOADS


def losses(name: str, steps: int, *, watched: bool) -> list[float]:
    """The losses of a training from a fixed seed."""
    training = WORKLOADS[name].make(0)
    if not watched:
        return [training.step().item() for _ in range(steps)]
    with (
        tempfile.TemporaryDirectory() as folder,
        torchvitals.watch(
            training.model,
            training.optimizer,
            run=Path(folder) / "run",
            every=1,
            updates="exact",
        ),
    ):
        return [training.step().item() for _ in range(steps)]


def main() -> None:
    """Compare and say so."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workloads", default="W1,W2,W3,W4")
    parser.add_argument("--steps", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(2)
    same = True
    for name in options.workloads.split(","):
        plain = losses(name, options.steps, watched=False)
        seen = losses(name, options.steps, watched=True)
        print(f"{name}: {'identical' if plain == seen else 'DIFFERENT'} {plain} {seen}")
        same = same and plain == seen
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
