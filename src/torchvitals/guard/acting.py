"""`Acting`: the half of `Guard` that does something about a verdict, and tells of it."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from typing import Any

from torchvitals.guard import policy as p
from torchvitals.guard.clip import scale_all, scale_each
from torchvitals.guard.judging import Case, Judging
from torchvitals.guard.policy import Action
from torchvitals.guard.rules import AdaGC
from torchvitals.guard.running_stats import RunningStats
from torchvitals.guard.snapshots import Snapshots
from torchvitals.guard.verdict import NON_FINITE, Verdict
from torchvitals.guard.ward import Ward
from torchvitals.record import ConfigError, GuardStop, RollbackFailed

log = logging.getLogger("torchvitals")

PROBATION = 16
"""Steps after which a state is known to have been good."""


class Acting(Judging):
    """Skips, clips, rolls back, stops, tells."""

    counts: dict[str, int]
    _on_spike: Callable[[Verdict], Any] | None
    _every: int
    _lr_factor: float
    _max_rollbacks: int

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: deque[Verdict] = deque(maxlen=100)
        """The last decisions."""
        self._rollbacks: deque[int] = deque()
        self._listeners: list[Callable[[str, int, str, dict[str, Any]], None]] = []
        self._snapshots: Snapshots | None = None
        self._running = RunningStats(())
        self._step_of: Callable[[], int] | None = None

    def _scaler_skipped(self, ward: Ward) -> None:
        self.counts["scaler_skip"] += 1
        ward.skipped, ward.flagged, ward.good = True, False, False
        ward.reading = ward.loss = None
        self._last = ward
        self._running.restore()
        self._note(
            "scaler", ward, "the GradScaler skipped this step: the scaled gradients overflowed", {}
        )

    def _step(self, ward: Ward) -> int:
        return ward.steps if self._step_of is None else self._step_of()

    def _decided(self, ward: Ward, case: Case) -> None:
        """Something is wrong with the step: do what the policy says."""
        verdict = case.verdict
        action = self.policy.actions[verdict.cause]
        word = self._word(action, verdict)
        step = ward.steps
        if word == p.SKIP:
            while ward.skips and ward.skips[0] <= step - self.policy.within:
                ward.skips.popleft()
            if len(ward.skips) >= self.policy.max_skips:
                verdict.note = (
                    f"{len(ward.skips)} steps were skipped in the last {self.policy.within}"
                )
                escalation = self.policy.escalation(verdict.cause, ward.losses.is_bad())
                word = self._word(escalation, verdict)
            else:
                ward.skips.append(step)
        verdict.done = word
        if word == p.CLIP and case.factor is None and case.factors is None:
            # A loss has nothing to scale, and NaN × 0 is NaN.
            verdict.done = word = p.SKIP if verdict.cause == NON_FINITE else p.WARN
        self._do(ward, case, word)

    def _word(self, action: Action, verdict: Verdict) -> str:
        if not callable(action):
            return action
        said = _users(action, verdict)
        if said is None:
            return p.WARN
        if said not in (*p.WORDS, p.ACCEPT):
            raise _own(ConfigError(f"an action must return one of {p.WORDS} or None, got {said!r}"))
        return str(said)

    def _do(self, ward: Ward, case: Case, word: str) -> None:
        verdict = case.verdict
        if word == p.ROLLBACK:
            self._roll_back(ward, verdict, on_device=case.on_device)
        if word in (p.SKIP, p.ROLLBACK):
            ward.skipped = True
            if not case.on_device:
                ward.aside.take(ward.parameters)
                self._running.restore()
        elif word == p.CLIP:
            if case.factors is not None:
                scale_each(case.grads, case.factors.tolist())
            elif case.factor is not None:
                scale_all(case.grads, case.factor)
        elif word == p.ACCEPT:
            ward.rule.reset()
            if ward.device is not None:
                ward.device.reset()
            ward.skips.clear()
        self._tell(ward, verdict)
        if word == p.STOP:
            raise GuardStop(
                f"step {verdict.step}: {verdict.text}. The weights are those from before this step."
            )

    def _roll_back(self, ward: Ward, verdict: Verdict, *, on_device: bool) -> None:
        while self._rollbacks and self._rollbacks[0] <= ward.steps - 10 * self._every:
            self._rollbacks.popleft()
        tries = len(self._rollbacks)
        kept = self._snapshots
        chosen = kept.choose(ward.steps, PROBATION) if kept is not None else None
        if kept is None or chosen is None or tries >= self._max_rollbacks:
            why = (
                "no state is kept: name rollback in action= or escalate="
                if kept is None
                else "no good state was kept yet"
                if chosen is None
                else f"{tries} rollbacks in {10 * self._every} steps did not help (max_rollbacks="
                f"{self._max_rollbacks}); lower the learning rate or look at the culprits"
            )
            verdict.done, verdict.note = p.STOP, why
            self._tell(ward, verdict)
            raise RollbackFailed(f"step {verdict.step}: {verdict.text}")
        kept.restore(chosen, ward.steps, self._lr_factor)
        self._rollbacks.append(ward.steps)
        back = ward.steps - chosen.step
        verdict.note = (verdict.note + "; " if verdict.note else "") + (
            f"to the state of {back} step{'s' if back != 1 else ''} ago"
        )
        for one in self._wards:
            one.skip_next = one is not ward or on_device
            one.losses.rolled_back()
            one.rates.forget()
            one.skips.clear()
        self._running.keep()

    def _tell(self, ward: Ward, verdict: Verdict) -> None:
        self.counts[verdict.done] = self.counts.get(verdict.done, 0) + 1
        self.verdicts.append(verdict)
        level = logging.INFO if verdict.done == p.CLIP else logging.WARNING
        log.log(level, "torchvitals: guard, step %d: %s", verdict.step, verdict.text)
        if not (isinstance(ward.rule, AdaGC) and verdict.done == p.CLIP) or self._often(ward):
            self._note("guard", ward, verdict.text, verdict.data(), verdict.step)
        if self._on_spike is not None:
            _users(self._on_spike, verdict)

    def _often(self, ward: Ward) -> bool:
        """AdaGC scales some tensor in nearly every step: one event in a hundred steps."""
        due = ward.steps - ward.noted >= 100 or ward.noted == 0
        if due:
            ward.noted = ward.steps
        return due

    def _note(
        self, kind: str, ward: Ward, text: str, data: dict[str, Any], step: int | None = None
    ) -> None:
        for listener in self._listeners:
            listener(kind, self._step(ward) if step is None else step, text, data)


def _users(function: Callable[[Verdict], Any], verdict: Verdict) -> Any:
    """Call the user's function; what it raises is meant to be raised."""
    try:
        return function(verdict)
    except Exception as error:
        raise _own(error) from error.__cause__


def _own(error: Exception) -> Exception:
    error._users_own = True  # type: ignore[attr-defined]
    return error
