"""`Guard`: stands between the gradients and the weights.

In the optimizer's pre-step hook, wherever `zero_grad` is, it reads the gradients' norms, judges
them and the loss, and acts before the update is made. Compare first, learn afterwards: what was
flagged never enters the statistics.
"""

from __future__ import annotations

import logging
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import LBFGS, Optimizer
from torch.utils.hooks import RemovableHandle

from torchvitals.guard import policy as p
from torchvitals.guard.acting import Acting
from torchvitals.guard.agreement import Agreement
from torchvitals.guard.names import names_of
from torchvitals.guard.policy import Action, Policy
from torchvitals.guard.rules import AdaGC, Rule, Stats, ZClip, make_rule
from torchvitals.guard.rules.rule import at_least, positive
from torchvitals.guard.running_stats import RunningStats
from torchvitals.guard.scaling import still_scaled_by
from torchvitals.guard.snapshots import Snapshots
from torchvitals.guard.verdict import Verdict
from torchvitals.guard.ward import Ward
from torchvitals.record import ConfigError, GuardStop
from torchvitals.stats.backend import choose_backend
from torchvitals.stats.clipping import ClipCatcher
from torchvitals.stats.scaler_calls import ScalerCatcher

log = logging.getLogger("torchvitals")

COUNTED = (p.SKIP, p.CLIP, p.ROLLBACK, p.STOP, p.WARN, p.ACCEPT, "scaler_skip")


class Guard(Acting):
    """Judges each step before it is made.

        guard = torchvitals.Guard()
        guard.attach(optimizer, model)

    or `watch(model, optimizer, guard=guard)`, where decisions become events of the run.

    Args:
        action: "rollback" (the default: skip steps with NaN, Inf or a spike, go back when the
            training diverges or skipping does not end), "skip", "clip", "stop", "warn", a callable
            `(verdict) -> one of these words or None`, or a dict of them by cause: "non_finite",
            "spike", "divergence".
        rule: what a spike of the gradient norm is: "mean_std" (mean + k·std of the logs),
            "median_mad", "rolling" (6σ of the last 128), "zclip", "adagc" (each tensor's own norm),
            a number, a callable `(stats, value) -> bool`, or a rule of `torchvitals.guard`.
        k: how far from the mean; the rule's own default where None.
        warmup: norms a rule must have seen before it judges. NaN and Inf are always judged.
        log: whether the rule looks at logarithms.
        max_skips, within: at most so many steps are skipped in so many steps, then `escalate`.
        escalate: "rollback", "stop", "warn", "accept" (the norm's new level) or a callable; None
            chooses by cause (docs/guard.md).
        on_spike: called with the `Verdict` of every flagged step.
        scaler: the GradScaler, if gradients are clipped without `unscale_`; otherwise it is found.
        scheduler: learning-rate scheduler(s) to roll back too.
        rollback_every, keep: a state is kept every so many steps, so many of them.
        lr_factor: learning rates are multiplied with it at a rollback.
        max_rollbacks: so many in ten times `rollback_every` steps, then `RollbackFailed` is raised.
        restore_rng: whether a rollback restores the random generators of torch, numpy and Python.
        state_device: where states are kept, e.g. "cpu"; by default where the weights are.
        divergence: judge losses that stay up (`tell_loss`, `monitor.log(loss=…)`). By default not
            with several optimizers (losses of adversaries rise), nor once a loss was negative.
        agree: with several processes, decide from all ranks' numbers.
        timeout_s: seconds to wait for another rank.
        decide: "host", "device" (fused optimizers, `found_inf`: nothing waits), or "auto".
        backend: "native", "triton", "torch", or the best there is.
    """

    def __init__(
        self,
        action: Action | Mapping[str, Action] | None = None,
        *,
        rule: str | float | Rule | Callable[[Stats, float], bool] = "mean_std",
        k: float | None = None,
        warmup: int | None = None,
        log: bool | None = None,
        max_skips: int = 5,
        within: int = 50,
        escalate: Action | None = None,
        on_spike: Callable[[Verdict], Any] | None = None,
        scaler: torch.amp.GradScaler | None = None,
        scheduler: Any = None,
        rollback_every: int = 25,
        keep: int = 2,
        lr_factor: float = 1.0,
        max_rollbacks: int = 3,
        restore_rng: bool = False,
        state_device: str | None = None,
        divergence: bool | None = None,
        agree: bool = True,
        timeout_s: float = 300.0,
        decide: Literal["auto", "host", "device"] = "auto",
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self._rule = make_rule(rule, k=k, warmup=warmup, log=log)
        if action is None:
            action = p.CLIP if isinstance(self._rule, AdaGC | ZClip) else p.ROLLBACK
        self.policy = Policy(action, escalate=escalate, max_skips=max_skips, within=within)
        if isinstance(self._rule, AdaGC) and self.policy.actions["spike"] not in (p.CLIP, p.WARN):
            raise ConfigError(
                "rule='adagc' scales single tensors down: its action for a spike is clip or warn, "
                f"got {self.policy.actions['spike']!r}"
            )
        if on_spike is not None and not callable(on_spike):
            raise ConfigError(f"on_spike must be callable, got {on_spike!r}")
        if scaler is not None and not isinstance(scaler, torch.amp.GradScaler):
            raise ConfigError(f"scaler must be a torch.amp.GradScaler, got {type(scaler).__name__}")
        if decide not in ("auto", "host", "device"):
            raise ConfigError(f"decide must be 'auto', 'host' or 'device', got {decide!r}")
        self._decide = decide
        self._check_device()
        self._on_spike = on_spike
        self._scaler = scaler
        self._schedulers = _schedulers(scheduler)
        self._every = at_least("rollback_every", rollback_every, 1)
        self._keep = at_least("keep", keep, 1)
        self._lr_factor = positive("lr_factor", lr_factor)
        if lr_factor > 1:
            raise ConfigError(f"lr_factor must be at most 1, got {lr_factor}")
        self._max_rollbacks = at_least("max_rollbacks", max_rollbacks, 1)
        self._rng = restore_rng
        if state_device is not None:
            try:
                torch.device(state_device)
            except (RuntimeError, TypeError) as error:
                raise ConfigError(f"state_device: {str(error).splitlines()[0]}") from None
        self._state_device = state_device
        self._wants_divergence = divergence
        self._wants_agreement, self._timeout_s = agree, positive("timeout_s", timeout_s)
        self._backend = choose_backend(backend)
        self.counts = dict.fromkeys(COUNTED, 0)
        """How often each thing was done; "scaler_skip": steps that a GradScaler skipped itself."""
        self._handles: list[RemovableHandle] = []
        self._catcher: ClipCatcher | None = None
        self._scaler_catcher: ScalerCatcher | None = None
        self._off = False
        self._loaded: Mapping[str, Any] | None = None
        self._final: dict[str, Any] | None = None
        """The state when it was last detached."""

    def attach(
        self,
        optimizer: Optimizer | Sequence[Optimizer],
        model: nn.Module | Iterable[nn.Module] | None = None,
        *,
        names: Mapping[int, str] | None = None,
    ) -> Guard:
        """Stand before these optimizers from now on.

        Without the model parameters have no names, and batch norms and buffers are not put back.
        With several processes all ranks call it.
        """
        optimizers = [optimizer] if isinstance(optimizer, Optimizer) else _listed(optimizer)
        self.check(optimizers)
        models = [model] if isinstance(model, nn.Module) else list(model or ())
        for module in models:
            if not isinstance(module, nn.Module):
                raise ConfigError(f"model must be a torch.nn.Module, got {type(module).__name__}")
        self._agreement = Agreement(wanted=self._wants_agreement, timeout_s=self._timeout_s)
        if self._agreement.several and self._decide == "device":
            self._agreement.close()
            raise ConfigError("decide='device' serves one process; use decide='host' with several")
        known = {**names_of(models, optimizers), **(names or {})}
        self._wards = [
            Ward(number, one, known, self._rule.fresh(), self._backend)
            for number, one in enumerate(optimizers)
        ]
        self._watches_loss = self._wants_divergence
        if self._wants_divergence is None and len(optimizers) > 1:
            self._watches_loss = False
        self._running = RunningStats(models)
        if self.policy.rolls_back:
            self._snapshots = Snapshots(
                optimizers,
                models,
                self._schedulers,
                every=self._every,
                keep=self._keep,
                rng=self._rng,
                device=self._state_device,
            )
        for ward in self._wards:
            one = ward.optimizer
            self._handles.append(one.register_step_pre_hook(self._pre_hook(ward)))
            self._handles.append(one.register_step_post_hook(self._post_hook(ward)))
        self._catcher = ClipCatcher(self._before_clip, _after_clip)
        self._catcher.install()
        self._scaler_catcher = ScalerCatcher(optimizers, self._scaler_begins, self._scaler_ends)
        self._scaler_catcher.install()
        if self._loaded is not None:
            state, self._loaded = self._loaded, None
            self.load_state_dict(state)
        return self

    def detach(self) -> None:
        """Take every hook off. Calling it again does nothing."""
        if self._wards:
            self._final = self.state_dict()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        if self._catcher is not None:
            self._catcher.remove()
            self._catcher = None
        if self._scaler_catcher is not None:
            self._scaler_catcher.remove()
            self._scaler_catcher = None
        self._agreement.close()
        for ward in self._wards:
            ward.aside.put_back()
        self._wards, self._snapshots = [], None

    def __enter__(self) -> Guard:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.detach()

    @property
    def clips(self) -> bool:
        """Whether it may change gradients in place."""
        return self.policy.clips

    @property
    def last_norm(self) -> float:
        """The global gradient norm of the last step, unscaled, before clipping; NaN before it."""
        self._flush()
        return self._last.norm if self._last is not None else math.nan

    @property
    def last_flagged(self) -> bool:
        """Whether the last step was flagged, whatever was done about it."""
        self._flush()
        return self._last is not None and self._last.flagged

    @property
    def last_step_skipped(self) -> bool:
        """Whether the last step was skipped: by the guard, a rollback, or a GradScaler."""
        self._flush()
        return self._last is not None and self._last.skipped

    def tell_loss(self, loss: Any, *, late: bool = False) -> None:
        """The loss of the step about to be made: call it before `optimizer.step()`.

        A Python number or a one-element tensor, read when the step is judged. `late`: it belongs to
        the step just made; divergence is judged by it, the next step is not. A closure's loss
        need not be told.
        """
        for ward in self._wards:
            if late:
                ward.late.append(_detached(loss))
            else:
                ward.loss = _detached(loss)

    def listen(self, listener: Callable[[str, int, str, dict[str, Any]], None]) -> None:
        """Call it with `(kind, step, text, data)` for everything that is noted."""
        self._listeners.append(listener)

    def count_steps_by(self, step_of: Callable[[], int]) -> None:
        """Use somebody else's step numbers in verdicts."""
        self._step_of = step_of

    def state_dict(self) -> dict[str, Any]:
        """What later decisions depend on: numbers and lists, for a checkpoint.

        States kept for rollbacks are not in it: the checkpoint itself is one.
        """
        if not self._wards and self._final is not None:
            return self._final
        self._flush()
        return {
            "version": 1,
            "wards": [ward.state_dict() for ward in self._wards],
            "counts": dict(self.counts),
            "rollbacks": list(self._rollbacks),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """What `state_dict` gave; before or after `attach`."""
        if state.get("version") != 1:
            raise ConfigError(
                f"this is no state of a guard that this version knows: version "
                f"{state.get('version')!r}, expected 1"
            )
        if not self._wards:
            self._loaded = state
            return
        if len(state["wards"]) != len(self._wards):
            raise ConfigError(
                f"this state was saved with {len(state['wards'])} optimizer(s), the guard has "
                f"{len(self._wards)}"
            )
        for ward, one in zip(self._wards, state["wards"], strict=True):
            ward.load_state_dict(one)
        self.counts = {**dict.fromkeys(COUNTED, 0), **state["counts"]}
        self._rollbacks = deque(state["rollbacks"])

    def _scaler_begins(self, scaler: torch.amp.GradScaler, number: int) -> None:
        self._wards[number].hook_ran = False
        self._scaler = scaler

    def _scaler_ends(self, number: int) -> None:
        """On overflow a scaler calls no step of an optimizer that is not fused."""
        ward = self._wards[number]
        if not ward.hook_ran:
            ward.steps += 1
            self._scaler_skipped(ward)

    def check(self, optimizers: Sequence[Optimizer]) -> None:
        """Raise ConfigError if one of them can't be guarded."""
        if self._wards:
            raise ConfigError("this guard is attached already; detach() it, or make another one")
        if not optimizers:
            raise ConfigError("the guard needs an optimizer to stand before")
        for one in optimizers:
            self._check_optimizer(one)

    def describe(self) -> dict[str, Any]:
        """Its main settings, for the run's file."""
        actions = {
            cause: getattr(action, "__name__", str(action))
            for cause, action in self.policy.actions.items()
        }
        return {
            "action": actions, "rule": self._rule.name,
            "max_skips": self.policy.max_skips, "within": self.policy.within,
        }  # fmt: skip

    def _check_optimizer(self, optimizer: Any) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ConfigError(
                f"optimizer must be a torch.optim.Optimizer or a list of them, got "
                f"{type(optimizer).__name__}"
            )
        if isinstance(optimizer, LBFGS):
            raise ConfigError(
                "LBFGS can't be guarded: one step() evaluates the closure many times, moves the "
                "weights between, and keeps them in its history, so there is no one moment before "
                "the update to judge. Use another optimizer, or train without the guard."
            )
        if self._decide == "device" and not getattr(optimizer, "_step_supports_amp_scaling", False):
            raise ConfigError(
                f"decide='device' needs an optimizer that reads found_inf; "
                f"{type(optimizer).__name__}(…, fused=True) may be one"
            )

    def _check_device(self) -> None:
        if self._decide == "device" and not self._device_can:
            raise ConfigError(
                "decide='device' serves rule='mean_std' or a fixed limit with the action skip for "
                "non_finite and spike; use decide='host'"
            )

    def _pre_hook(self, ward: Ward) -> Callable[..., Any]:
        def before_step(_optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
            if self._off or not ward.enter():
                return None
            closure = args[1] if len(args) > 1 else kwargs.get("closure")
            if closure is None:
                self._safely(ward)
                return None

            def judged() -> Any:
                loss = closure()
                ward.aside.put_back()
                if loss is not None:
                    ward.loss = _detached(loss)
                self._safely(ward)
                return loss

            if len(args) > 1:
                return (args[0], judged, *args[2:]), kwargs
            return args, {**kwargs, "closure": judged}

        return before_step

    def _post_hook(self, ward: Ward) -> Callable[..., None]:
        def after_step(optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
            if self._off or not ward.leave():
                return
            ward.aside.put_back()
            for name in ward.handed:
                delattr(optimizer, name)
            ward.handed = []
            if ward.device_flag is not None:
                self._running.settle(ward.device_flag)
                ward.device_flag = None
            elif ward.good:
                self._running.keep()

        return after_step

    def _safely(self, ward: Ward) -> None:
        """Judge; a mistake of ours ends the guard, not the training (but is raised in tests)."""
        try:
            with torch.no_grad():
                self._judge(ward)
        except Exception as error:
            if isinstance(error, GuardStop) or getattr(error, "_users_own", False) or _strict():
                raise
            self._off = True
            ward.aside.put_back()
            text = f"the guard failed and is switched off: {type(error).__name__}: {error}"
            log.error("torchvitals: %s", text)
            self._note("degraded", ward, text, {"probe": "guard"})

    def _before_clip(self, parameters: list[Tensor]) -> list[Ward] | None:
        """Read norms before the user's clipping changes them."""
        if self._off:
            return None
        ids = {id(parameter) for parameter in parameters}
        wards = [w for w in self._wards if any(id(one) in ids for one in w.parameters)]
        with torch.no_grad():
            for ward in wards:
                ward.before_clip(still_scaled_by(self._scaler, ward.optimizer))
        return wards


def _schedulers(scheduler: Any) -> list[Any]:
    if scheduler is None:
        return []
    listed = list(scheduler) if isinstance(scheduler, list | tuple) else [scheduler]
    for one in listed:
        if not (hasattr(one, "state_dict") and hasattr(one, "load_state_dict")):
            raise ConfigError(
                f"scheduler must have state_dict and load_state_dict, got {type(one).__name__}"
            )
    return listed


def _listed(optimizer: Any) -> list[Any]:
    return list(optimizer) if isinstance(optimizer, Iterable) else [optimizer]


def _detached(loss: Any) -> Any:
    if isinstance(loss, Tensor):
        if loss.numel() != 1:
            raise ConfigError(
                f"a loss must be one number, got a tensor of shape {tuple(loss.shape)}"
            )
        return loss.detach()
    if isinstance(loss, int | float | np.number):
        return float(loss)
    raise ConfigError(f"a loss must be a number or a one-element tensor, got {type(loss).__name__}")


def _after_clip(wards: list[Ward], _limit: float, _norm: Any) -> None:
    for ward in wards:
        ward.after_clip()


def _strict() -> bool:
    return os.environ.get("TORCHVITALS_STRICT", "") not in {"", "0"}
