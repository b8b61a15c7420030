"""Data made from a seed: learnable, never downloaded. Each maker returns a `Data`.

- `clusters`: points in 20 dimensions, a few clouds to a class.
- `images`: 16×16 pictures of six shapes, anywhere, in noise.
- `text`: sentences of a made grammar over made words, as characters, with small sums in between.
- `recall`: a short signal, then silence; what was the signal?
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Inputs and targets of one split."""

    inputs: Tensor
    targets: Tensor


@dataclass
class Data:
    """A training set, the validation set the user looks at, and a test set nobody sees."""

    train: Part
    val: Part
    test: Part
    num_classes: int
    later: Part | None = None
    """The training set of the second half of the run, where the data shifts."""


def split(inputs: Tensor, targets: Tensor, num_train: int, num_classes: int) -> Data:
    """The first `num_train` samples to learn from; the rest halved into validation and test."""
    middle = num_train + (len(inputs) - num_train) // 2
    return Data(
        Part(inputs[:num_train], targets[:num_train]),
        Part(inputs[num_train:middle], targets[num_train:middle]),
        Part(inputs[middle:], targets[middle:]),
        num_classes,
    )


def clusters(seed: int, num_train: int, *, num_classes: int = 5, size: int = 20) -> Data:
    """Four Gaussian clouds to a class; about 95 % can be told apart."""
    draw = torch.Generator().manual_seed(seed)
    centres = torch.randn(num_classes * 4, size, generator=draw)
    which = torch.randint(len(centres), (num_train + 2000,), generator=draw)
    noise = torch.randn(len(which), size, generator=draw)
    points = centres[which] * 1.2 + noise * 0.95
    points = (points - points.mean(0)) / points.std(0)
    return split(points, which % num_classes, num_train, num_classes)


def images(seed: int, num_train: int, *, size: int = 16) -> Data:
    """Six shapes: square, cross, diagonal cross, bar, pole, ring; any place, bright in noise."""
    draw = torch.Generator().manual_seed(seed)
    total = num_train + 2000
    kinds = torch.randint(6, (total,), generator=draw)
    centre = torch.randint(4, size - 4, (total, 2), generator=draw)
    extent = torch.randint(2, 5, (total,), generator=draw)[:, None, None]
    rows = torch.arange(size)
    down = (rows[None, :, None] - centre[:, 0, None, None]).expand(total, size, size)
    right = (rows[None, None, :] - centre[:, 1, None, None]).expand(total, size, size)
    far = torch.maximum(down.abs(), right.abs())
    shapes = torch.stack(
        [
            far == extent,
            ((down == 0) | (right == 0)) & (far <= extent),
            (down.abs() == right.abs()) & (far <= extent),
            (down.abs() <= 1) & (right.abs() <= extent),
            (right.abs() <= 1) & (down.abs() <= extent),
            ((down**2 + right**2).float().sqrt() - extent).abs() < 0.6,
        ]
    )
    picture = shapes[kinds, torch.arange(total)].float()
    bright = 1.5 + torch.rand(total, 1, 1, generator=draw)
    pixels = picture * bright + torch.randn(total, size, size, generator=draw) * 0.75
    pixels = (pixels - pixels.mean()) / pixels.std()
    return split(pixels[:, None], kinds, num_train, 6)


LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789 .+=;\n"


def written(seed: int, length: int, letters: str = LETTERS[:26]) -> Tensor:
    """Characters of a made grammar, as indices into `LETTERS`."""
    draw = random.Random(seed)

    def word(shortest: int, longest: int) -> str:
        return "".join(draw.choices(letters, k=draw.randint(shortest, longest)))

    articles, adjectives = [word(2, 3) for _ in range(3)], [word(4, 6) for _ in range(8)]
    nouns, verbs = [word(3, 6) for _ in range(12)], [word(3, 5) for _ in range(8)]
    # Nouns choose their verbs: something to attend to.
    likes = {noun: draw.sample(verbs, 2) for noun in nouns}
    text: list[str] = []
    size = 0
    while size < length:
        if draw.random() < 0.2:
            left, right = draw.randint(0, 9), draw.randint(0, 9)
            sentence = f"{left}+{right}={left + right};\n"
        else:
            noun = draw.choice(nouns)
            adjective = f"{draw.choice(adjectives)} " if draw.random() < 0.4 else ""
            sentence = (
                f"{draw.choice(articles)} {adjective}{noun} {draw.choice(likes[noun])} "
                f"{draw.choice(articles)} {draw.choice(nouns)}.\n"
            )
        text.append(sentence)
        size += len(sentence)
    return torch.tensor([LETTERS.index(letter) for letter in "".join(text)[:length]])


def text(seed: int, num_train: int, length: int, *, shift: bool = False) -> Data:
    """Windows of a made text and the same one letter on.

    With `shift` the run begins on one sentence over and over, and is judged on this text.
    """
    draw = torch.Generator().manual_seed(seed)

    def windows(source: Tensor, count: int) -> Part:
        starts = torch.randint(len(source) - length - 1, (count,), generator=draw)
        places = starts[:, None] + torch.arange(length + 1)
        cut = source[places]
        return Part(cut[:, :-1], cut[:, 1:])

    whole = written(seed, 160_000)
    source, held_out = whole[:120_000], whole[120_000:]
    train, val, test = windows(source, num_train), windows(held_out, 200), windows(held_out, 200)
    if not shift:
        return Data(train, val, test, len(LETTERS))
    first = windows(written(seed + 1, 60).repeat(100), num_train)
    return Data(first, val, test, len(LETTERS), later=train)


def recall(seed: int, num_train: int, length: int, *, num_classes: int = 6, size: int = 8) -> Data:
    """Four steps of a noisy signal, then silence up to `length`."""
    draw = torch.Generator().manual_seed(seed)
    total = num_train + 1000
    kinds = torch.randint(num_classes, (total,), generator=draw)
    signals = torch.randn(num_classes, 4, size, generator=draw)
    sequences = torch.zeros(total, length, size)
    sequences[:, :4] = signals[kinds] + 0.5 * torch.randn(total, 4, size, generator=draw)
    return split(sequences, kinds, num_train, num_classes)
