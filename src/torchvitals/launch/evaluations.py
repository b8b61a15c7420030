"""Forward passes of the watched model without gradients: evaluations, told apart from training.

`model.eval()` opens one, and what follows costs training nothing. While it is open, calls of the
model under `no_grad` are counted, and the losses computed by `torch.nn.functional` (which
`nn.CrossEntropyLoss` and its kin call) are averaged, each weighted by its number of samples. It is
over when the model goes back to training mode or an optimizer steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from torchvitals.monitor.monitor import Monitor
from torchvitals.probes.batch import size_of
from torchvitals.probes.place import Place

SPLIT = "eval"
CRITERIA = (
    *("cross_entropy", "nll_loss", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss"),
    *("binary_cross_entropy", "binary_cross_entropy_with_logits", "kl_div", "ctc_loss"),
)


class Evaluations:
    """Sees the evaluations of these models."""

    def __init__(self, models: Iterable[nn.Module], monitor: Monitor) -> None:
        self._models = {id(model) for model in models}
        self._monitor = monitor
        self._handle: RemovableHandle | None = None
        self._criteria: dict[str, Callable[..., Any]] = {}
        self._place: Place | None = None
        self._begun = 0.0
        self._passes = 0
        self._samples = 0
        self._losses: dict[str, list[Any]] = {}
        """By criterion: the sum and the number of samples."""

    def attach(self) -> None:
        """Start seeing."""
        train = nn.Module.train

        @wraps(train)
        def switched(module: nn.Module, mode: bool = True) -> nn.Module:
            if id(module) in self._models and not torch.compiler.is_compiling():
                if mode:
                    self.finish()
                else:
                    self._begin()
            return train(module, mode)

        self._place = Place(nn.Module, "train", switched, train)

    def close(self) -> None:
        """Stop seeing."""
        self.finish()
        if self._place is not None:
            self._place.leave()
            self._place = None

    @property
    def open(self) -> bool:
        """Whether an evaluation is under way."""
        return self._handle is not None

    def finish(self) -> None:
        """The evaluation, if there was one, is over."""
        if self._handle is None:
            return
        self._handle.remove()
        self._handle = None
        for name, criterion in self._criteria.items():
            setattr(functional, name, criterion)
        self._criteria.clear()
        if self._passes:
            self._tell()

    def _begin(self) -> None:
        if self._handle is not None:
            return
        self._passes = self._samples = 0
        self._losses.clear()
        self._begun = time.perf_counter()
        self._handle = register_module_forward_pre_hook(self._called)
        for name in CRITERIA:
            original = self._criteria[name] = getattr(functional, name)
            setattr(functional, name, self._seen(name, original))

    def _called(self, module: nn.Module, inputs: Any) -> None:
        if torch.compiler.is_compiling() or torch.is_grad_enabled():
            return
        if id(module) in self._models:
            self._passes += 1
            try:
                self._samples += size_of(inputs)[0]
            except Exception:  # inputs of an odd kind: their number is not known
                return

    def _seen(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def criterion(*args: Any, **kwargs: Any) -> Any:
            value = original(*args, **kwargs)
            if not torch.compiler.is_compiling() and not torch.is_grad_enabled():
                self._add(name, value, args[0] if args else kwargs.get("input"))
            return value

        return criterion

    def _add(self, name: str, value: Any, inputs: Any) -> None:
        if isinstance(value, Tensor) and value.numel() == 1 and isinstance(inputs, Tensor):
            num = float(inputs.shape[0]) if inputs.dim() else 1.0
            sums = self._losses.setdefault(name, [0.0, 0.0])
            number = float(value) if value.is_cpu else value.detach()
            sums[0] += number * num
            sums[1] += num

    def _tell(self) -> None:
        seconds = time.perf_counter() - self._begun
        self._monitor.event(
            "evaluation",
            f"{self._passes} forward passes without gradients in {seconds:.3g} s",
            passes=self._passes,
            samples=self._samples,
            seconds=seconds,
        )
        # Reports of several ranks are sums over all of them, and only one may be evaluating.
        several = torch.distributed.is_available() and torch.distributed.is_initialized()
        if len(self._losses) == 1 and not several:
            ((total, num),) = self._losses.values()
            self._monitor.log_eval(SPLIT, loss=total / num)
