"""Accumulation, mixed precision and a resumed run, all in one training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

import torchvitals
from torchvitals.testing.bases import BASES
from torchvitals.testing.data import Part
from torchvitals.testing.fault import Fault
from torchvitals.testing.healthy.hand import Hand
from torchvitals.testing.healthy.plain import settings_of
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.training import Training


def accumulation_amp_resume(seed: int, folder: Path, steps: int | None) -> Outcome:
    """Four micro-batches a step under autocast, a GradScaler, stopped half-way and resumed.

    Odd seeds: float16 with the scaler at work; even ones: bfloat16, the scaler idle.
    """
    settings = settings_of("M", seed, steps, optimizer="adamw", lr=2e-3)
    settings.steps = steps or 400
    training = Training(BASES["M"], settings, Fault(seed))
    model = training.model
    dtype = torch.float16 if seed % 2 else torch.bfloat16
    hand = Hand(seed, settings.steps, settings=vars(settings))
    half = settings.steps // 2
    saved: dict[str, object] = {}

    def judge(part: Part) -> tuple[float, float]:
        model.eval()
        with torch.no_grad():
            outputs = model(part.inputs)
            loss = float(training.base.loss(outputs, part.targets))
            right = float((outputs.argmax(-1) == part.targets).float().mean())
        model.train()
        return loss, right

    for first, last in ((0, half), (half, settings.steps)):
        optimizer = training.make_optimizer(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12, enabled=dtype == torch.float16)
        if saved:
            optimizer.load_state_dict(saved["optimizer"])  # type: ignore[arg-type]
            scaler.load_state_dict(saved["scaler"])  # type: ignore[arg-type]
        with torchvitals.watch(
            model, optimizer, run=folder, every=5, total_steps=settings.steps,
            config=settings.config(), resume=first > 0,
        ) as monitor:  # fmt: skip
            step, micro = first, 0
            while step < last:
                for inputs, targets in monitor.data(training.batches()):
                    with torch.autocast("cpu", dtype=dtype):
                        loss = training.base.loss(model(inputs), targets)
                    scaler.scale(loss / 4).backward()  # type: ignore[no-untyped-call]
                    monitor.log(loss=loss.detach())
                    hand.note(loss)
                    micro += 1
                    if micro % 4:
                        continue
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 5.0)
                    scaler.step(optimizer)
                    scaler.update()
                    optimizer.zero_grad()
                    step += 1
                    if step % settings.eval_every == 0:
                        val_loss, accuracy = judge(training.data.val)
                        monitor.log_eval("val", loss=val_loss, accuracy=accuracy)
                    if step == last:
                        break
        saved = {"optimizer": optimizer.state_dict(), "scaler": scaler.state_dict()}
    test_loss, accuracy = judge(training.data.test)
    return hand.outcome(test_loss=test_loss, test_accuracy=accuracy)
