"""When is a gradient norm too large? One rule a file; `make_rule` finds it by its word."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchvitals.guard.rules.adagc import AdaGC
from torchvitals.guard.rules.custom import Custom
from torchvitals.guard.rules.limit import Limit
from torchvitals.guard.rules.mean_std import MeanStd
from torchvitals.guard.rules.rolling import MedianMad, Rolling
from torchvitals.guard.rules.rule import Rule, Stats
from torchvitals.guard.rules.zclip import ZClip
from torchvitals.record import ConfigError

__all__ = [
    "AdaGC",
    "Custom",
    "Limit",
    "MeanStd",
    "MedianMad",
    "Rolling",
    "Rule",
    "Stats",
    "ZClip",
    "make_rule",
]

RULES: dict[str, type[MeanStd | MedianMad | Rolling | ZClip | AdaGC]] = {
    "mean_std": MeanStd,
    "median_mad": MedianMad,
    "rolling": Rolling,
    "zclip": ZClip,
    "adagc": AdaGC,
}


def make_rule(
    rule: str | float | Rule | Callable[[Stats, float], bool],
    *,
    k: float | None = None,
    warmup: int | None = None,
    log: bool | None = None,
) -> Rule:
    """A rule of that word, a fixed limit (a number), or around a callable `(stats, value) -> bool`.

    `k`, `warmup` and `log` are handed on where they were given.
    """
    given: dict[str, Any] = {
        name: value
        for name, value in (("k", k), ("warmup", warmup), ("log", log))
        if value is not None
    }
    if isinstance(rule, Rule):
        _none_of(given, f"{type(rule).__name__}(…) is a rule already: give them there")
        return rule
    if isinstance(rule, bool):
        raise ConfigError(
            f"rule must be one of {sorted(RULES)}, a number or a callable, got {rule}"
        )
    if isinstance(rule, int | float):
        _none_of(given, "rule is a fixed limit, which has no use for them")
        return Limit(float(rule))
    if callable(rule):
        given.pop("k", None)
        _none_of({name: given[name] for name in given if name == "log"}, "rule is a callable")
        return Custom(rule, **given)
    kind = RULES.get(rule) if isinstance(rule, str) else None
    if kind is None:
        raise ConfigError(
            f"rule must be one of {sorted(RULES)}, a number or a callable (stats, value) -> bool, "
            f"got {rule!r}"
        )
    unknown = {name: given[name] for name in given if name not in kind.settings}
    _none_of(unknown, f"rule={rule!r} takes {', '.join(kind.settings)}")
    return kind(**given)


def _none_of(given: dict[str, Any], why: str) -> None:
    if given:
        raise ConfigError(f"{' and '.join(given)} can't be set here: {why}")
