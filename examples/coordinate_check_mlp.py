"""A coordinate check of an MLP, as PyTorch users build it (sp) and under μP (mup).

Run it, or hand its functions to the command line:

    python examples/coordinate_check_mlp.py
    vitals coordcheck examples/coordinate_check_mlp.py:mup --widths 64,128,256,512 --plot mup.png

With Adam and one learning rate for all layers, what the update of a hidden layer does to its output
grows with the width: each weight moves by about the learning rate, and fan_in of these moves add
up. μP divides the learning rate of every layer whose fan_in grows by its growth.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from torchvitals.coordcheck import coordinate_check

BASE_WIDTH = 64
"""Where both variants are the same."""
LR = 1e-4
NUM_INPUTS, NUM_CLASSES, BATCH_SIZE = 32, 10, 8


class MLP(nn.Module):
    """Three hidden layers; weights of variance 2/fan_in."""

    def __init__(self, width: int, readout_std: float) -> None:
        super().__init__()
        self.embed = nn.Linear(NUM_INPUTS, width)
        self.hidden1 = nn.Linear(width, width)
        self.hidden2 = nn.Linear(width, width)
        self.readout = nn.Linear(width, NUM_CLASSES)
        for layer in (self.embed, self.hidden1, self.hidden2, self.readout):
            nn.init.normal_(layer.weight, std=(2 / layer.in_features) ** 0.5)
            nn.init.zeros_(layer.bias)
        nn.init.normal_(self.readout.weight, std=readout_std)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        for layer in (self.embed, self.hidden1, self.hidden2):
            x = torch.relu(layer(x))
        out: Tensor = self.readout(x)
        return out


def sp(width: int) -> MLP:
    """Standard parametrisation: the readout as any other layer."""
    return MLP(width, readout_std=width**-0.5)


def mup(width: int) -> MLP:
    """μP: the readout starts at 1/fan_in, not at its root."""
    return MLP(width, readout_std=BASE_WIDTH**0.5 / width)


def adam(model: MLP) -> torch.optim.Optimizer:
    """One learning rate for all, as most do."""
    return torch.optim.Adam(model.parameters(), lr=LR)


def mup_adam(model: MLP) -> torch.optim.Optimizer:
    """The learning rate of weights whose fan_in grows falls as 1/fan_in."""
    growing = [layer.weight for layer in (model.hidden1, model.hidden2, model.readout)]
    others = [model.embed.weight, *(b for name, b in model.named_parameters() if "bias" in name)]
    growth = model.hidden1.in_features / BASE_WIDTH
    return torch.optim.Adam([{"params": growing, "lr": LR / growth}, {"params": others, "lr": LR}])


sp.optimizer = adam  # type: ignore[attr-defined]  # the command line looks here
mup.optimizer = mup_adam  # type: ignore[attr-defined]


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """One small batch again and again: updates act most on the inputs they were made for.

    On other or more data a random part is added that goes as the root of the width; it hides the
    exponents of small models.
    """
    dice = torch.Generator().manual_seed(1)
    x = torch.randn(BATCH_SIZE, NUM_INPUTS, generator=dice)
    y = torch.randint(NUM_CLASSES, (BATCH_SIZE,), generator=dice)
    while True:
        yield x, y


def main() -> None:
    """Check both variants and show their exponents."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--widths", default="64,128,256,512,1024")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--plots", metavar="FOLDER", help="draw sp.png and mup.png there")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # layers this small only wait for each other's threads
    widths = [int(width) for width in chosen.widths.split(",")]
    predictions = {"sp": {"embed": 0.0, "hidden.|readout": 1.0}, "mup": {".*": 0.0}}
    for make, optimizer in ((sp, adam), (mup, mup_adam)):
        table = coordinate_check(
            make, widths, batches, optimizer=optimizer, steps=chosen.steps, seeds=chosen.seeds
        )
        print(f"{make.__name__}: {table.summary()}\n")
        if chosen.plots:
            table.plot(f"{chosen.plots}/{make.__name__}.png", predicted=predictions[make.__name__])


if __name__ == "__main__":
    main()
