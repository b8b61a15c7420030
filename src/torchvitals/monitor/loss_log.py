"""`LossLog`: logs the loss of each step by itself, taken from `backward()`.

For trainings whose loop is not ours to change: `vitals run` and the frameworks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from torchvitals.monitor.monitor import Monitor
from torchvitals.probes.losses import Losses

Hook = Callable[[Optimizer, Any, Any], None]


class LossLog:
    """Logs what `losses` sees before each optimizer's step.

    Made right after the monitor: its hooks follow the monitor's.
    """

    def __init__(
        self,
        monitor: Monitor,
        models: Mapping[str, nn.Module],
        optimizers: Sequence[Optimizer],
        losses: Losses,
        *,
        before: Callable[[], None] = lambda: None,
    ) -> None:
        self._monitor, self._losses, self._before = monitor, losses, before
        self._handles: list[RemovableHandle] = []
        names = loss_names(models, optimizers)
        for optimizer, name in zip(optimizers, names, strict=True):
            begin, end = self._around_step(name)
            self._handles.append(optimizer.register_step_pre_hook(begin))
            self._handles.append(optimizer.register_step_post_hook(end))

    def close(self) -> None:
        """Log no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _around_step(self, name: str) -> tuple[Hook, Hook]:
        step = 0

        def begin(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            nonlocal step
            step = self._monitor.step_number + 1
            self._before()
            self._losses.begin_step()

        def end(_optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            loss = self._losses.end_step()
            if loss is not None:
                self._monitor.log(step=step, **{name: loss})

        return begin, end


def loss_names(models: Mapping[str, nn.Module], optimizers: Sequence[Optimizer]) -> list[str]:
    """What each optimizer's loss is called: "loss", or with the name of the part it trains."""
    if len(optimizers) == 1:
        return ["loss"]
    names = {
        id(p): (name or path).partition(".")[0]
        for name, model in models.items()
        for path, p in model.named_parameters()
    }
    single: set[str] = set()
    found: list[str] = []
    for optimizer in optimizers:
        held = (id(p) for group in optimizer.param_groups for p in group["params"])
        parts = {names[key] for key in held if key in names}
        single |= parts if len(parts) == 1 else set()
        found += [f"loss_{next(iter(parts))}"] if len(parts) == 1 else ["loss"]
    return found if len(single) == len(optimizers) else ["loss"] * len(optimizers)
