"""A training for the page's tests and screenshots: a small GPT, one fault at most, a process alone.

    python tests/browser/training.py FOLDER --fault frozen --steps 300

Writes one run, watched in full: attention, categories, evaluations, checkpoints. The faults are
real (a group with learning rate 0, a learning rate far too high, a NaN in a batch's loss), and
what is wrong is stored as finding events, as the diagnosis stores them.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import torchvitals
from torchvitals.cli.demo_training import BLOCK, FAULTY, GPT, read_text
from torchvitals.record.finding import Cause, Evidence, Finding, Severity

LEARNING_RATE, HOT = 2e-3, 4e-2
WARM_UP, EVAL_EVERY, SAVE_EVERY = 20, 25, 60
MARKUP = "<img src=x onerror=document.title='owned'>"
"""A metric somebody might log: the page must show it as text."""


def worst(history: Any, key: str) -> tuple[int, float]:
    """Step and size of the largest magnitude that was stored so far."""
    steps, values = history.series(key)
    finite = np.where(np.isfinite(values), np.abs(values), -1.0)
    at = int(np.argmax(finite))
    return int(steps[at]), float(finite[at])


def frozen(step: int, history: Any) -> Finding:
    """The finding of a layer that gets gradients and never moves."""
    key, gradient = f"update/{FAULTY}.weight/ratio", f"gradient/{FAULTY}.weight/rms"
    at, size = worst(history, gradient)
    return Finding(
        name="frozen_layer",
        severity=Severity.WARNING,
        sites=(f"{FAULTY}.weight", f"{FAULTY}.bias"),
        first_step=1,
        last_step=step,
        evidence=(
            Evidence(
                text=f"update ratio 0 for {step} steps, frozen is at or below 1e-12",
                key=key, step=step, value=0.0, threshold=1e-12,
            ),
            Evidence(
                text=f"its gradient is not zero: rms up to {size:.2g}",
                key=gradient, step=at, value=size,
            ),
        ),
        explanation=(
            f"{FAULTY} receives gradients but its weights have not changed since step 1. Its "
            "neighbours move by about one part in a thousand a step. The layer stays at its "
            "initial values and the rest of the model has to work around it."
        ),
        causes=(
            Cause(
                text="Its parameter group has learning rate 0",
                test="optimizer.param_groups: the group that holds it says lr=0.0",
                confidence=0.93,
            ),
            Cause(
                text="It was left out of the optimizer",
                test="look for its id among the ids of all groups' params",
                confidence=0.05,
            ),
        ),
        fix="Give group 1 the learning rate of its neighbours: set lr from 0 to 0.002",
        change={"lr": {"from": 0.0, "to": 0.002}},
        confidence=0.97,
        symptoms=(
            Finding(
                name="uneven_updates",
                severity=Severity.INFO,
                sites=("blocks.2.mlp",),
                first_step=1,
                last_step=step,
                evidence=(
                    Evidence(
                        text="update ratios of one block differ by more than 1000 times",
                        key="update/blocks.2.mlp/ratio", step=step,
                    ),
                ),
                explanation="Half of the block learns, the other half stands still.",
                confidence=0.6,
            ),
        ),
    )  # fmt: skip


def hot(step: int, history: Any) -> Finding:
    """The finding of a learning rate that is too high."""
    logit = "attention/blocks.3.attention.head_1/max_logit"
    ratio = "summary/update_ratio/median"
    (loss_at, loss), (ratio_at, ratios), (logit_at, logits) = (
        worst(history, key) for key in ("loss", ratio, logit)
    )
    return Finding(
        name="learning_rate_too_high",
        severity=Severity.ERROR,
        sites=("[root module]", "blocks.3.mlp.down.weight", "head.weight"),
        first_step=ratio_at,
        last_step=step,
        evidence=(
            Evidence(
                text=f"loss jumped to {loss:.3g}, above 4",
                key="loss", step=loss_at, value=loss, threshold=4.0,
            ),
            Evidence(
                text=f"median update ratio {ratios:.2g}, healthy is below 0.01",
                key=ratio, step=ratio_at, value=ratios, threshold=0.01,
            ),
            Evidence(
                text=f"attention logit of size {logits:.3g}, the softmax is saturated above 30",
                key=logit, step=logit_at, value=logits, threshold=30.0,
            ),
        ),
        explanation=(
            "Each step changes the weights by more than a hundredth of their size. The loss jumps "
            "instead of falling, and attention collapses onto single tokens."
        ),
        causes=(
            Cause(text="Learning rate too high for this width",
                  test="halve it: the loss falls again within 50 steps", confidence=0.8),
            Cause(text="Warm-up too short", test="warm up ten times longer: no jump",
                  confidence=0.15),
        ),
        fix="Lower lr from 0.04 to 0.004",
        change={"lr": {"from": 0.04, "to": 0.004}},
        confidence=0.88,
    )  # fmt: skip


def train(run: Path, *, fault: str, steps: int, pause: float, batch_size: int, seed: int) -> None:
    """Train for so many steps; `pause` seconds after each let others at the processor."""
    torch.manual_seed(seed)
    text = read_text()[:200_000]
    alphabet = sorted(set(text))
    index = {character: at for at, character in enumerate(alphabet)}
    data = torch.tensor([index[character] for character in text])
    model = GPT(len(alphabet))
    peak = HOT if fault == "hot" else LEARNING_RATE
    still = [p for n, p in model.named_parameters() if fault == "frozen" and n.startswith(FAULTY)]
    moving = [p for p in model.parameters() if not any(p is other for other in still)]
    groups: list[dict[str, Any]] = [{"params": moving, "lr": peak}]
    if still:
        groups.append({"params": still, "lr": 0.0})
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: min((s + 1) / WARM_UP, 0.55 + 0.45 * math.cos(math.pi * min(s / steps, 1))),
    )
    config = {
        "batch_size": batch_size, "lr": peak, "fault": fault, "seed": seed,
        "model": {"width": 128, "layers": 4, "heads": 4}, "clip": 1.0,
    }  # fmt: skip

    def batch() -> torch.Tensor:
        starts = torch.randint(len(data) - BLOCK - 1, (batch_size,))
        return torch.stack([data[start : start + BLOCK + 1] for start in starts])

    with torchvitals.watch(
        model, optimizer, run=run, every=2, attention=True, total_steps=steps,
        samples_every=20, config=config, diagnose=False,
    ) as monitor:  # fmt: skip
        for step in range(1, steps + 1):
            chars = batch()
            each = F.cross_entropy(
                model(chars[:, :-1]).flatten(0, 1), chars[:, 1:].flatten(), reduction="none"
            )
            loss = each.mean()
            if fault == "hot" and step == steps // 2:
                loss = loss * float("nan")
                monitor.event("skip", "the step was skipped: its gradient was not finite")
                monitor.log(loss=loss)
                optimizer.zero_grad()
                continue
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            monitor.log(loss=loss, **{MARKUP: 1.0})
            kinds = ["letter" if alphabet[int(c)].isalpha() else "other"
                     for c in chars[:, 1:].flatten()[:64]]  # fmt: skip
            monitor.log_samples(each.detach()[:64], category=kinds)
            if step % EVAL_EVERY == 0:
                with torch.no_grad():
                    chars = batch()
                    logits = model(chars[:, :-1]).flatten(0, 1)
                    target = chars[:, 1:].flatten()
                    monitor.log_eval(
                        "val",
                        loss=F.cross_entropy(logits, target).item(),
                        accuracy=(logits.argmax(1) == target).float().mean().item(),
                    )
            if step % SAVE_EVERY == 0:
                monitor.event("checkpoint", f"saved step-{step}.pt", path=f"step-{step}.pt")
            if fault in _FINDINGS and step in (40, steps - 1):
                finding = _FINDINGS[fault](step, monitor.history)
                monitor.event(
                    "finding", finding.explanation, id=f"{finding.name}/{finding.sites[0]}",
                    state="opened" if step == 40 else "updated", finding=finding.to_json(),
                )  # fmt: skip
            if pause:
                time.sleep(pause)


_FINDINGS = {"frozen": frozen, "hot": hot}


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--fault", choices=["none", "frozen", "hot"], default="none")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    train(
        given.run, fault=given.fault, steps=given.steps, pause=given.pause,
        batch_size=given.batch_size, seed=given.seed,
    )  # fmt: skip


if __name__ == "__main__":
    main()
