"""Data that is wrong, ill-scaled, too little, leaked or repeated."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from torchvitals.testing.data import Data, Part, images
from torchvitals.testing.fault import Fault
from torchvitals.testing.settings import Settings
from torchvitals.testing.training import Training


def _draw(settings: Settings) -> torch.Generator:
    return torch.Generator().manual_seed(settings.seed + 77)


class ShuffledLabels(Fault):
    """Labels of the training set are dealt out anew."""

    number, id, bases = 30, "shuffled-labels", "MC"
    names = ("plateau", "overfitting", "input_ignored")

    def data(self, data: Data, settings: Settings) -> Data:
        """All of them."""
        order = torch.randperm(len(data.train.targets), generator=_draw(settings))
        data.train = data.train._replace(targets=data.train.targets[order])
        return data


class LostInputs(Fault):
    """Inputs are zero, or (odd seeds) one sample off their labels."""

    number, id, bases = 31, "inputs-lost", "M"
    names = ("input_ignored", "plateau", "input_scale", "overfitting")

    def data(self, data: Data, settings: Settings) -> Data:
        """In training and validation: it is the data path that is broken."""
        for name in ("train", "val", "test"):
            part = getattr(data, name)
            moved = part.inputs.roll(1, 0) if self.mild else torch.zeros_like(part.inputs)
            setattr(data, name, part._replace(inputs=moved))
        return data


class Bytes(Fault):
    """Inputs of 0…255 instead of mean 0, deviation 1."""

    number, id, bases = 32, "inputs-0-255", "MC"
    names = ("input_scale",)

    @classmethod
    def variant_of(cls, base: str) -> Mapping[str, Any]:
        """A normalised network would not mind."""
        return {"norm": False, "optimizer": "adamw", "lr": 2e-3} if base == "C" else {}

    def data(self, data: Data, settings: Settings) -> Data:
        """As an image file has them."""
        low, high = data.train.inputs.min(), data.train.inputs.max()
        for name in ("train", "val", "test"):
            part = getattr(data, name)
            scaled = (255 * (part.inputs - low) / (high - low)).clamp(0, 255).round()
            setattr(data, name, part._replace(inputs=scaled))
        return data


class RareClasses(Fault):
    """99 of 100 samples are of one class, in training and validation; the test is balanced."""

    number, id, bases = 33, "classes-99-1", "C"
    names = ("class_imbalance",)

    def data(self, data: Data, settings: Settings) -> Data:
        """Drawn from a larger set, so that the number of samples stays."""
        large = images(1000 + settings.seed, 5 * settings.num_samples)
        data.train = self._unbalanced(large.train, settings.num_samples, settings)
        data.val = self._unbalanced(large.val, 500, settings)
        return data

    @staticmethod
    def _unbalanced(part: Part, count: int, settings: Settings) -> Part:
        common = (part.targets == 0).nonzero().flatten()
        rare = (part.targets != 0).nonzero().flatten()
        few = max(1, count // 100)
        common = common.repeat(1 + count // len(common))[: count - few]
        places = torch.cat([common, rare[:few]])
        places = places[torch.randperm(len(places), generator=_draw(settings))]
        return Part(part.inputs[places], part.targets[places])


class FewSamples(Fault):
    """200 samples, and a run long enough to learn them by heart."""

    number, id, bases = 34, "200-samples", "C"
    names = ("overfitting",)

    def settings(self, settings: Settings) -> None:
        """A constant rate and twice the steps."""
        settings.schedule = "constant"
        settings.steps = settings.steps * 2 if settings.steps >= 100 else settings.steps
        settings.dropout = 0.0
        settings.weight_decay = 0.0

    def data(self, data: Data, settings: Settings) -> Data:
        """The first 200."""
        data.train = Part(data.train.inputs[:200], data.train.targets[:200])
        return data


class Leak(Fault):
    """The validation set is a part of the (small) training set."""

    number, id, bases = 35, "validation-in-train", "C"
    names = ("leakage",)
    harms = "report"
    variant = {"num_samples": 500, "dropout": 0.3}  # noqa: RUF012

    def data(self, data: Data, settings: Settings) -> Data:
        """Half of it."""
        data.val = Part(data.train.inputs[:250], data.train.targets[:250])
        return data


class SameWorkerSeed(Fault):
    """Four workers draw their samples with the same seed, anew in each epoch.

    No processes are started: what comes out of such a loader is the same few batches, four times
    each, epoch after epoch.
    """

    number, id, bases = 38, "same-worker-seed", "C"
    names = ("repeated_batches", "overfitting")

    def loader(self, training: Training) -> Iterable[tuple[Tensor, Tensor]]:
        """Sixteen batches an epoch, of which four differ."""
        part, size = training.data.train, training.settings.batch_size

        class Workers:
            def __len__(self) -> int:
                return 16

            def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
                for turn in range(4):
                    for _worker in range(4):
                        cut = slice(turn * size, (turn + 1) * size)
                        yield part.inputs[cut], part.targets[cut]

        return Workers()
