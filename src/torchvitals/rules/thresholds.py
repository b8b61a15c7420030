"""`Thresholds`: every limit of every rule, in one place.

Set by keyword, ``Thresholds(dead_share=0.7)``; by a dict, ``watch(…, thresholds={"dead_share":
0.7})``; in pyproject.toml under ``[tool.torchvitals.thresholds]``; on the command line with
``--threshold dead_share=0.7``. Later ones win in this order: defaults, file, keyword or option.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from torchvitals.record.errors import ConfigError


def _limit(default: float, rules: str, about: str) -> Any:
    """A field with the rules it belongs to and what it means."""
    return field(default=default, metadata={"rules": tuple(rules.split()), "about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """The limits. From public guides and papers, tuned on runs with injected faults."""

    wiring_checks: int = _limit(
        2,
        "orphan_parameter gradients_not_cleared no_effective_step schedule_fault input_ignored "
        "wrong_loss_input input_scale",
        "monitored steps before wiring is judged",
    )
    orphan_share: float = _limit(
        0.5,
        "orphan_parameter",
        "up to this share of the parameters outside the optimizer is a mistake; above, it may "
        "be meant",
    )
    stale_share: float = _limit(
        0.5, "gradients_not_cleared", "share of monitored steps with leftover gradients"
    )
    idle_share: float = _limit(
        0.2,
        "gradients_not_cleared no_effective_step",
        "share of monitored steps without a backward pass",
    )
    non_finite_growth: float = _limit(
        5.0,
        "non_finite",
        "growth of loss or gradient before the first NaN that blames the step size",
    )
    frozen_ratio: float = _limit(
        1e-12, "frozen_layer", "update ratio at and below which a layer stands still"
    )
    frozen_patience: int = _limit(3, "frozen_layer", "monitored steps running")
    solved_share: float = _limit(
        0.01,
        "adam_eps_dominates vanishing_gradients update_ratio lr_too_low loss_spike divergence "
        "plateau",
        "a loss below this share of its start is solved",
    )
    lr_high_points: int = _limit(12, "lr_too_high", "losses before it is judged")
    lr_high_patience: int = _limit(
        40, "lr_too_high", "losses before one that merely stays where it began is blamed on it"
    )
    lr_high_ratio: float = _limit(
        0.03, "lr_too_high", "update ratio of the median weight above which steps are large"
    )
    lr_good_ratio: float = _limit(
        3e-3, "lr_too_high lr_too_low", "update ratio a recommended rate aims at"
    )
    lr_high_rise: float = _limit(1.3, "lr_too_high", "loss now over loss at the start")
    lr_high_stuck: float = _limit(
        0.9, "lr_too_high", "loss now over loss at the start: nothing was learned"
    )
    lr_high_peak: float = _limit(3.0, "lr_too_high", "highest loss over loss at the start")
    lr_high_growth: float = _limit(
        4.0, "lr_too_high", "norm of the median weight over that after the first step"
    )
    lr_high_fallen: float = _limit(
        0.5, "lr_too_high", "share of the loss that must be gone when it has settled"
    )
    lr_low_points: int = _limit(40, "lr_too_low", "losses before it is judged")
    lr_low_ratio: float = _limit(
        1e-4, "lr_too_low", "update ratio of the upper quarter of the weights"
    )
    lr_low_fallen: float = _limit(
        0.2, "lr_too_low", "share of the loss that must be gone to be silent"
    )
    schedule_zero_checks: int = _limit(3, "schedule_fault", "monitored steps with lr 0")
    schedule_jump: float = _limit(5.0, "schedule_fault", "sudden rise above everything before")
    schedule_gone: float = _limit(
        0.01, "schedule_fault", "share of the peak that is as good as nothing"
    )
    schedule_gone_share: float = _limit(0.5, "schedule_fault", "share of the run spent there")
    schedule_gone_steps: int = _limit(50, "schedule_fault", "steps spent there before it is told")
    schedule_warm_up: float = _limit(
        0.1, "schedule_fault", "share of the run that a warm-up may take"
    )
    schedule_least_steps: int = _limit(
        1000, "schedule_fault", "runs shorter than this may warm up as they like"
    )
    spike_sigma: float = _limit(
        6.0, "gradient_spike loss_spike", "robust standard deviations of the log value"
    )
    spike_window: int = _limit(128, "gradient_spike loss_spike", "values that make the baseline")
    spike_least: int = _limit(
        16, "gradient_spike tensor_spike loss_spike", "values before anything is judged"
    )
    spike_recovery: int = _limit(20, "loss_spike", "values after which it must be back")
    loss_spike: float = _limit(10.0, "loss_spike", "loss over the median before: a warning")
    loss_spike_small: float = _limit(2.0, "loss_spike", "loss over the median before: information")
    gradient_spike: float = _limit(10.0, "gradient_spike", "norm over the median before: a warning")
    gradient_spike_small: float = _limit(
        4.0, "gradient_spike", "norm over the median before: information"
    )
    divergence_points: int = _limit(30, "divergence", "losses before it is judged")
    divergence_factor: float = _limit(2.0, "divergence", "loss now over its best")
    plateau_points: int = _limit(
        60, "vanishing_gradients plateau oscillation", "losses before it is judged"
    )
    plateau_fallen: float = _limit(0.05, "plateau", "share of the loss that must be gone")
    plateau_little: float = _limit(
        0.2, "plateau", "share of the loss that must be gone where it has settled: a warning"
    )
    plateau_gain: float = _limit(
        0.02, "plateau", "share of the loss that the forecast must still take off to go on"
    )
    outlook_off: float = _limit(
        0.1, "plateau overfitting", "share by which a loss may lie off the curve that is forecast"
    )
    plateau_error_steps: int = _limit(
        200, "plateau", "steps after which nothing learned is an error, and little a warning"
    )
    flow_checks: int = _limit(3, "vanishing_gradients exploding_gradients", "monitored steps")
    vanishing_ratio: float = _limit(
        0.01, "vanishing_gradients", "first layers' gradient RMS over the last layers'"
    )
    vanishing_first: float = _limit(1e-4, "vanishing_gradients", "first layers' gradient RMS")
    vanishing_rms: float = _limit(1e-7, "vanishing_gradients", "median gradient RMS of all weights")
    recurrent_radius: float = _limit(
        0.5, "vanishing_gradients", "spectral radius of a plain RNN's recurrent matrix"
    )
    exploding_norm: float = _limit(100.0, "exploding_gradients", "norm of all gradients")
    exploding_norm_error: float = _limit(
        1000.0, "exploding_gradients summed_loss", "norm of all gradients: red"
    )
    exploding_growth: float = _limit(
        3.0, "exploding_gradients", "norm over that of the first steps"
    )
    exploding_ratio: float = _limit(
        70.0, "exploding_gradients", "first layers' gradient RMS over the last layers'"
    )
    exploding_steep_norm: float = _limit(
        5.0, "exploding_gradients", "norm below which a steep flow does no harm"
    )
    clip_checks: int = _limit(8, "over_clipping", "monitored steps with clipping")
    clip_share: float = _limit(0.5, "over_clipping", "share of clipped steps")
    clip_info: float = _limit(2.0, "over_clipping", "norm over limit from which it is told")
    clip_ratio: float = _limit(10.0, "over_clipping", "norm over limit: a warning")
    dead_share: float = _limit(0.5, "dead_units", "share of a layer's units")
    dead_alarm: float = _limit(
        0.8, "dead_units", "share of a layer's units: a warning in a model that learns"
    )
    dead_error: float = _limit(0.95, "dead_units", "share of a layer's units: red")
    dead_checks: int = _limit(3, "dead_units", "monitored steps with nothing but zeros")
    saturation_share: float = _limit(0.5, "saturation", "share of a layer's outputs at the ends")
    saturation_checks: int = _limit(3, "saturation", "monitored steps")
    init_twins: float = _limit(0.9, "bad_init", "share of units that equal another")
    init_large: float = _limit(3.0, "bad_init", "std over Kaiming's")
    init_large_all: float = _limit(
        1.8, "bad_init", "the same in most layers of a model without normalisation"
    )
    init_small: float = _limit(0.01, "bad_init", "std over Kaiming's, in most layers")
    init_first_ratio: float = _limit(
        0.3, "bad_init", "a first step larger than this hides how weights began"
    )
    amp_checks: int = _limit(10, "amp_overflow", "monitored steps with a GradScaler")
    amp_skipped: float = _limit(0.05, "amp_overflow", "share of skipped steps")
    amp_scale: float = _limit(1.0, "amp_overflow", "loss scale")
    lost_checks: int = _limit(3, "lost_updates", "monitored steps at full rate")
    lost_share: float = _limit(
        0.5, "lost_updates", "share of elements that do not change although they have a gradient"
    )
    lost_error: float = _limit(0.9, "lost_updates", "share of elements: red")
    moment_checks: int = _limit(
        3, "adam_eps_dominates adam_variance_lag", "looks at Adam's moments"
    )
    eps_ratio: float = _limit(10.0, "adam_eps_dominates", "median √v̂ over ε")
    eps_fallen: float = _limit(
        0.5, "adam_eps_dominates", "share of the loss that must be gone for mere information"
    )
    tensor_spike: float = _limit(
        50.0, "tensor_spike", "gradient norm of a tensor over its own running level"
    )
    descent_checks: int = _limit(16, "update_not_descent", "monitored steps")
    descent_cosine: float = _limit(-0.1, "update_not_descent", "median cosine of Δw and −g")
    descent_ratio: float = _limit(
        1e-4, "update_not_descent", "update ratio below which steps are too small to matter"
    )
    ratio_steps: int = _limit(30, "update_ratio", "steps before it is judged")
    ratio_max: float = _limit(0.1, "update_ratio", "‖Δw‖/‖w‖")
    ratio_min: float = _limit(1e-7, "update_ratio", "‖Δw‖/‖w‖")
    edge_sgd: float = _limit(2.0, "edge_of_stability", "λ_max · lr of plain gradient descent")
    edge_adam: float = _limit(38.0, "edge_of_stability", "λ_max · lr of Adam with β₁ = 0.9")
    lag_ratio: float = _limit(2.3, "adam_variance_lag", "√mean(g²/v̂)")
    lag_checks: int = _limit(3, "adam_variance_lag", "looks of eight running")
    rotation_steps: int = _limit(100, "unbalanced_rotation", "steps before it is judged")
    rotation_spread: float = _limit(
        30.0, "unbalanced_rotation", "90th over 10th percentile of the update ratios"
    )
    dormant_share: float = _limit(0.5, "dormant_units", "share of a layer's units")
    dormant_warning: float = _limit(0.9, "dormant_units", "share of a layer's units: a warning")
    scale_layers: int = _limit(
        4, "activation_scale", "weight layers from which a scale can be told"
    )
    scale_low: float = _limit(0.5, "activation_scale", "factor a layer")
    scale_high: float = _limit(2.0, "activation_scale", "factor a layer")
    scale_total: float = _limit(30.0, "activation_scale", "factor over all layers")
    blow_up_checks: int = _limit(8, "weight_blow_up", "monitored steps")
    blow_up_jump: float = _limit(
        20.0, "weight_blow_up", "largest element over that of the look before"
    )
    blow_up_growth: float = _limit(4.0, "weight_blow_up", "norm over that of half the run before")
    decay_checks: int = _limit(4, "over_regularised", "monitored steps")
    decay_share: float = _limit(0.5, "over_regularised", "decay over the whole step")
    decay_forgets: float = _limit(
        0.005, "over_regularised", "lr · decay: what it takes of a weight in a step"
    )
    decay_shrunk: float = _limit(0.5, "over_regularised", "norm over that of the first step")
    attention_logit: float = _limit(100.0, "attention_logits lr_too_high", "largest q·k/√d")
    attention_start: float = _limit(
        20.0, "attention_logits", "median of the heads' largest logits before anything was learned"
    )
    entropy_share: float = _limit(0.1, "attention_collapse", "entropy over that of the first steps")
    entropy_nats: float = _limit(0.05, "attention_collapse", "entropy in nats")
    logz: float = _limit(50.0, "logit_drift", "mean of abs(log Z)")
    rank_low: float = _limit(1.5, "rank_collapse", "stable rank")
    massive_ratio: float = _limit(1000.0, "massive_activations", "largest element over RMS")
    oscillation_evals: int = _limit(6, "oscillation", "evaluations")
    oscillation_turns: float = _limit(0.6, "oscillation", "share of evaluations that turn back")
    oscillation_swing: float = _limit(
        0.1, "oscillation", "change between evaluations over their level"
    )
    oscillation_noise: float = _limit(
        0.6, "oscillation", "scatter of the training loss over its level"
    )
    start_factor: float = _limit(2.0, "loss_at_start", "first loss over that of guessing")
    summed_norm: float = _limit(100.0, "summed_loss", "gradient norm at which a sum shows")
    overfit_evals: int = _limit(4, "overfitting", "evaluations")
    overfit_rise: float = _limit(0.1, "overfitting", "validation loss over its best, minus one")
    overfit_least: float = _limit(
        0.03, "overfitting", "the rise over the first training loss: below it is information"
    )
    overfit_solved: float = _limit(
        0.05, "overfitting", "share of the first loss below which training is solved"
    )
    overfit_unsolved: float = _limit(
        0.4, "overfitting", "share of it above which validation is not, all the same"
    )
    overfit_gap: float = _limit(0.05, "overfitting", "fall of the training loss since")
    input_zero: float = _limit(0.999, "input_ignored", "share of zeros")
    output_spread: float = _limit(
        1e-3, "input_ignored", "spread over the batch over the whole spread"
    )
    mode_share: float = _limit(0.5, "train_eval_mismatch", "share of evaluations in training mode")
    softmax_share: float = _limit(0.99, "wrong_loss_input", "share of rows that are probabilities")
    class_numbers: int = _limit(1000, "wrong_loss_input", "largest class number")
    leak_evals: int = _limit(6, "leakage", "evaluations")
    leak_gap: float = _limit(0.05, "leakage", "validation below training loss")
    leak_passes: int = _limit(
        5, "leakage", "epochs before it is judged with dropout or batch norm in the model"
    )
    leak_gap_dropout: float = _limit(
        0.2, "leakage", "the same with dropout or batch norm in the model"
    )
    imbalance_classes: int = _limit(20, "class_imbalance", "classes up to which shares are judged")
    imbalance_top: float = _limit(0.9, "class_imbalance", "share of the most frequent class")
    imbalance_factor: float = _limit(10.0, "class_imbalance", "loss of a category over the median")
    input_scale: float = _limit(10.0, "input_scale", "mean or std of the input")
    repeat_share: float = _limit(
        0.1, "repeated_batches", "share of samples seen before in this epoch"
    )
    repeat_often: float = _limit(
        0.33, "repeated_batches", "share of the monitored steps with so many"
    )
    repeat_share_blind: float = _limit(
        0.5, "repeated_batches", "the same where epochs are not told"
    )
    repeat_early: int = _limit(
        8, "repeated_batches", "monitored steps that count where epochs are not told"
    )
    clock_checks: int = _limit(6, "data_bound", "monitored steps")
    data_share: float = _limit(0.3, "data_bound", "waiting over step time")
    data_step_s: float = _limit(
        0.005, "data_bound", "steps shorter than this are too small to judge"
    )
    slow_checks: int = _limit(24, "slow_step", "monitored steps")
    slow_share: float = _limit(0.5, "slow_step", "throughput over what it was")
    slow_share_error: float = _limit(0.2, "slow_step", "throughput over what it was: red")
    slow_others: float = _limit(
        0.5, "slow_step", "share of the busy processors that others use: then it is not the run"
    )
    slow_least_s: float = _limit(10.0, "slow_step", "seconds it must last")
    leak_samples: int = _limit(6, "memory_leak", "samples of the memory")
    leak_growth: float = _limit(0.1, "memory_leak", "growth over the first sample")
    leak_bytes: float = _limit(3e7, "memory_leak", "growth in bytes")
    leak_steady: float = _limit(0.6, "memory_leak", "share of samples that rise")
    memory_full: float = _limit(0.95, "memory_leak stalled", "share of the machine's memory in use")
    stall_factor: float = _limit(10.0, "stalled", "silence over the median gap between rows")
    stall_least_s: float = _limit(60.0, "stalled", "silence in seconds")
    noise_checks: int = _limit(16, "batch_too_small", "monitored steps with micro-batches")
    noise_share: float = _limit(0.1, "batch_too_small", "batch over noise scale")
    straggler_checks: int = _limit(8, "straggler", "looks at all ranks")
    straggler_share: float = _limit(0.1, "straggler", "step time over the median rank's, minus one")

    def __post_init__(self) -> None:
        for one in fields(self):
            value = getattr(self, one.name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise ConfigError(f"threshold {one.name} must be a number, got {value!r}")
            if one.type == "int" and value != int(value):
                raise ConfigError(f"threshold {one.name} must be a whole number, got {value!r}")

    def with_changes(self, changes: Mapping[str, Any]) -> Thresholds:
        """With some limits changed; an unknown name is an error that names the closest."""
        known = {one.name: one for one in fields(self)}
        for name in changes:
            if name not in known:
                near = get_close_matches(name, known, n=1)
                meant = f" Did you mean {near[0]}?" if near else " docs/thresholds.md lists them."
                raise ConfigError(f"there is no threshold {name!r}.{meant}")
        return replace(self, **{name: _number(known[name], v) for name, v in changes.items()})

    @classmethod
    def make(
        cls, given: Thresholds | Mapping[str, Any] | None = None, *, folder: Path | None = None
    ) -> Thresholds:
        """Defaults, then pyproject.toml, then what was given; a `Thresholds` is taken as it is.

        pyproject.toml is looked for from `folder` (None: the working directory) upward.
        """
        if isinstance(given, Thresholds):
            return given
        return cls().with_changes(from_pyproject(folder or Path.cwd())).with_changes(given or {})


def from_pyproject(folder: Path) -> dict[str, Any]:
    """The table ``[tool.torchvitals.thresholds]`` of the nearest pyproject.toml that has one."""
    for parent in (folder, *folder.parents):
        path = parent / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            data = tomllib.loads(path.read_text(encoding="utf-8"))
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError):
            continue  # not ours to complain about
        table = data.get("tool", {}).get("torchvitals", {}).get("thresholds")
        if isinstance(table, dict):
            return table
    return {}


def parse_option(text: str) -> tuple[str, float]:
    """``dead_share=0.7`` of a command line."""
    name, equals, number = text.partition("=")
    try:
        if not equals:
            raise ValueError
        return name.strip(), float(number)
    except ValueError:
        raise ConfigError(
            f"a threshold is given as name=number, got {text!r}; for instance dead_share=0.7"
        ) from None


def _number(one: Field[Any], value: Any) -> Any:
    """Whole numbers stay whole, others become floats."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"threshold {one.name} must be a number, got {value!r}")
    if one.type == "int":
        if value != int(value):
            raise ConfigError(f"threshold {one.name} must be a whole number, got {value!r}")
        return int(value)
    return float(value)
