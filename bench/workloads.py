"""The four trainings that every figure in the benchmarks is taken on. Plain PyTorch, no downloads.

W1  character GPT     6 layers, 6 heads, 384 wide, block 128, batch 8      10.7 M in 39 tensors
W2  ResNet-18-like    32×32 images, batch 32                               11.2 M in 62 tensors
W3  MLP               60 layers of 128, batch 64                              1 M in 120 tensors
W4  GPT-2-small       12 layers, 12 heads, 768 wide, block 64, batch 2      124 M in 148 tensors

AdamW with its defaults, float32. The batches are synthetic, drawn from the seed before any clock
starts, and repeat. W3 shows what a tensor costs in Python, W4 what memory traffic costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

NUM_BATCHES = 8


class Observer:
    """What may look on at a training. This one does nothing; monitors fill in what they need.

    `attach` and `close` stand outside the clock, the other three inside.
    """

    def attach(self, training: Training) -> None:
        """Install whatever is needed on `training`."""

    def before_forward(self) -> None:
        """The step begins."""

    def after_backward(self) -> None:
        """Gradients are there, the optimizer has not stepped."""

    def after_step(self, loss: Tensor) -> None:
        """The optimizer has stepped, gradients are still there."""

    def close(self) -> None:
        """Leave nothing behind."""


class Training:
    """A model, its optimizer and its batches. One `step()` is one turn of an ordinary loop."""

    def __init__(
        self,
        model: nn.Module,
        batches: list[tuple[Tensor, Tensor]],
        loss: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        self.model = model
        self.optimizer = torch.optim.AdamW(model.parameters())
        self.observer = Observer()
        self._batches = batches
        self._loss = loss
        self._next = 0

    def step(self) -> Tensor:
        """Forward, backward, optimizer step, gradients dropped. Returns the loss, detached."""
        inputs, targets = self._batches[self._next % len(self._batches)]
        self._next += 1
        self.observer.before_forward()
        loss = self._loss(self.model(inputs), targets)
        loss.backward()
        self.observer.after_backward()
        self.optimizer.step()
        self.observer.after_step(loss)
        self.optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    def observe(self, observer: Observer) -> None:
        """Let `observer` look on from the next step."""
        observer.attach(self)
        self.observer = observer

    def release(self) -> None:
        """Close the observer."""
        observer, self.observer = self.observer, Observer()
        observer.close()


@dataclass(frozen=True, slots=True)
class Workload:
    """A named way to make a training."""

    name: str
    title: str
    model: Callable[[], nn.Module]
    """Builds the model on torch's default device, so that `meta` serves for counting."""
    batch: Callable[[torch.Generator], tuple[Tensor, Tensor]]
    loss: Callable[[Tensor, Tensor], Tensor]
    segment: int
    """Timed steps in one segment of the overhead benchmark: about a second."""

    def make(self, seed: int) -> Training:
        """A fresh training; the same seed gives the same weights and batches."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            model = self.model()
        generator = torch.Generator().manual_seed(seed)
        batches = [self.batch(generator) for _ in range(NUM_BATCHES)]
        return Training(model, batches, self.loss)


class Attention(nn.Module):
    """Causal self-attention with one joint projection to queries, keys and values."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.proj = nn.Linear(width, width, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → the same shape."""
        batch, time, width = x.shape
        q, k, v = (
            part.view(batch, time, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).split(width, dim=2)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, time, width))


class GPTBlock(nn.Module):
    """Attention and MLP, each behind a layer norm and around a residual."""

    def __init__(self, width: int, heads: int, bias: bool) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width, bias=bias)
        self.attn = Attention(width, heads, bias)
        self.norm2 = nn.LayerNorm(width, bias=bias)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=bias),
            nn.GELU(),
            nn.Linear(4 * width, width, bias=bias),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, time, width) → the same shape."""
        x = x + self.attn(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Decoder-only transformer; the head is the token embedding's own weight."""

    def __init__(
        self, vocabulary: int, positions: int, layers: int, heads: int, width: int, bias: bool
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(positions, width)
        self.blocks = nn.ModuleList(GPTBlock(width, heads, bias) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=bias)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.tokens.weight
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
                if isinstance(module, nn.Linear) and module.bias is not None:
                    nn.init.zeros_(module.bias)

    def forward(self, tokens: Tensor) -> Tensor:
        """(batch, time) token ids → (batch, time, vocabulary) logits."""
        x = self.tokens(tokens) + self.positions.weight[: tokens.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class ResidualBlock(nn.Module):
    """Two 3×3 convolutions with batch norms around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.relu1 = nn.ReLU()
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.relu2 = nn.ReLU()
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """(batch, inputs, h, w) → (batch, outputs, h / stride, w / stride)."""
        y = self.bn2(self.conv2(self.relu1(self.bn1(self.conv1(x)))))
        return self.relu2(y + self.shortcut(x))


def resnet18() -> nn.Module:
    """ResNet-18 with the 3×3 stem used for 32×32 images."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    inputs = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [ResidualBlock(inputs, outputs, stride), ResidualBlock(outputs, outputs, 1)]
        inputs = outputs
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    """60 × (Linear, ReLU), He-initialised.

    torch's default initialisation shrinks the signal by √6 a layer: at 60 layers the gradients
    would be near the smallest float32, which no healthy training shows.
    """
    layers: list[nn.Module] = []
    for _ in range(60):
        linear = nn.Linear(128, 128)
        nn.init.kaiming_normal_(linear.weight, nonlinearity="relu")
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.ReLU()]
    return nn.Sequential(*layers)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Cross-entropy of (batch, time, vocabulary) logits."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def tokens(
    vocabulary: int, batch: int, block: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Random text: each batch is (tokens, the tokens that follow)."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        text = torch.randint(vocabulary, (batch, block + 1), generator=generator)
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return draw


def labelled(
    shape: tuple[int, ...], classes: int
) -> Callable[[torch.Generator], tuple[Tensor, Tensor]]:
    """Normal inputs of that shape with random labels."""

    def draw(generator: torch.Generator) -> tuple[Tensor, Tensor]:
        inputs = torch.randn(shape, generator=generator)
        return inputs, torch.randint(classes, shape[:1], generator=generator)

    return draw


WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        Workload(
            "W1",
            "character GPT, 6 layers, 6 heads, 384 wide, block 128, batch 8",
            lambda: GPT(65, 128, 6, 6, 384, bias=False),
            tokens(65, 8, 128),
            token_loss,
            segment=2,
        ),
        Workload(
            "W2",
            "ResNet-18-like, 32×32, batch 32",
            resnet18,
            labelled((32, 3, 32, 32), 10),
            F.cross_entropy,
            segment=1,
        ),
        Workload(
            "W3",
            "MLP, 60 layers of 128, batch 64",
            mlp,
            labelled((64, 128), 128),
            F.cross_entropy,
            segment=20,
        ),
        Workload(
            "W4",
            "GPT-2-small shape, 12 layers, 12 heads, 768 wide, block 64, batch 2",
            lambda: GPT(50257, 1024, 12, 12, 768, bias=True),
            tokens(50257, 2, 64),
            token_loss,
            segment=1,
        ),
    )
}


def size(model: nn.Module) -> tuple[int, int]:
    """Parameters and tensors of a model, shared ones counted once."""
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters), len(parameters)


def shapes(name: str) -> list[torch.Size]:
    """The shapes of a workload's parameters, without allocating them."""
    with torch.device("meta"):
        return [parameter.shape for parameter in WORKLOADS[name].model().parameters()]
