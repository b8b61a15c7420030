"""The training that `vitals demo` runs: an ordinary PyTorch script around one `watch()`.

A character GPT learns the sources of Python's standard library. One fault is planted, see `FAULTY`.
Everything else is as anybody would write it; torchvitals is the `with` and the `monitor.log`.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from itertools import groupby
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as everybody calls it

import torchvitals

LAYERS, HEADS, WIDTH, BLOCK = 4, 4, 128, 64
LEARNING_RATE = 1e-3
WARM_UP = 40
CLIP = 5.0
MAX_CHARACTERS = 500_000

FAULTY = "head"
"""This layer sits in a parameter group whose learning rate is 0: it gets gradients, never moves.

The others work around it, and the loss falls, far less than it could: about 3.3 instead of 2.4.
"""


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → the same."""
        batch, length, _ = x.shape
        heads = self.qkv(x).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, WIDTH))
        return out


class MLP(nn.Module):
    """Up, GELU, down."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(…, width) → the same."""
        out: Tensor = self.down(self.gelu(self.up(x)))
        return out


class Block(nn.Module):
    """One transformer block, normalised first."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), MLP()

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → the same."""
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.mlp(self.norm2(x))
        return out


class GPT(nn.Module):
    """Characters in, logits of the next character out."""

    def __init__(self, num_characters: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(num_characters, WIDTH)
        self.places = nn.Embedding(BLOCK, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, num_characters, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, text: Tensor) -> Tensor:
        """(batch, time) → (batch, time, characters)."""
        x = self.tokens(text) + self.places.weight[: text.shape[1]]
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def read_text() -> str:
    """Sources of the standard library, which every Python has."""
    parts, length = [], 0
    for path in sorted(Path(os.__file__).parent.glob("*.py")):
        parts.append(path.read_text(encoding="utf-8", errors="ignore"))
        length += len(parts[-1])
        if length > MAX_CHARACTERS:
            break
    return "".join(parts)[:MAX_CHARACTERS].encode("ascii", "ignore").decode()


def train(
    run: Path,
    *,
    steps: int,
    seconds: float,
    batch_size: int,
    every: int,
    rates: Mapping[str, float] | None = None,
    on_step: Callable[[int, float], None],
    stopped: Callable[[], bool],
) -> None:
    """Train for so many steps or seconds, whichever ends first, or until `stopped()`.

    `rates` are learning rates by parameter that go before those of this script; "" is everybody's.
    The same seed draws the same weights and batches, whatever they are.
    """
    # So small a model gains little from more threads, and on a busy machine, or with fewer
    # processors than there seem to be, they wait for each other most of the time.
    torch.set_num_threads(1)
    torch.manual_seed(0)
    text = read_text()
    alphabet = sorted(set(text))
    index = {character: at for at, character in enumerate(alphabet)}
    data = torch.tensor([index[character] for character in text])
    model = GPT(len(alphabet))

    # The fault: a slip in the parameter groups, as one makes it with layer-wise learning rates.
    rates = rates or {}
    usual = rates.get("", LEARNING_RATE)
    planned = {
        name: rates.get(name, 0.0 if name.startswith(FAULTY) else usual)
        for name, _ in model.named_parameters()
    }
    groups = [
        {"params": [model.get_parameter(name) for name in names], "lr": rate}
        for rate, names in groupby(planned, planned.__getitem__)
    ]
    optimizer = torch.optim.AdamW(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP, 1.0)
    )

    config = {
        "batch_size": batch_size,
        "block": BLOCK,
        "lr": usual,
        f"lr of the {FAULTY}": planned[f"{FAULTY}.weight"],
    }
    begun = time.monotonic()
    with torchvitals.watch(
        model, optimizer, run=run, every=every, total_steps=steps, config=config
    ) as monitor:
        for step in range(1, steps + 1):
            starts = torch.randint(len(data) - BLOCK - 1, (batch_size,))
            batch = torch.stack([data[start : start + BLOCK + 1] for start in starts])
            logits = model(batch[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            loss.backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            monitor.log(loss=loss)
            on_step(step, loss.item())
            if stopped() or time.monotonic() - begun > seconds:
                break
