"""`Training`: a loop as a good user would write it around one `watch()`; faults spoil its parts."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

import psutil
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

import torchvitals
from torchvitals.monitor.monitor import Monitor
from torchvitals.testing.bases import Base
from torchvitals.testing.data import Part
from torchvitals.testing.fault import Fault
from torchvitals.testing.outcome import Outcome
from torchvitals.testing.settings import Settings

SHIFT_AT = 0.6
"""Where data shifts: at this part of the run."""


class Batches:
    """A loader: each pass in another order, the incomplete last batch left out."""

    def __init__(self, part: Part, batch_size: int, seed: int) -> None:
        self.part = part
        self.batch_size = min(batch_size, len(part.inputs))
        self._draw = torch.Generator().manual_seed(seed)

    def __len__(self) -> int:
        return len(self.part.inputs) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self.part.inputs), generator=self._draw)
        for number in range(len(self)):
            places = order[number * self.batch_size : (number + 1) * self.batch_size]
            yield self.part.inputs[places], self.part.targets[places]


class Training:
    """One run: made from a base, its settings and a fault; then `run()`."""

    def __init__(self, base: Base, settings: Settings, fault: Fault) -> None:
        self.base, self.settings, self.fault = base, settings, fault
        torch.manual_seed(settings.seed)
        self.dtype: torch.dtype = getattr(torch, settings.dtype)
        self.data = fault.data(base.data(settings), settings)
        self.model = fault.model(base.model(settings), settings).to(self.dtype)
        self.optimizer = fault.optimizer(self)
        self.scheduler = fault.scheduler(self)

    def make_optimizer(self, parameters: Iterable[nn.Parameter]) -> Optimizer:
        """As the settings say."""
        s = self.settings
        if s.optimizer == "sgd":
            return torch.optim.SGD(
                parameters, lr=s.lr, momentum=s.momentum, weight_decay=s.weight_decay
            )
        return torch.optim.AdamW(
            parameters, lr=s.lr, betas=(0.9, s.beta2), eps=s.eps, weight_decay=s.weight_decay
        )

    def make_scheduler(self) -> LRScheduler:
        """As the settings say; stepped once a step."""
        return LambdaLR(self.optimizer, self._lr_factor)

    def _lr_factor(self, done: int) -> float:
        s = self.settings
        factor = self.fault.lr_factor(done + 1)
        if done < s.warmup_steps:
            return factor * (done + 1) / s.warmup_steps
        part = (done - s.warmup_steps) / max(s.steps - s.warmup_steps, 1)
        if s.schedule == "cosine":
            factor *= 0.05 + 0.95 * (1 + math.cos(math.pi * min(part, 1.0))) / 2
        elif s.schedule == "cyclical":
            factor *= 0.2 + 0.8 * abs(1 - (part * 8) % 2)
        elif s.schedule == "wsd":
            factor *= min(1.0, max(0.02, (1 - part) / 0.2))
        return factor

    def batches(self, part: Part | None = None) -> Batches:
        """A loader of the training set."""
        return Batches(part or self.data.train, self.settings.batch_size, self.settings.seed)

    def run(self, folder: Path, case: str) -> Outcome:
        """Train; the run file lies in `folder`."""
        s = self.settings
        before = psutil.Process().memory_info().rss
        begun = time.perf_counter()
        losses: list[float] = []
        waited, ready = 0.0, time.perf_counter()
        reported: dict[str, float] = {}
        with torchvitals.watch(
            self.model,
            self.optimizer,
            run=folder,
            every=s.every,
            attention=self.base.attention,
            total_steps=s.steps,
            config=s.config(),
        ) as monitor:
            for step, (inputs, targets) in enumerate(self._endless(monitor), 1):
                waited += time.perf_counter() - ready
                losses.append(self._step(step, inputs, targets, monitor))
                if step % s.eval_every == 0:
                    reported = self._report(monitor)
                if step == s.steps:
                    break
                ready = time.perf_counter()
        seconds = time.perf_counter() - begun
        grown = psutil.Process().memory_info().rss - before
        test_loss, accuracy = self._truth()
        return Outcome(
            case=case,
            seed=s.seed,
            steps=s.steps,
            train_loss=statistics.fmean(losses[-max(1, s.steps // 10) :]),
            test_loss=test_loss,
            test_accuracy=accuracy,
            reported=reported,
            onset=self.fault.onset if self.fault.number else None,
            seconds=seconds,
            waiting_frac=waited / seconds,
            memory_bytes=grown,
            settings=vars(s),
        )

    def _endless(self, monitor: Monitor) -> Iterator[tuple[Tensor, Tensor]]:
        """Passes over the training set; the later one from the shift on."""
        loader = self.fault.loader(self)
        done = 0
        last_of_first = int(SHIFT_AT * self.settings.steps)
        while True:
            for batch in monitor.data(loader):
                done += 1
                yield batch
                if self.data.later is not None and done == last_of_first:
                    loader = self.batches(self.data.later)
                    break

    def _step(self, step: int, inputs: Tensor, targets: Tensor, monitor: Monitor) -> float:
        inputs, targets = self.fault.batch(step, inputs, targets)
        if inputs.is_floating_point():
            inputs = inputs.to(self.dtype)
        if not self.fault.keeps_gradients:
            self.optimizer.zero_grad()
        outputs = self.fault.forward(self, inputs)
        loss = self.fault.loss(self, outputs, targets)
        self.fault.backward(self, step, loss)
        if self.settings.clip_norm is not None:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.settings.clip_norm)
        self.optimizer.step()
        self.scheduler.step()
        monitor.log(loss=loss.detach())
        self.fault.after_step(self, step, loss)
        return float(loss.detach())

    def _report(self, monitor: Monitor) -> dict[str, float]:
        """Validate and tell the monitor."""
        self.model.train(self.fault.never_eval)
        with torch.no_grad():
            outputs, targets = self._outputs(self.data.val)
            loss = self.fault.eval_loss(self, outputs, targets)
            numbers = {"loss": float(loss)}
            if targets.dim() == 1:
                right = self.fault.predict(outputs) == targets
                numbers["accuracy"] = float(right.float().mean())
            if self.base.letter == "C":
                apart = F.cross_entropy(outputs, targets, reduction="none")
                monitor.log_samples(apart, category=targets, split="val")
        self.model.train()
        monitor.log_eval("val", **numbers)
        return numbers

    def _truth(self) -> tuple[float | None, float | None]:
        """Loss and accuracy on the test set, measured as they should be."""
        self.model.eval()
        with torch.no_grad():
            outputs, targets = self._outputs(self.data.test)
            loss = None
            if outputs.shape[-1] == self.data.num_classes:
                loss = float(self.base.loss(outputs, targets))
            if targets.dim() > 1:
                return loss, None
            return loss, float((self.fault.predict(outputs) == targets).float().mean())

    def _outputs(self, part: Part) -> tuple[Tensor, Tensor]:
        inputs = part.inputs.to(self.dtype) if part.inputs.is_floating_point() else part.inputs
        outputs = [self.model(inputs[at : at + 250]) for at in range(0, len(inputs), 250)]
        return torch.cat(outputs).float(), part.targets
