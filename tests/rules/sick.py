"""For each rule the smallest change to a healthy run that makes it sick, and what makes it fit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from torchvitals.record import ROOT, Event

from .builder import RunBuilder

NAN = float("nan")
NOISE = np.random.default_rng(1).normal(0, 1, 10_000)


@dataclass(frozen=True)
class Case:
    """How to make a run sick; `make` are the builder's options, for the healthy run as well."""

    spoil: Callable[[RunBuilder], None]
    prepare: Callable[[RunBuilder], None] = lambda b: None
    """Columns that the rule needs, with healthy values."""
    make: dict[str, Any] = field(default_factory=dict)
    severity: str = "warning"
    site: str | None = None
    step: int | None = None
    status: str = "finished"


def column(key: str, value: Any) -> Callable[[RunBuilder], None]:
    return lambda b: b.__setitem__(key, value)


def each(pattern: str, value: Any, names: str = "weights") -> Callable[[RunBuilder], None]:
    return lambda b: b.each(pattern, value, getattr(b, names))


def together(*parts: Callable[[RunBuilder], None]) -> Callable[[RunBuilder], None]:
    def all_of(b: RunBuilder) -> None:
        for part in parts:
            part(b)

    return all_of


def flat(level: float) -> Callable[[RunBuilder], None]:
    return column("loss", lambda t: level * (1 + 0.01 * NOISE[t]))


def falling_gradients(b: RunBuilder) -> None:
    for k, w in enumerate(b.weights):
        b[f"gradient/{w}/rms"] = 1e-2 * 0.02 ** (len(b.weights) - 1 - k)
    flat(2.3)(b)


def exploding(b: RunBuilder) -> None:
    b[f"gradient/{ROOT}/norm"] = lambda t: 2.0 * 1.1**t
    b.each("gradient/{}/norm", lambda t: 0.1 * 1.1**t)
    b[f"gradient/{b.weights[1]}/norm"] = lambda t: 1.9 * 1.1**t
    flat(2.3)(b)


def unscaled(b: RunBuilder) -> None:
    b["input/0/mean"], b["input/0/std"] = 120.0, 70.0


def growing_layers(b: RunBuilder) -> None:
    for k, name in enumerate(b.layers):
        b[f"activation/{name}/rms"] = 4.0**k


def swing(b: RunBuilder) -> None:
    b.evals({t: 1.0 + 0.4 * (t // 10 % 2) for t in range(10, 121, 10)})


def overfit(b: RunBuilder) -> None:
    b.evals({t: 1.0 + 0.02 * abs(t - 40) for t in range(10, 121, 10)})


def leaking(b: RunBuilder) -> None:
    b.evals({t: 0.7 * 2.3 * (0.2 + 0.8 * 0.98**t) for t in range(10, 121, 10)})


def fair(b: RunBuilder) -> None:
    b.evals({t: 1.1 * 2.3 * (0.2 + 0.8 * 0.98**t) for t in range(10, 121, 10)})


def ranks(slow: float) -> Callable[[RunBuilder], None]:
    return together(*(column(f"rank/{r}/step_s", slow if r == 2 else 0.1) for r in range(4)))


def epochs(b: RunBuilder) -> None:
    b.events.append(Event(0, 1.7e9, "epoch", "epoch 1 begins", {"epoch": 1}))


CRITERION = together(
    column("criterion/cross_entropy/num_classes", 10.0),
    column("criterion/cross_entropy/batch_size", 32.0),
    column("criterion/cross_entropy/sum_reduction", 0.0),
    column("criterion/cross_entropy/probability_frac", 0.0),
    column("criterion/cross_entropy/top_target_frac", 0.12),
    column("criterion/cross_entropy/rare_target_frac", 0.08),
    column("criterion/cross_entropy/logz_mean", lambda t: 2.3 + 0.01 * t),
)

CASES: dict[str, Case] = {
    "non_finite": Case(
        together(
            column("activation/layers.2/num_nan", lambda t: 5.0 * (t >= 60)),
            column("activation/acts.2/num_nan", lambda t: 5.0 * (t >= 60)),
            each("gradient/{}/num_nan", lambda t: 7.0 * (t >= 60)),
            column("loss", lambda t: NAN if t >= 60 else 2.0 - t / 100),
        ),
        severity="error",
        site="layers.2",
        step=60,
    ),
    "non_finite_input": Case(
        column("input/0/num_nan", lambda t: 3.0 * (t == 50)),
        together(column("input/0/num_nan", 0.0), column("input/0/num_inf", 0.0)),
        severity="error",
        site="input 0",
        step=50,
    ),
    "amp_overflow": Case(
        column("amp/scaler/skipped", lambda t: float(t % 5 == 0)),
        together(column("amp/scaler/skipped", lambda t: float(t < 4)),
                 column("amp/scaler/scale", 1024.0)),
    ),
    "lost_updates": Case(
        each("update/{}/zero_frac", 0.95), make={"dtype": "bfloat16"}, severity="error"
    ),
    "adam_eps_dominates": Case(
        each("optimizer/{}/sqrt_v_over_eps", 0.5), make={"options": {"eps": 1e-3}}
    ),
    "vanishing_gradients": Case(falling_gradients, severity="error", site="layers.0.weight"),
    "exploding_gradients": Case(exploding, severity="error", site="layers.1.weight"),
    "gradient_spike": Case(
        column(f"gradient/{ROOT}/norm", lambda t: 60.0 if t == 80 else 0.6 + 0.03 * NOISE[t]),
        step=80,
    ),
    "tensor_spike": Case(
        column("gradient/layers.1.weight/norm", lambda t: 40.0 if t == 90 else 0.3),
        severity="info",
        site="layers.1.weight",
        step=90,
    ),
    "over_clipping": Case(
        column(f"gradient/{ROOT}/clip_ratio", 6000.0),
        column(f"gradient/{ROOT}/clip_ratio", lambda t: 0.6 + 0.01 * NOISE[t]),
    ),
    "orphan_parameter": Case(
        column("gradient/layers.1.weight/missing", 1.0),
        each("gradient/{}/missing", 0.0),
        severity="error",
        site="layers.1.weight",
    ),
    "gradients_not_cleared": Case(
        column(f"gradient/{ROOT}/stale", lambda t: float(t > 1)),
        column(f"gradient/{ROOT}/stale", 0.0),
        severity="error",
    ),
    "no_effective_step": Case(column(f"update/{ROOT}/norm", 0.0), severity="error"),
    "update_not_descent": Case(each("update/{}/cosine", -0.5)),
    "update_ratio": Case(
        column("update/layers.3.weight/ratio", 0.4), site="layers.3.weight"
    ),
    "frozen_layer": Case(
        column("update/layers.1.weight/ratio", 0.0), site="layers.1.weight"
    ),
    "lr_too_high": Case(
        together(each("update/{}/ratio", 0.3), column("loss", lambda t: 2.3 + 0.1 * t)),
        severity="error",
    ),
    "lr_too_low": Case(together(each("update/{}/ratio", 1e-6), flat(2.3)), severity="error"),
    "schedule_fault": Case(
        column("optimizer/group0/lr", lambda t: 1e-3 if t < 60 else 3e-2), severity="error", step=60
    ),
    "edge_of_stability": Case(
        column("sharpness", 1e6), column("sharpness", 10.0), severity="info"
    ),
    "adam_variance_lag": Case(each("optimizer/{}/g2_over_v_rms", lambda t: 5.0 if t > 60 else 1.0)),
    "unbalanced_rotation": Case(
        together(
            column("update/layers.0.weight/ratio", 1e-5),
            column("update/layers.1.weight/ratio", 1e-5),
        ),
        severity="info",
    ),
    "dead_units": Case(
        column("activation/acts.1/dead_frac", 0.98),
        each("activation/{}/dead_frac", 0.1, "acts"),
        severity="error",
        site="acts.1",
    ),
    "dormant_units": Case(
        column("activation/acts.1/dormant_frac", 0.95),
        each("activation/{}/dormant_frac", 0.1, "acts"),
        site="acts.1",
    ),
    "saturation": Case(
        column("activation/acts.0/saturated_frac", 0.9),
        each("activation/{}/saturated_frac", 0.1, "acts"),
        make={"activation": "Tanh"},
        site="acts.0",
    ),
    "activation_scale": Case(growing_layers, make={"num": 6}),
    "bad_init": Case(
        together(column("parameter/layers.1.weight/std", 2.0),
                 column("parameter/layers.1.weight/rms", 2.0)),
        site="layers.1.weight",
    ),
    "weight_blow_up": Case(
        column("parameter/layers.2.weight/max", lambda t: 1e4 if t >= 70 else 0.4),
        severity="error",
        site="layers.2.weight",
        step=70,
    ),
    "over_regularised": Case(
        together(
            column("optimizer/group0/weight_decay", 10.0),
            each("parameter/{}/norm", lambda t: 6.0 * 0.97**t),
            each("update/{}/ratio", 0.012),
        ),
    ),
    "attention_logits": Case(
        column("attention/attn.head_0/max_logit", 400.0),
        together(*(column(f"attention/attn.head_{k}/max_logit", 8.0) for k in range(4))),
        site="attn.head_0",
    ),
    "attention_collapse": Case(
        together(*(
            column(f"attention/attn.head_{k}/entropy", lambda t: 2.0 * 0.95**t) for k in range(4)
        )),
        together(*(column(f"attention/attn.head_{k}/entropy", 2.0) for k in range(4))),
    ),
    "logit_drift": Case(
        column("criterion/cross_entropy/logz_mean", lambda t: 2.0 * t), CRITERION
    ),
    "rank_collapse": Case(
        together(column("parameter/layers.0.weight/stable_rank", lambda t: max(20.0 - t, 1.1)),
                 column("parameter/layers.1.weight/stable_rank", lambda t: max(20.0 - t, 1.1))),
        each("parameter/{}/stable_rank", 15.0),
    ),
    "massive_activations": Case(
        column("activation/layers.2/max", 5000.0), severity="info", site="layers.2"
    ),
    "loss_spike": Case(
        column("loss", lambda t: 80.0 if t == 70 else 2.3 * 0.99**t * (1 + 0.02 * NOISE[t])),
        step=70,
    ),
    "divergence": Case(
        column("loss", lambda t: 2.3 * 0.97**t if t < 60 else 0.4 + 0.05 * (t - 60)),
        severity="error",
    ),
    "plateau": Case(flat(2.3), severity="error", make={"steps": 260}),
    "oscillation": Case(swing, lambda b: b.evals({t: 2 * 0.98**t for t in range(10, 121, 10)})),
    "loss_at_start": Case(
        column("loss", lambda t: 40.0 * 0.95**t), CRITERION
    ),
    "summed_loss": Case(
        together(
            column("criterion/cross_entropy/sum_reduction", 1.0),
            column("loss", lambda t: 32 * 2.3 * 0.98**t),
        ),
        CRITERION,
    ),
    "overfitting": Case(overfit, lambda b: b.evals({t: 1.0 - t / 200 for t in range(10, 121, 10)})),
    "input_ignored": Case(
        together(column("input/0/std", 0.0), column("input/0/zero_frac", 1.0)),
        together(column("input/0/std", 1.0), column("input/0/zero_frac", 0.0)),
        severity="error",
        site="input 0",
    ),
    "train_eval_mismatch": Case(
        lambda b: b.evals({40: 1.0, 80: 1.0}, "eval/val/train_mode"),
        lambda b: b.evals({40: 0.0, 80: 0.0}, "eval/val/train_mode"),
        make={"types": {"drop": "Dropout"}},
        site="drop",
    ),
    "wrong_loss_input": Case(
        column("criterion/cross_entropy/probability_frac", 1.0), CRITERION, severity="error"
    ),
    "leakage": Case(leaking, fair),
    "class_imbalance": Case(
        together(column("criterion/cross_entropy/top_target_frac", 0.98),
                 column("criterion/cross_entropy/num_classes", 2.0)),
        CRITERION,
    ),
    "input_scale": Case(
        unscaled, together(column("input/0/mean", 0.1), column("input/0/std", 1.0)), site="input 0"
    ),
    "repeated_batches": Case(
        column("input/batch/repeat_frac", 0.75),
        together(column("input/batch/repeat_frac", 0.0), epochs),
    ),
    "data_bound": Case(
        column("clock/data/wall_s", 0.06),
        together(column("clock/step/wall_s", 0.1), column("clock/data/wall_s", 0.01)),
    ),
    "slow_step": Case(
        column("speed/run/steps_per_s", lambda t: 10.0 if t < 180 else 3.0),
        column("speed/run/steps_per_s", 10.0),
        make={"steps": 280},
    ),
    "memory_leak": Case(
        column("machine/process/rss_bytes", lambda t: 1e9 + 5e6 * t),
        column("machine/process/rss_bytes", lambda t: 1e9 + 2e8 * (1 - 0.9**t)),
    ),
    "stalled": Case(lambda b: None, severity="error", status="died"),
    "batch_too_small": Case(
        column("noise/run/noise_scale", 4000.0),
        together(column("noise/run/noise_scale", 100.0), column("noise/run/batch_size", 32.0)),
        severity="info",
    ),
    "replicas_differ": Case(
        column("rank/1/num_drifted", lambda t: 0.0 if t < 30 else 2.0),
        together(column("rank/0/num_drifted", 0.0), column("rank/1/num_drifted", 0.0)),
        severity="error",
        step=30,
    ),
    "straggler": Case(ranks(0.2), ranks(0.1), site="rank 2"),
}  # fmt: skip
