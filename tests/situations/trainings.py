"""Short trainings in the situations of the table that one process can be in.

Each calls `watch(model, optimizer)` where a user would, and gives its losses and what it trained.
"""

from functools import partial
from typing import Any, NamedTuple

import peft
import torch
from torch import _dynamo, nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

STEPS = 4


class Trained(NamedTuple):
    losses: list[float]
    model: Any
    optimizer: Any


class Block(nn.Module):
    def __init__(self, how=None):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)
        self.how = how

    def forward(self, x):
        def inner(x):
            return x + self.down(self.act(self.up(x)))

        return inner(x) if self.how is None else self.how(inner, x)


class Net(nn.Module):
    """Two blocks and a head; `how` the blocks are called."""

    def __init__(self, *how):
        super().__init__()
        self.blocks = nn.ModuleList(Block(one) for one in (how or (None, None)))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def build(*how, optimizer=torch.optim.AdamW, **kwargs):
    torch.manual_seed(0)
    model = Net(*how)
    return model, optimizer(model.parameters(), lr=0.01, **kwargs)


def batch(number, size=12):
    return torch.randn(size, 8, generator=torch.Generator().manual_seed(number))


def loss_of(model, number, size=12, dtype=torch.float32):
    x = batch(number, size).to(dtype)
    return (model(x) - x[:, :3]).float().square().mean()


def go(model, optimizer, steps=range(STEPS), *, sizes=(12,), step=None, **how):
    """Train for some steps of several micro-batches."""
    losses = []
    for number in steps:
        for part, size in enumerate(sizes if number < STEPS - 1 else sizes[: len(sizes) // 2 + 1]):
            loss = loss_of(model, 10 * number + part, size, **how)
            loss.backward()
            losses.append(loss.detach())
        (step or optimizer.step)()
        optimizer.zero_grad()
    return losses


def trained(losses, model, optimizer):
    return Trained(torch.stack(losses).tolist(), model, optimizer)


def plain(watch):
    model, optimizer = build()
    watch(model, optimizer)
    return trained(go(model, optimizer), model, optimizer)


def accumulated(watch, sizes):
    model, optimizer = build()
    watch(model, optimizer)
    return trained(go(model, optimizer, sizes=sizes), model, optimizer)


def checkpointed(watch):
    reentrant, other = (partial(checkpoint, use_reentrant=which) for which in (True, False))
    model, optimizer = build(lambda f, x: reentrant(f, x.requires_grad_()), other)
    watch(model, optimizer)
    return trained(go(model, optimizer), model, optimizer)


def keep_products(_context, operator, *_args, **_kwargs):
    kept = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


def selectively_checkpointed(watch):
    contexts = partial(create_selective_checkpoint_contexts, keep_products)
    how = partial(checkpoint, use_reentrant=False, context_fn=contexts)
    model, optimizer = build(how, how)
    watch(model, optimizer)
    return trained(go(model, optimizer), model, optimizer)


def scaled(watch, *, fused, unscale, bad=None):
    model, optimizer = build(fused=fused)
    watch(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
    losses = []
    for number in range(STEPS):
        loss = loss_of(model, number) * (float("inf") if number == bad else 1.0)
        scaler.scale(loss).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return trained(losses, model, optimizer)


def autocast(watch):
    model, optimizer = build()
    watch(model, optimizer)
    with torch.autocast("cpu", torch.bfloat16):
        losses = go(model, optimizer)
    return trained(losses, model, optimizer)


def low_precision(watch, dtype, lr=0.01):
    torch.manual_seed(0)
    model = Net().to(dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    watch(model, optimizer)
    return trained(go(model, optimizer, dtype=dtype), model, optimizer)


def compiled(watch, how, sizes=None):
    _dynamo.reset()
    model, optimizer = build()
    model = how(model)
    watch(model, optimizer)
    losses = []
    for number in range(STEPS):
        losses += go(model, optimizer, [number], sizes=(sizes[number] if sizes else 12,))
    return trained(losses, model, optimizer)


def in_place(model):
    model.compile()
    return model


def whole(model, **kwargs):
    return torch.compile(model, fullgraph=True, **kwargs)


def by_themselves(model):
    for block in model.blocks:
        block.compile()
    return model


def compiled_step(watch):
    _dynamo.reset()
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01))
    watch(model, optimizer)
    return trained(go(model, optimizer, step=torch.compile(optimizer.step)), model, optimizer)


def changed(watch, change):
    """Something happens to the model between the second and the third step."""
    model, optimizer = build()
    watch(model, optimizer)
    losses = go(model, optimizer, range(2))
    optimizer = change(model, optimizer) or optimizer
    return trained(losses + go(model, optimizer, range(2, STEPS)), model, optimizer)


def freeze(model, _optimizer):
    model.head.requires_grad_(False)


def initialise_anew(model, _optimizer):
    torch.manual_seed(7)
    model.head.reset_parameters()


def load_and_move(model, _optimizer):
    torch.manual_seed(7)
    model.load_state_dict(Net().state_dict())
    model.head.weight.data = model.head.weight.data.clone()


def swap(model, optimizer):
    torch.manual_seed(7)
    model.head = nn.Linear(8, 3)
    optimizer.add_param_group({"params": list(model.head.parameters())})


def another_optimizer(model, optimizer):
    optimizer.zero_grad()
    return torch.optim.SGD(model.parameters(), lr=0.02)


def frozen_and_unfrozen(watch):
    model, optimizer = build()
    watch(model, optimizer)
    losses = []
    for number in range(STEPS):
        model.head.requires_grad_(number in {0, 3})
        losses += go(model, optimizer, [number])
    return trained(losses, model, optimizer)


def added_group(watch):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.AdamW(model.head.parameters(), lr=0.01)
    watch(model, optimizer)
    losses = go(model, optimizer, range(2))
    optimizer.add_param_group({"params": list(model.blocks.parameters()), "lr": 0.005})
    model.zero_grad()
    return trained(losses + go(model, optimizer, range(2, STEPS)), model, optimizer)


def built_on_meta(watch):
    with torch.device("meta"):
        model = Net()
    model.to_empty(device="cpu")
    torch.manual_seed(0)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch(model, optimizer)
    return trained(go(model, optimizer), model, optimizer)


def lazy(watch):
    torch.manual_seed(0)
    model = nn.Sequential(nn.LazyLinear(16), nn.GELU(), nn.LazyLinear(3))
    model(batch(0))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch(model, optimizer)
    return trained(go(model, optimizer), model, optimizer)


def tied(watch):
    torch.manual_seed(0)
    model = Net()
    model.blocks[1].up.weight = model.blocks[0].up.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    watch(model, optimizer)
    return trained(go(model, optimizer), model, optimizer)


def resumed(watch):
    """From a checkpoint in the same process, into new objects."""
    model, optimizer = build()
    monitor = watch(model, optimizer)
    losses = go(model, optimizer, range(2))
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    kept = None if monitor is None else monitor.state_dict()
    if monitor is not None:
        monitor.close()
    model, optimizer = build()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    monitor = watch(model, optimizer, resume=True)
    if monitor is not None:
        monitor.load_state_dict(kept)
    return trained(losses + go(model, optimizer, range(2, STEPS)), model, optimizer)


def lora(watch):
    torch.manual_seed(0)
    model = peft.get_peft_model(Net(), peft.LoraConfig(r=2, target_modules=["up", "down"]))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
    watch(model, optimizer)
    return trained(go(model, optimizer), model, optimizer)


def functional(watch):
    model, optimizer = build()
    watch(model, optimizer)
    losses = []
    for number in range(STEPS):
        x = batch(number)

        def value(weights, x=x):
            loss = (torch.func.functional_call(model, weights, (x,)) - x[:, :3]).square().mean()
            return loss, loss

        weights = dict(model.named_parameters())
        gradients, loss = torch.func.grad(value, has_aux=True)(weights)
        for name, parameter in model.named_parameters():
            parameter.grad = gradients[name].detach()
        optimizer.step()
        losses.append(loss.detach())
    return trained(losses, model, optimizer)


SITUATIONS = {
    "one process, float32": [plain],
    "gradient accumulation": [partial(accumulated, sizes=(12, 12))],
    "gradient accumulation, uneven last group": [partial(accumulated, sizes=(12, 12, 5))],
    "activation checkpointing, reentrant and not": [checkpointed],
    "selective activation checkpointing": [selectively_checkpointed],
    "AMP, optimizer not fused, with and without `unscale_`": [
        partial(scaled, fused=False, unscale=which) for which in (False, True)
    ],
    "AMP, fused optimizer, with and without `unscale_`": [
        partial(scaled, fused=True, unscale=which) for which in (False, True)
    ],
    "AMP, a step the scaler skips": [
        partial(scaled, fused=which, unscale=False, bad=1) for which in (False, True)
    ],
    "bf16 autocast": [autocast],
    "bf16 and fp16 parameters": [
        partial(low_precision, dtype=dtype) for dtype in (torch.bfloat16, torch.float16)
    ],
    "bf16 and fp16 parameters, updates lost to rounding": [
        partial(low_precision, dtype=dtype, lr=1e-5) for dtype in (torch.bfloat16, torch.float16)
    ],
    "`torch.compile(model)`": [partial(compiled, how=torch.compile)],
    "`model.compile()`": [partial(compiled, how=in_place)],
    "`fullgraph=True`, dynamic shapes": [
        partial(compiled, how=whole),
        partial(compiled, how=partial(whole, dynamic=True), sizes=(12, 13, 14, 15)),
    ],
    "layers compiled by themselves": [partial(compiled, how=by_themselves)],
    "compiled optimizer step": [compiled_step],
    "parameters frozen mid-run": [partial(changed, change=freeze)],
    "parameters frozen and unfrozen again": [frozen_and_unfrozen],
    "a layer initialised anew mid-run": [partial(changed, change=initialise_anew)],
    "a parameter group added to the optimizer": [added_group],
    "weights loaded or moved mid-run": [partial(changed, change=load_and_move)],
    "a layer swapped for another": [partial(changed, change=swap)],
    "an optimizer made anew": [partial(changed, change=another_optimizer)],
    "a model built on `meta`": [built_on_meta],
    "lazy modules": [lazy],
    "shared parameters": [tied],
    "resumed from a checkpoint": [resumed],
    "LoRA of peft": [lora],
    "`torch.func`": [functional],
}
