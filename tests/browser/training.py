"""A training for the page's tests and screenshots: a small GPT, one fault at most, a process alone.

    python tests/browser/training.py FOLDER --fault frozen --steps 300

Writes one run, watched in full: attention, categories, evaluations, checkpoints. The faults are
real (a group with learning rate 0, a learning rate far too high, a NaN in a batch's loss), and
what is wrong is what the diagnosis finds beside the training, nothing is written by hand.
"""

from __future__ import annotations

import argparse
import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import torchvitals
from torchvitals.cli.demo_training import BLOCK, GPT, read_text

FAULTY = "blocks.2.mlp.down"
"""The layer whose group has learning rate 0."""
LEARNING_RATE, HOT = 2e-3, 4e-2
WARM_UP, EVAL_EVERY, SAVE_EVERY = 20, 25, 60
HELD_OUT = 32 * (BLOCK + 1)
"""Characters at the end of the text that are only evaluated on."""
MARKUP = "<img src=x onerror=document.title='owned'>"
"""A metric somebody might log: the page must show it as text."""


def train(run: Path, *, fault: str, steps: int, pause: float, batch_size: int, seed: int) -> None:
    """Train for so many steps; `pause` seconds after each let others at the processor."""
    torch.manual_seed(seed)
    text = read_text()[:200_000]
    alphabet = sorted(set(text))
    index = {character: at for at, character in enumerate(alphabet)}
    everything = torch.tensor([index[character] for character in text])
    data, unseen = everything[:-HELD_OUT], everything[-HELD_OUT:].view(-1, BLOCK + 1)
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
        samples_every=20, config=config,
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
                model.eval()
                with torch.no_grad():
                    logits = model(unseen[:, :-1]).flatten(0, 1)
                    target = unseen[:, 1:].flatten()
                    monitor.log_eval(
                        "val",
                        loss=F.cross_entropy(logits, target).item(),
                        accuracy=(logits.argmax(1) == target).float().mean().item(),
                    )
                model.train()
            if step % SAVE_EVERY == 0:
                monitor.event("checkpoint", f"saved step-{step}.pt", path=f"step-{step}.pt")
            if pause:
                time.sleep(pause)


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
