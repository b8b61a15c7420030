"""The four small models: MLP, CNN, character GPT, recurrent net. Plain PyTorch."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812  as everybody calls it

ACTIVATIONS: dict[str, type[nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


class MLP(nn.Module):
    """`depth` hidden layers of `width`, then a head."""

    def __init__(
        self, size: int, width: int, depth: int, outputs: int, *, activation: str, dropout: float
    ) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for place in range(depth):
            layers += [nn.Linear(width if place else size, width), ACTIVATIONS[activation]()]
            if dropout:
                layers.append(nn.Dropout(dropout))
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, size) → (batch, outputs)."""
        out: Tensor = self.head(self.layers(x))
        return out


class Block(nn.Sequential):
    """Convolution, normalisation, ReLU, pooling."""

    def __init__(self, inputs: int, outputs: int, *, norm: bool) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=not norm)
        if norm:
            self.norm = nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU()
        self.pool = nn.MaxPool2d(2)


class CNN(nn.Module):
    """Three blocks and two linear layers, for 16×16 pictures."""

    def __init__(self, width: int, outputs: int, *, norm: bool, dropout: float) -> None:
        super().__init__()
        self.blocks = nn.Sequential(
            Block(1, width, norm=norm),
            Block(width, 2 * width, norm=norm),
            Block(2 * width, 2 * width, norm=norm),
        )
        self.flatten = nn.Flatten()
        self.hidden = nn.Linear(8 * width, 32)
        self.relu = nn.ReLU()
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(32, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, 1, 16, 16) → (batch, outputs)."""
        features = self.relu(self.hidden(self.flatten(self.blocks(x))))
        out: Tensor = self.head(self.dropout(features))
        return out


class Attention(nn.Module):
    """Causal self-attention."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key = nn.Linear(width, width)
        self.value = nn.Linear(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → the same."""
        batch, length, width = x.shape

        def split(y: Tensor) -> Tensor:
            return y.view(batch, length, self.heads, width // self.heads).transpose(1, 2)

        mixed = F.scaled_dot_product_attention(
            split(self.query(x)), split(self.key(x)), split(self.value(x)), is_causal=True
        )
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    """Attention and a two-layer net, each behind a LayerNorm, each added."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.gelu = nn.GELU()
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → the same."""
        x = x + self.dropout(self.attention(self.norm1(x)))
        out: Tensor = x + self.dropout(self.down(self.gelu(self.up(self.norm2(x)))))
        return out


class GPT(nn.Module):
    """Embeddings, layers, a norm, a head."""

    def __init__(
        self, letters: int, width: int, depth: int, length: int, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.Sequential(*(Layer(width, 4, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, letters)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(
                    module.weight, std=0.02 if isinstance(module, nn.Embedding) else width**-0.5 / 2
                )
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, time) → (batch, time, letters)."""
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = self.layers(self.letters(tokens) + self.places(places))
        out: Tensor = self.head(self.norm(x))
        return out


class Recurrent(nn.Module):
    """A tanh RNN (orthogonal recurrent weights) or an LSTM; the last state decides."""

    def __init__(self, size: int, width: int, outputs: int, *, lstm: bool) -> None:
        super().__init__()
        self.rnn: nn.RNNBase
        if lstm:
            self.rnn = nn.LSTM(size, width, batch_first=True)
            start = self.get_parameter("rnn.bias_hh_l0").data
            nn.init.constant_(start[width : 2 * width], 4.0)  # remember at first
        else:
            self.rnn = nn.RNN(size, width, batch_first=True)
            nn.init.orthogonal_(self.get_parameter("rnn.weight_hh_l0"))
            nn.init.zeros_(self.get_parameter("rnn.bias_hh_l0"))
            nn.init.zeros_(self.get_parameter("rnn.bias_ih_l0"))
        self.head = nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, size) → (batch, outputs)."""
        states, _ = self.rnn(x)
        out: Tensor = self.head(states[:, -1])
        return out
