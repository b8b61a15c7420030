"""`Plugged`: probes of the user's own or of installed packages, asked when a monitored step ends.

A probe is an object with `measure(step)`, which returns ``{Key: number}``; a device tensor of one
element is read later, without a wait. It may have `open(models, optimizers)`, called by `watch()`,
and `close()`. It is called without gradients, before anybody can call `zero_grad()`, and torch's
random numbers are as they were after it: it can't change the training by drawing some.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer

from torchvitals.monitor.scalars import as_number
from torchvitals.record import ConfigError, Key
from torchvitals.record.plugins import PROBES, leave_out, plugin, plugin_names


class PluggedProbe(Protocol):
    """The least a probe has."""

    def measure(self, step: int) -> Mapping[Key, Any]:
        """What it sees at the end of this step."""


Given = str | PluggedProbe


class Plugged:
    """The probes that were plugged in, by name."""

    def __init__(self, probes: Mapping[str, PluggedProbe]) -> None:
        self.probes = dict(probes)

    def open(self, models: Mapping[str, nn.Module], optimizers: Sequence[Optimizer]) -> None:
        """Show them what is watched; one that can't begin is left out."""
        for name, probe in list(self.probes.items()):
            begin = getattr(probe, "open", None)
            try:
                if begin is not None:
                    begin(dict(models), list(optimizers))
            except Exception as error:  # somebody else's code
                del self.probes[name]
                leave_out(PROBES, name, type(probe).__module__, f"{type(error).__name__}: {error}")

    def close(self) -> None:
        """Let go."""
        for probe in self.probes.values():
            end = getattr(probe, "close", None)
            if end is not None:
                end()
        self.probes = {}


def ask(name: str, probe: PluggedProbe, step: int) -> dict[Key, Any]:
    """What a probe measured in this step, checked."""
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        found = probe.measure(step)
    taken = {}
    for key, number in found.items():
        if not isinstance(key, Key):
            raise TypeError(f"the probe {name} must return {{Key: number}}, got {key!r} as a key")
        taken[key] = as_number(str(key), number)
    return taken


def make_plugged(given: Given | Sequence[Given] | None) -> Plugged:
    """What ``watch(probes=…)`` was given: names of installed ones, or objects."""
    if given is None:
        return Plugged({})
    found: dict[str, PluggedProbe] = {}
    listed: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    for one in listed:
        if isinstance(one, str):
            probe = _named(one)
            if probe is not None:
                found[one] = probe
        elif isinstance(one, type) or not callable(getattr(one, "measure", None)):
            raise ConfigError(f"a probe is a name or an object with measure(step), got {one!r}")
        else:
            found[str(getattr(one, "NAME", type(one).__name__))] = one
    return Plugged(found)


def _named(name: str) -> PluggedProbe | None:
    offered = plugin_names(PROBES)
    if name not in offered:
        known = ", ".join(offered) or "none is installed"
        raise ConfigError(f"there is no probe named {name!r}; known: {known}")
    found = plugin(PROBES, name)
    if found is None:
        return None
    try:
        probe: PluggedProbe = found.thing()
    except Exception as error:  # somebody else's code
        leave_out(PROBES, name, found.package, f"{type(error).__name__}: {error}")
        return None
    if not callable(getattr(probe, "measure", None)):
        leave_out(PROBES, name, found.package, "it has no measure(step)")
        return None
    return probe
