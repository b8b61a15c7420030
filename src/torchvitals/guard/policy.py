"""`Policy`: what is done about each cause, how often, and what follows when that is too often."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from torchvitals.guard.rules.rule import at_least
from torchvitals.guard.verdict import CAUSES, DIVERGENCE, NON_FINITE, SPIKE, Verdict
from torchvitals.record import ConfigError

Action: TypeAlias = str | Callable[[Verdict], str | None]

SKIP, CLIP, ROLLBACK, STOP, WARN, ACCEPT = "skip", "clip", "rollback", "stop", "warn", "accept"
WORDS = (SKIP, CLIP, ROLLBACK, STOP, WARN)
ESCALATIONS = (ROLLBACK, STOP, WARN, ACCEPT)

POLICIES: dict[str, dict[str, Action]] = {
    SKIP: {NON_FINITE: SKIP, SPIKE: SKIP, DIVERGENCE: WARN},
    CLIP: {NON_FINITE: SKIP, SPIKE: CLIP, DIVERGENCE: WARN},
    ROLLBACK: {NON_FINITE: SKIP, SPIKE: SKIP, DIVERGENCE: ROLLBACK},
    STOP: dict.fromkeys(CAUSES, STOP),
    WARN: dict.fromkeys(CAUSES, WARN),
}
"""What one word means. "rollback" skips what a skip can cure and goes back from what it can't."""


class Policy:
    """Actions by cause, and the limit of skips."""

    def __init__(
        self,
        action: Action | Mapping[str, Action],
        *,
        escalate: Action | None,
        max_skips: int,
        within: int,
    ) -> None:
        self.actions = _actions(action)
        if escalate is not None and not callable(escalate) and escalate not in ESCALATIONS:
            raise ConfigError(
                f"escalate must be one of {', '.join(ESCALATIONS)}, or a callable, got {escalate!r}"
            )
        self._escalate = escalate
        self.max_skips = at_least("max_skips", max_skips, 1)
        self.within = at_least("within", within, 1)
        if max_skips > within:
            raise ConfigError(
                f"max_skips={max_skips} steps can't be skipped within {within} steps; raise within"
            )

    @property
    def rolls_back(self) -> bool:
        """Whether states must be kept to go back to. A callable may ask for it at any time."""
        return ROLLBACK in (*self.actions.values(), self._escalate)

    @property
    def clips(self) -> bool:
        """Whether gradients may be changed in place."""
        return any(action == CLIP or callable(action) for action in self.actions.values())

    @property
    def only_skips(self) -> bool:
        """Whether bad steps are skipped and nothing else, which can be decided on a device."""
        return self.actions[NON_FINITE] == SKIP and self.actions[SPIKE] == SKIP

    def escalation(self, cause: str, loss_is_bad: bool | None) -> Action:
        """What follows the last skip allowed.

        Unless told otherwise: NaN and Inf that do not end mean broken weights: go back, or stop
        where nothing is kept. A norm that stays high while the loss does not is the training's new
        level: take it. With a bad loss, or none known, go back where that is possible.
        """
        if self._escalate is not None:
            return self._escalate
        if cause == NON_FINITE:
            return ROLLBACK if self.rolls_back else STOP
        return ROLLBACK if self.rolls_back and loss_is_bad is not False else ACCEPT


def _actions(action: Any) -> dict[str, Action]:
    if callable(action):
        return dict.fromkeys(CAUSES, action)
    if isinstance(action, Mapping):
        unknown = [name for name in action if name not in CAUSES]
        if unknown:
            raise ConfigError(f"action knows the causes {', '.join(CAUSES)}, got {unknown[0]!r}")
        actions = {**POLICIES[SKIP], **action}
        for cause, one in actions.items():
            if not callable(one) and one not in WORDS:
                raise ConfigError(
                    f"action for {cause} must be one of {', '.join(WORDS)}, or a callable, "
                    f"got {one!r}"
                )
        if actions[NON_FINITE] == CLIP:
            raise ConfigError("action for non_finite can't be clip: NaN × 0 is NaN; use skip")
        if actions[DIVERGENCE] in (CLIP, SKIP):
            raise ConfigError(
                f"action for divergence can't be {actions[DIVERGENCE]}: the weights are off "
                "already; use rollback, stop or warn"
            )
        return actions
    if not isinstance(action, str) or action not in POLICIES:
        raise ConfigError(
            f"action must be one of {', '.join(WORDS)}, a callable, or a dict of them by cause "
            f"({', '.join(CAUSES)}), got {action!r}"
        )
    return dict(POLICIES[action])
