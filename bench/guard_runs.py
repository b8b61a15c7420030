"""Small trainings for bench/guard.py: sick ones with an injected fault, and healthy ones.

Every training is a `Run`: a model, an optimizer, batches that depend on seed and step alone, and a
final loss on held-out data. Each takes 1 to 4 seconds on one core.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

from workloads import GPT

Batch = tuple[Tensor, Tensor]
Draw = Callable[[torch.Generator, int], Batch]


@dataclass
class Run:
    model: nn.Module
    optimizer: torch.optim.Optimizer
    batch: Draw
    loss: Callable[[nn.Module, Batch], Tensor]
    steps: int
    seed: int
    schedule: Callable[[int], float] | None = None
    """Learning rate as a factor of its first value, by step; set as products, as torch's own
    chained schedulers do, so that a jump stays."""
    before_step: Callable[[int], None] | None = None
    scaler: Any = None
    accumulate: int = 1
    clip: float | None = None
    losses: list[float] = field(default_factory=list)

    def at(self, step: int) -> Batch:
        return self.batch(torch.Generator().manual_seed(100_003 * self.seed + step), step)

    def final(self) -> float:
        """Mean loss of held-out batches in eval mode."""
        self.model.eval()
        with torch.no_grad():
            found = [float(self.loss(self.model, self.at(10_000_000 + i))) for i in range(16)]
        self.model.train()
        return sum(found) / len(found)


def labelled(
    scale: float = 2.0, flip: float = 0.1, size: int = 20, classes: int = 4
) -> Callable[..., Batch]:
    """Points labelled by a fixed random teacher; some labels are wrong, so no loss goes to 0."""
    teacher = torch.randn(size, classes, generator=torch.Generator().manual_seed(7)) * scale

    def draw(generator: torch.Generator, _step: int, num: int = 64) -> Batch:
        x = torch.randn(num, size, generator=generator)
        y = (x @ teacher).argmax(1)
        wrong = torch.rand(num, generator=generator) < flip
        return x, torch.where(wrong, torch.randint(classes, (num,), generator=generator), y)

    return draw


def images(generator: torch.Generator, _step: int) -> Batch:
    """8×8 pictures of four kinds of stripes in noise; one label in ten is wrong."""
    y = torch.randint(4, (48,), generator=generator)
    line = torch.arange(8.0)
    kinds = torch.stack(
        [
            torch.sin(line * 1.6)[:, None].expand(8, 8),
            torch.sin(line * 1.6)[None].expand(8, 8),
            torch.sin((line[:, None] + line[None]) * 1.1),
            torch.sin((line[:, None] - line[None]) * 1.1),
        ]
    )
    x = kinds[y][:, None] + 1.6 * torch.randn(48, 1, 8, 8, generator=generator)
    wrong = torch.rand(48, generator=generator) < 0.1
    return x, torch.where(wrong, torch.randint(4, (48,), generator=generator), y)


def markov(num: int, length: int, states: int = 24) -> Draw:
    """Text of a fixed Markov chain: its entropy is the floor of the loss."""
    table = torch.randn(states, states, generator=torch.Generator().manual_seed(11)) * 1.5
    chances = table.softmax(1)

    def draw(generator: torch.Generator, _step: int) -> Batch:
        text = [torch.randint(states, (num,), generator=generator)]
        for _ in range(length):
            text.append(torch.multinomial(chances[text[-1]], 1, generator=generator)[:, 0])
        rows = torch.stack(text, 1)
        return rows[:, :-1], rows[:, 1:]

    return draw


def noisy_sums(generator: torch.Generator, _step: int) -> Batch:
    """Sequences and their running means, with noise on the target."""
    x = torch.randn(32, 20, 2, generator=generator)
    steps = torch.arange(1.0, 21.0)
    y = (x[..., 0] * (x[..., 1] > 0)).cumsum(1) / steps.sqrt()
    return x, y + 0.3 * torch.randn(y.shape, generator=generator)


def classify(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]), batch[1])


def predict(model: nn.Module, batch: Batch) -> Tensor:
    return F.cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten())


def regress(model: nn.Module, batch: Batch) -> Tensor:
    return F.mse_loss(model(batch[0]), batch[1])


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(2, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0])[..., 0]


def mlp_net(dropout: float = 0.0) -> nn.Module:
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Dropout(dropout),
        nn.Linear(64, 64), nn.ReLU(), nn.Dropout(dropout), nn.Linear(64, 4),
    )  # fmt: skip


def cnn_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(12, 24, 3, padding=1), nn.BatchNorm2d(24), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Linear(24, 4),
    )  # fmt: skip


def gpt_net() -> nn.Module:
    return GPT(24, 32, 2, 2, 32, bias=True)


def seeded(make: Callable[[], nn.Module], seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return make()


def mlp(seed: int, steps: int = 500) -> Run:
    model = seeded(mlp_net, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return Run(model, optimizer, labelled(), classify, steps, seed)


def cnn(seed: int, steps: int = 400) -> Run:
    model = seeded(cnn_net, seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    return Run(model, optimizer, images, classify, steps, seed)


def gpt(seed: int, steps: int = 400) -> Run:
    model = seeded(gpt_net, seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return Run(model, optimizer, markov(8, 32), predict, steps, seed)


def lstm(seed: int, steps: int = 400) -> Run:
    model = seeded(Recurrent, seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    return Run(model, optimizer, noisy_sums, regress, steps, seed)


def cooled(make: Callable[[int], Run]) -> Callable[[int], Run]:
    """With a rate that falls to a twentieth in the last third: final losses that mean something."""

    def made(seed: int) -> Run:
        run = make(seed)
        run.schedule = lambda t: min(1.0, 0.05 + 0.95 * (run.steps - t) / (0.35 * run.steps))
        return run

    return made


SICK = {"MLP": cooled(mlp), "CNN": cooled(cnn), "GPT": cooled(gpt), "LSTM": cooled(lstm)}

FAULTS = ("batch × 1e4", "NaN in a batch", "Inf in a gradient", "bit flip", "LR × 30")


class Fault:
    """Something that happens once, at a step drawn from the seed."""

    def __init__(self, kind: str, run: Run) -> None:
        dice = torch.Generator().manual_seed(run.seed + 1)
        self.kind, self.run, self.dice = kind, run, dice
        self.step = int(run.steps * (0.4 + 0.2 * float(torch.rand((), generator=dice))))

    def pick(self, num: int) -> int:
        return int(torch.randint(num, (), generator=self.dice))

    def batch(self, step: int, batch: Batch) -> Batch:
        x, y = batch
        if step == self.step and x.is_floating_point():
            if self.kind == "batch × 1e4":
                return x * 1e4, (y * 1e4 if y.is_floating_point() else y)
            if self.kind == "NaN in a batch":
                x = x.clone()
                x.view(-1)[self.pick(x.numel())] = math.nan
                return x, y
        return batch

    def loss(self, step: int, loss: Tensor, batch: Batch) -> Tensor:
        """Token ids can't be scaled: there the loss is."""
        if step == self.step and not batch[0].is_floating_point():
            if self.kind == "batch × 1e4":
                return loss * 1e4
            if self.kind == "NaN in a batch":
                return loss * math.nan
        return loss

    def before_step(self, step: int) -> None:
        if step != self.step:
            return
        tensors = [p for p in self.run.model.parameters() if p.dim() > 1]
        if self.kind == "Inf in a gradient":
            grad = tensors[self.pick(len(tensors))].grad
            assert grad is not None
            grad.view(-1)[self.pick(grad.numel())] = math.inf
        elif self.kind == "bit flip":
            weight = tensors[self.pick(len(tensors))].detach().view(-1)
            at = self.pick(weight.numel())
            # The highest bit of the exponent: 0.02 becomes about 7e36.
            bits = weight[at : at + 1].view(torch.int32)
            bits ^= 1 << 30
        elif self.kind == "LR × 30":
            for group in self.run.optimizer.param_groups:
                group["lr"] *= 30


def cosine(steps: int) -> Callable[[int], float]:
    return lambda t: 0.505 + 0.495 * math.cos(math.pi * t / steps)


def sgd_cosine(seed: int) -> Run:
    run = cnn(seed)
    run.schedule = cosine(run.steps)
    return run


def adamw_warmup(seed: int) -> Run:
    run = gpt(seed, 400)
    run.schedule = lambda t: min((t + 1) / 40, cosine(run.steps)(t))
    run.clip = 1.0
    return run


def muon(seed: int) -> Run:
    run = mlp(seed)
    matrices = [p for p in run.model.parameters() if p.dim() == 2]
    run.optimizer = torch.optim.Muon(matrices, lr=0.02)
    return run


def cyclical(seed: int) -> Run:
    """Cosine with warm restarts."""
    run = mlp(seed)
    run.schedule = lambda t: cosine(150)(t % 150)
    return run


def wsd(seed: int) -> Run:
    run = lstm(seed)
    run.schedule = lambda t: min((t + 1) / 30, 1.0, (run.steps - t) / (0.2 * run.steps))
    return run


def dropout(seed: int) -> Run:
    run = mlp(seed)
    run.model = seeded(lambda: mlp_net(0.5), seed)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=2e-3)
    return run


def unfreezing(seed: int) -> Run:
    """One more layer every 150 steps, from the head down."""
    run = mlp(seed)
    layers = [m for m in run.model.children() if isinstance(m, nn.Linear)]
    for layer in layers[:-1]:
        layer.requires_grad_(False)

    def thaw(step: int) -> None:
        if step and step % 150 == 0 and step // 150 < len(layers):
            layers[-1 - step // 150].requires_grad_(True)

    run.before_step = thaw
    return run


def to_zero(seed: int) -> Run:
    """Regression without noise, on one fixed batch: the loss falls to about 1e-8."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 64), nn.Tanh(), nn.Linear(64, 1))
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 6, generator=generator)
    batch = (x, torch.sin(x.sum(1, keepdim=True)))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return Run(model, optimizer, lambda g, t: batch, regress, 1500, seed)


def reinforce(seed: int) -> Run:
    """A bandit with 6 arms and 8 contexts by policy gradient: noise, losses of both signs."""
    pays = torch.randn(8, 6, generator=torch.Generator().manual_seed(3))

    def pull(model: nn.Module, batch: Batch) -> Tensor:
        context, noise = batch
        chances = torch.distributions.Categorical(logits=model(F.one_hot(context, 8).float()))
        arm = chances.sample()
        reward = pays[context, arm] + noise
        return -(chances.log_prob(arm) * reward).mean()

    def draw(generator: torch.Generator, _step: int) -> Batch:
        return torch.randint(8, (32,), generator=generator), torch.randn(32, generator=generator)

    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 6))
    return Run(model, torch.optim.Adam(model.parameters(), lr=3e-3), draw, pull, 600, seed)


def amp_accumulation(seed: int) -> Run:
    """float16 autocast is for GPUs; here bfloat16 with a GradScaler, two micro-batches a step."""
    run = mlp(seed, 400)
    run.accumulate = 2
    run.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    return run


HEALTHY = {
    "SGD momentum, cosine": sgd_cosine,
    "AdamW, warm-up, clipping": adamw_warmup,
    "Muon": muon,
    "cosine with warm restarts": cyclical,
    "warm-up, stable, decay": wsd,
    "high dropout": dropout,
    "gradual unfreezing": unfreezing,
    "regression to 1e-8": to_zero,
    "REINFORCE": reinforce,
    "AMP and accumulation": amp_accumulation,
}


def train(run: Run, *, fault: Fault | None = None, guard: Any = None) -> float:
    """Train to the end; the final loss, inf where it is not finite or the guard gave up."""
    torch.manual_seed(run.seed + 17)
    if guard is not None:
        guard.attach(run.optimizer, run.model)
    try:
        for step in range(run.steps):
            if run.schedule is not None:
                by = run.schedule(step) / (run.schedule(step - 1) if step else 1.0)
                for group in run.optimizer.param_groups:
                    group["lr"] *= by
            if run.before_step is not None:
                run.before_step(step)
            run.losses.append(one_step(run, step, fault, guard))
    finally:
        if guard is not None:
            guard.detach()
    return run.final()


def one_step(run: Run, step: int, fault: Fault | None, guard: Any) -> float:
    total = 0.0
    for micro in range(run.accumulate):
        batch = run.at(step * run.accumulate + micro)
        if fault is not None:
            batch = fault.batch(step, batch)
        with torch.autocast("cpu", torch.bfloat16, enabled=run.scaler is not None):
            loss = run.loss(run.model, batch) / run.accumulate
        if fault is not None:
            loss = fault.loss(step, loss, batch)
        total += float(loss.detach())
        (loss if run.scaler is None else run.scaler.scale(loss)).backward()
    if fault is not None:
        fault.before_step(step)
    if guard is not None:
        guard.tell_loss(total)
    if run.clip is not None:
        nn.utils.clip_grad_norm_(run.model.parameters(), run.clip)
    if run.scaler is None:
        run.optimizer.step()
    else:
        run.scaler.step(run.optimizer)
        run.scaler.update()
    run.optimizer.zero_grad()
    return total
