"""The training that bench/launch.py times: a script that steps as often as its stdin says.

    python bench/launched.py MODEL [--watch DIR]

Each line of stdin is a number of steps. They are trained, and a line of JSON says how long each
took, on the wall and in CPU time of the training thread; and the CPU time of the process since the
last line, all threads, which counts what a background thread did after the steps, too.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.utils.data import DataLoader, TensorDataset

from workloads import mlp


def wide() -> nn.Module:
    """Four layers of 2048: few tensors, 17 M parameters."""
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(2048, 2048), nn.ReLU()]
    return nn.Sequential(*layers)


def tiny() -> nn.Module:
    """So small that what is added to each step stands out."""
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))


MODELS = {"tiny": (tiny, 8), "wide": (wide, 2048), "deep": (mlp, 128)}
"""How to make it, and how wide it is; "deep" has 60 layers."""


def forever(loader: Any) -> Iterator[tuple[Tensor, Tensor]]:
    """Batches, epoch after epoch."""
    while True:
        yield from loader


def lengths(times: list[float]) -> list[float]:
    """From each moment to the next."""
    return [end - begin for begin, end in pairwise(times)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("--watch", metavar="DIR", help="call torchvitals.watch(), run in DIR")
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, width = MODELS[args.model]
    model = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    data = TensorDataset(torch.randn(512, width), torch.randint(width, (512,)))
    loader: Any = DataLoader(data, batch_size=32)
    monitor = None
    if args.watch:
        import torchvitals

        monitor = torchvitals.watch(model, optimizer, run=args.watch)
        loader = monitor.data(loader)
    batches = forever(loader)
    cpu = time.process_time()
    for line in sys.stdin:
        wall, thread = [time.perf_counter()], [time.thread_time()]
        for _ in range(int(line)):
            inputs, targets = next(batches)
            loss = F.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if monitor is not None:
                monitor.log(loss=loss)
            wall.append(time.perf_counter())
            thread.append(time.thread_time())
        time.sleep(0.05)  # what the monitor's threads have left to do is theirs, not the next one's
        before, cpu = cpu, time.process_time()
        took = {"wall_s": lengths(wall), "thread_s": lengths(thread), "process_s": cpu - before}
        print(json.dumps({**took, "loss": loss.item()}), flush=True)
    if monitor is not None:
        monitor.close()


if __name__ == "__main__":
    main()
