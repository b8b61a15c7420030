"""A coordinate check of a small transformer, standard (sp) and under μP (mup).

    python examples/coordinate_check_transformer.py
    vitals coordcheck examples/coordinate_check_transformer.py:mup --widths 64,128,256

Under μP, against the standard one: matrices whose fan_in grows get a learning rate of 1/fan_in,
attention logits are scaled by 1/d instead of 1/√d, and the readout starts at 1/fan_in.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from torchvitals.coordcheck import coordinate_check

BASE_WIDTH = 64
"""Where both variants are the same."""
LR = 1e-4
VOCABULARY, LENGTH, BATCH_SIZE, NUM_BLOCKS, NUM_HEADS = 48, 8, 2, 2, 4


class Block(nn.Module):
    """Attention and an MLP, each after a norm and beside a shortcut."""

    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.scale = scale
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query = nn.Linear(width, width, bias=False)
        self.key = nn.Linear(width, width, bias=False)
        self.value = nn.Linear(width, width, bias=False)
        self.output = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """The next hidden state."""
        normed = self.norm1(x)
        query, key, value = (
            layer(normed).unflatten(-1, (NUM_HEADS, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=self.scale)
        x = x + self.output(mixed.transpose(1, 2).flatten(-2))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class Transformer(nn.Module):
    """A decoder; weights of variance 1/fan_in."""

    def __init__(self, width: int, *, scale: float, readout_std: float) -> None:
        super().__init__()
        self.width = width
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        self.blocks = nn.ModuleList(Block(width, scale) for _ in range(NUM_BLOCKS))
        self.norm = nn.LayerNorm(width)
        self.readout = nn.Linear(width, VOCABULARY, bias=False)
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=layer.in_features**-0.5)
        nn.init.normal_(self.readout.weight, std=readout_std)

    def forward(self, ids: Tensor) -> Tensor:
        """Logits of the next token."""
        x = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.readout(self.norm(x))
        return out


def sp(width: int) -> Transformer:
    """Standard parametrisation."""
    return Transformer(width, scale=(width / NUM_HEADS) ** -0.5, readout_std=width**-0.5)


def mup(width: int) -> Transformer:
    """μP: attention scaled by 1/d, a small readout."""
    scale = (BASE_WIDTH / NUM_HEADS) ** 0.5 / (width / NUM_HEADS)
    return Transformer(width, scale=scale, readout_std=BASE_WIDTH**0.5 / width)


def adam(model: Transformer) -> torch.optim.Optimizer:
    """One learning rate for all."""
    return torch.optim.Adam(model.parameters(), lr=LR)


def mup_adam(model: Transformer) -> torch.optim.Optimizer:
    """Matrices whose fan_in grows with the width get 1/fan_in of the learning rate."""
    growing = [layer.weight for layer in model.modules() if isinstance(layer, nn.Linear)]
    known = set(map(id, growing))
    others = [parameter for parameter in model.parameters() if id(parameter) not in known]
    return torch.optim.Adam(
        [{"params": growing, "lr": LR * BASE_WIDTH / model.width}, {"params": others, "lr": LR}]
    )


sp.optimizer = adam  # type: ignore[attr-defined]  # the command line looks here
mup.optimizer = mup_adam  # type: ignore[attr-defined]


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """One small batch again and again; coordinate_check_mlp.py says why."""
    dice = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCABULARY, (BATCH_SIZE, LENGTH + 1), generator=dice)
    while True:
        yield ids[:, :-1], ids[:, 1:]


def main() -> None:
    """Check both variants and show their exponents."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--widths", default="64,128,256,512")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--plots", metavar="FOLDER", help="draw sp.png and mup.png there")
    chosen = parser.parse_args()
    torch.set_num_threads(1)  # layers this small only wait for each other's threads
    widths = [int(width) for width in chosen.widths.split(",")]
    matrices = r"blocks\.\d\.(query|key|value|output|up|down)|readout"
    predictions = {"sp": {matrices: 1.0, ".*": 0.0}, "mup": {".*": 0.0}}
    for make, optimizer in ((sp, adam), (mup, mup_adam)):
        table = coordinate_check(
            make, widths, batches, optimizer=optimizer, steps=chosen.steps, seeds=chosen.seeds
        )
        print(f"{make.__name__}: {table.summary()}\n")
        if chosen.plots:
            table.plot(f"{chosen.plots}/{make.__name__}.png", predicted=predictions[make.__name__])


if __name__ == "__main__":
    main()
