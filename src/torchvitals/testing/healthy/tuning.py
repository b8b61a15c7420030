"""Fine-tuning: a frozen backbone, LoRA, layers that thaw one after another."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor, nn

import torchvitals
from torchvitals.testing.bases import BASES
from torchvitals.testing.data import Part
from torchvitals.testing.fault import Fault
from torchvitals.testing.healthy.hand import Hand
from torchvitals.testing.healthy.plain import settings_of
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.settings import Settings
from torchvitals.testing.training import Training


def _pretrained(letter: str, seed: int, steps: int | None, settings: Settings) -> Training:
    """A training whose model has learned already, unwatched: other pictures, or a little text."""
    before = settings_of(letter, seed, steps)
    before.seed = seed if letter == "G" else seed + 5000
    before.width, before.length, before.depth = settings.width, settings.length, settings.depth
    teacher = Training(BASES[letter], before, Fault(before.seed))
    done, limit = 0, steps or (120 if letter == "G" else 200)
    while done < limit:
        for inputs, targets in teacher.batches():
            teacher.optimizer.zero_grad()
            loss = BASES[letter].loss(teacher.model(inputs), targets)
            loss.backward()  # type: ignore[no-untyped-call]
            teacher.optimizer.step()
            teacher.scheduler.step()
            done += 1
            if done == limit:
                break
    training = Training(BASES[letter], settings, Fault(seed))
    training.model.load_state_dict(teacher.model.state_dict())
    return training


def _judge(training: Training, part: Part) -> tuple[float, float | None]:
    training.model.eval()
    with torch.no_grad():
        outputs = training.model(part.inputs)
        loss = float(training.base.loss(outputs, part.targets))
        right = (outputs.argmax(-1) == part.targets).float().mean()
    training.model.train()
    return loss, float(right) if part.targets.dim() == 1 else None


class LoRA(nn.Module):
    """A frozen linear layer and a trained detour of rank 4 that starts at nothing."""

    def __init__(self, linear: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.linear = linear
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        """(…, in) → (…, out)."""
        out: Tensor = self.linear(x) + 2 * self.up(self.down(x))
        return out


def frozen_or_lora(seed: int, folder: Path, steps: int | None) -> Outcome:
    """A new head on a frozen CNN (even seeds), or LoRA in the attention of a GPT (odd)."""
    letter = "G" if seed % 2 else "C"
    settings = settings_of(letter, seed, steps, schedule="constant", warmup_steps=0)
    settings.steps = min(settings.steps, 400)
    training = _pretrained(letter, seed, steps, settings)
    model = training.model
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    if letter == "C":
        model.hidden = nn.Linear(8 * settings.width, 32)
        model.head = nn.Linear(32, 6)
    else:
        for layer in model.get_submodule("layers").children():
            for name in ("attention.query", "attention.value", "up", "down"):
                linear = layer.get_submodule(name)
                assert isinstance(linear, nn.Linear)
                layer.set_submodule(name, LoRA(linear))
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=2e-3)
    return _tune(training, optimizer, folder, thaw={})


def unfreezing(seed: int, folder: Path, steps: int | None) -> Outcome:
    """The head first, then the blocks from the last to the first, each when its time comes."""
    settings = settings_of("C", seed, steps, schedule="constant", warmup_steps=0)
    training = _pretrained("C", seed, steps, settings)
    model = training.model
    blocks = [model.get_submodule(f"blocks.{number}") for number in (2, 1, 0)]
    for block in blocks:
        block.requires_grad_(False)
    model.hidden = nn.Linear(8 * settings.width, 32)
    model.head = nn.Linear(32, 6)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    thaw = {(1 + place) * settings.steps // 4: block for place, block in enumerate(blocks)}
    return _tune(training, optimizer, folder, thaw=thaw)


def _tune(
    training: Training,
    optimizer: torch.optim.Optimizer,
    folder: Path,
    thaw: dict[int, nn.Module],
) -> Outcome:
    settings, model = training.settings, training.model
    hand = Hand(settings.seed, settings.steps, settings=vars(settings))
    with torchvitals.watch(
        model, optimizer, run=folder, every=5, total_steps=settings.steps, config=settings.config(),
        attention=training.base.attention,
    ) as monitor:  # fmt: skip
        step = 0
        while step < settings.steps:
            for inputs, targets in monitor.data(training.batches()):
                step += 1
                if step in thaw:
                    thaw[step].requires_grad_(True)
                    monitor.event("unfreeze", f"{sum(s <= step for s in thaw)} blocks are trained")
                optimizer.zero_grad()
                loss = training.base.loss(model(inputs), targets)
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                monitor.log(loss=loss.detach())
                hand.note(loss)
                if step % settings.eval_every == 0:
                    val_loss, accuracy = _judge(training, training.data.val)
                    more = {} if accuracy is None else {"accuracy": accuracy}
                    monitor.log_eval("val", loss=val_loss, **more)
                if step == settings.steps:
                    break
    test_loss, accuracy = _judge(training, training.data.test)
    return hand.outcome(test_loss=test_loss, test_accuracy=accuracy)
