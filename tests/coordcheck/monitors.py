"""A monitor of the least kind: it says when a step is monitored, and keeps what is logged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class PlainMonitor:
    def __init__(self, module: nn.Module | None = None, reference: nn.Module | None = None):
        self.module = module
        self.reference_module = reference
        self.current_step: int | None = None
        self.excluded: tuple[str, ...] = ()
        self.logged: dict[str, list[Tensor]] = {}
        self._under_way = False
        self._aside = 0

    @property
    def module_names(self) -> dict[nn.Module, str]:
        assert self.module is not None
        named = {inner: name or "[root module]" for name, inner in self.module.named_modules()}
        return {inner: name for inner, name in named.items() if name not in self.excluded}

    def begin_step(self, step: int) -> None:
        self.current_step, self._under_way = step, self.is_step_monitored(step)
        self.logged = {}

    def end_step(self) -> dict[str, float]:
        self._under_way = False
        joined = {key: torch.cat([v.flatten() for v in vs]) for key, vs in self.logged.items()}
        return {key: float(values.double().mean()) for key, values in joined.items()}

    def is_step_monitored(self, step: int) -> bool:
        return step % 2 == 0

    def is_monitoring(self) -> bool:
        return self._under_way and not self._aside

    @contextmanager
    def no_monitor(self) -> Iterator[None]:
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1

    def log_tensor(self, key: str, tensor: Tensor) -> None:
        assert self.is_monitoring()
        assert not tensor.requires_grad
        self.logged.setdefault(key, []).append(tensor)


def moved(module: nn.Module, by: float = 0.05, seed: int = 7) -> nn.Module:
    """Its parameters after some training, as it were."""
    dice = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            noise = torch.randn(parameter.shape, generator=dice, dtype=torch.float64)
            parameter.add_((by * noise).to(parameter.dtype))
    return module
