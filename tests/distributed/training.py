"""The same training in one process and spread over several, in every way torch offers."""

import logging
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

import torchvitals
from tests.monitor.device import FakeDevice
from tests.situations.hooks import hooks_of
from tests.situations.reads import Reads
from torchvitals.monitor import device_clock

UNCLIPPED = {"tensor_parallel", "fsdp2_and_tensor_parallel", "unclipped"}
"""Ways whose pieces torch can't take one norm of."""

STEPS, BATCH = 4, 12
"""A batch that 1, 2 and 4 ranks share evenly."""


class Block(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.up = nn.Linear(width, inner)
        self.act = nn.ReLU()
        self.down = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Net(nn.Module):
    """Sizes that don't divide evenly, a tensor with fewer rows than ranks, an unused layer."""

    def __init__(self, *, unused=False):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(1))
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block(8, 12) for _ in range(2))
        self.head = nn.Linear(8, 3)
        self.unused = nn.Linear(3, 3) if unused else None

    def forward(self, x):
        x = self.first(x * self.gain)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def ddp(model, _world_size):
    return DistributedDataParallel(model)


def ddp_unused(model, _world_size):
    return DistributedDataParallel(model, find_unused_parameters=True)


def fsdp2(model, world_size):
    mesh = init_device_mesh("cpu", (world_size,))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def hsdp(model, world_size):
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("replicate", "shard"))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)


def tensor_parallel(model, world_size, mesh=None):
    mesh = mesh or init_device_mesh("cpu", (world_size,))
    plan = {"up": ColwiseParallel(), "down": RowwiseParallel()}
    for block in model.blocks:
        parallelize_module(block, mesh, plan)
    return model


def fsdp2_and_tensor_parallel(model, world_size):
    mesh = init_device_mesh("cpu", (world_size // 2, 2), mesh_dim_names=("data", "tensor"))
    tensor_parallel(model, world_size, mesh["tensor"])
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])


WAYS = {
    "ddp": ddp,
    "ddp_unused": ddp_unused,
    "fsdp2": fsdp2,
    "hsdp": hsdp,
    "tensor_parallel": tensor_parallel,
    "fsdp2_and_tensor_parallel": fsdp2_and_tensor_parallel,
}


def batch_of(step, part, parts):
    """One rank's share of a step's batch."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(BATCH, 6, generator=generator)
    y = torch.randn(BATCH, 3, generator=generator)
    own = slice(part * BATCH // parts, (part + 1) * BATCH // parts)
    return x[own], y[own]


def data_part(way, rank, world_size):
    """Which share of the batch a rank sees: ranks of a tensor-parallel group see the same."""
    if way == "tensor_parallel":
        return 0, 1
    if way == "fsdp2_and_tensor_parallel":
        return rank // 2, world_size // 2
    return rank, world_size


@dataclass
class Result:
    """What a rank's training was like."""

    losses: list
    collectives: list
    """Of the monitor, in each step."""
    warnings: list
    hooks: list
    """What the model and the optimizer carry at the end."""
    reads: list = ()
    num_copies: int = 0


def train(rank, folder, world_size, way, watch, device=None):
    """Four steps; a `device` works one step behind."""
    heard = Heard()
    model, optimizer, monitor = start(folder, world_size, way, watch)
    part, parts = (0, 1) if way is None else data_part(way, rank, world_size)
    counts = Collectives(monitor)
    losses = []
    with device or nullcontext():
        for step in range(1, STEPS + 1):
            x, y = batch_of(step, part, parts)
            loss = (model(x) - y).square().mean()
            loss.backward()
            if way not in UNCLIPPED:
                nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
            counts.end_step()
            if device is not None:
                device.end_step()
    return end(model, optimizer, monitor, losses, counts, heard)


def start(folder, world_size, way, watch):
    """Model, optimizer and monitor, if any."""
    torch.manual_seed(0)
    model = Net(unused=way in {"ddp_unused", "unused"})
    if way in WAYS:
        model = WAYS[way](model, world_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    monitor = None
    if watch is not None:
        monitor = torchvitals.watch(model, optimizer, run=folder / "run", machine=False, **watch)
    return model, optimizer, monitor


def end(model, optimizer, monitor, losses, counts, heard):
    """Close everything."""
    if monitor is not None:
        monitor.close()
    hooks = hooks_of(model, optimizer)
    return Result(losses, counts.per_step, heard.texts, hooks)


class Behind(FakeDevice):
    """Holds all measurements, does its work one step late, and sees who reads tensors."""

    def __init__(self):
        super().__init__()
        self.reads = Reads()
        self._asked = 0

    def __enter__(self):
        self.reads.__enter__()

    def __exit__(self, *_):
        self.reads.__exit__()
        self.turn()
        self.runs = True

    def end_step(self):
        """What was asked of it in the step before is done."""
        self.turn(self._asked - self.done)
        self._asked = len(self.work)


def on_device(rank, folder, training, world_size, way, watch):
    """Any of the trainings; waiting for anything of the step under way ends in an error."""
    device = Behind()
    device_clock.this_clock = lambda: device
    result = training(rank, folder, world_size, way, watch, device)
    result.reads, result.num_copies = device.reads.places, device.num_copies
    return result


class Collectives:
    """Counts the collectives that the monitor makes, step by step."""

    def __init__(self, monitor):
        self.per_step, self._now = [], 0
        if monitor is None or monitor._ranks.world_size == 1:
            return
        group = monitor._ranks._group
        for name in ("all_gather", "gather", "all_reduce", "broadcast", "all_gather_object"):
            setattr(dist, name, self._counted(getattr(dist, name), group))

    def _counted(self, function, ours):
        def call(*args, **kwargs):
            if kwargs.get("group") is ours:
                self._now += 1
            return function(*args, **kwargs)

        return call

    def end_step(self):
        self.per_step.append(self._now)
        self._now = 0


class Heard(logging.Handler):
    """Keeps warnings."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.texts = []
        logging.getLogger("torchvitals").addHandler(self)

    def emit(self, record):
        self.texts.append(record.getMessage())


GROUPS = (3, 3, 2)
"""Micro-batches of each step: the last group is what was left of an epoch."""
MICRO = (12, 8, 4)
"""Samples of a group's first, second and third micro-batch, over all ranks: not all alike."""


def micro_batches(step, part, parts):
    """One rank's share of a step's micro-batches."""
    for number in range(GROUPS[step - 1]):
        generator = torch.Generator().manual_seed(100 * step + number)
        size = MICRO[number]
        x = torch.randn(size, 6, generator=generator)
        y = torch.randn(size, 3, generator=generator)
        own = slice(part * size // parts, (part + 1) * size // parts)
        yield x[own], y[own]


def train_accumulated(rank, folder, world_size, way, watch, device=None):
    """As `train`, with several backward passes a step; DDP talks in the last one only."""
    heard = Heard()
    model, optimizer, monitor = start(folder, world_size, way, watch)
    part, parts = (0, 1) if way is None else (rank, world_size)
    counts = Collectives(monitor)
    losses = []
    with device or nullcontext():
        for step, num in enumerate(GROUPS, start=1):
            for number, (x, y) in enumerate(micro_batches(step, part, parts), start=1):
                quiet = way is not None and number < num
                with model.no_sync() if quiet else nullcontext():
                    loss = (model(x) - y).square().mean() / num
                    loss.backward()
                losses.append(loss.item())
            optimizer.step()
            optimizer.zero_grad()
            counts.end_step()
            if device is not None:
                device.end_step()
    return end(model, optimizer, monitor, losses, counts, heard)
