"""`group`: symptoms under their cause, the worst cause first.

`EXPLAINS` is the table "A explains B". It is read from causes to symptoms: an edge holds when A
began no later than B (within `SLACK` monitored steps), unless the pair is listed in `WHENEVER`.
Some rules see a cause in one run and a consequence in another (`role`); their consequences have
names of their own here. The rules in `ORDER` go from the most fundamental (wiring, data) to what
follows from anything else (the loss); edges only go down that list: there are no circles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from torchvitals.record import Finding, Severity
from torchvitals.rules.run import Run

SLACK = 3

ORDER = (
    # The machine and the process.
    "stalled", "replicas_differ", "memory_leak", "straggler", "data_bound", "slow_step",
    # Wiring: what the code does.
    "no_effective_step", "orphan_parameter", "gradients_not_cleared", "wrong_loss_input",
    "train_eval_mismatch", "summed_loss",
    # Data.
    "non_finite_input", "input_ignored", "input_scale", "repeated_batches", "leakage",
    "class_imbalance",
    # How it was set up.
    "bad_init", "schedule_fault", "lost_updates", "amp_overflow", "adam_eps_dominates",
    "over_clipping", "over_regularised", "attention_logits", "weight_jump", "adam_variance_lag",
    "batch_too_small", "exploding_start", "lr_too_high", "lr_too_low",
    # What happens once.
    "gradient_shock", "loss_shock",
    # What follows.
    "attention_growth", "attention_collapse", "weight_blow_up", "activation_scale", "saturation",
    "dead_units",
    "vanishing_gradients", "exploding_gradients", "frozen_layer", "dormant_units", "rank_collapse",
    "massive_activations", "logit_drift", "edge_of_stability", "unbalanced_rotation",
    "update_not_descent", "update_ratio", "tensor_spike", "gradient_spike", "non_finite",
    "loss_at_start", "loss_spike", "divergence", "oscillation", "overfitting", "constant_output",
    "plateau",
)  # fmt: skip

BLOW_UP = (
    "weight_blow_up", "activation_scale", "saturation", "dead_units", "exploding_gradients",
    "massive_activations", "logit_drift", "edge_of_stability", "unbalanced_rotation",
    "update_not_descent", "update_ratio", "tensor_spike", "gradient_spike", "non_finite",
    "loss_spike", "divergence", "oscillation", "plateau", "dormant_units", "attention_collapse",
    "attention_logits", "rank_collapse", "frozen_layer", "adam_variance_lag", "vanishing_gradients",
    "over_clipping", "loss_at_start", "attention_growth", "constant_output", "exploding_start",
    "gradient_shock", "loss_shock",
)  # fmt: skip
STANDSTILL = (
    "lr_too_low", "plateau", "frozen_layer", "update_ratio", "unbalanced_rotation",
    "vanishing_gradients", "dormant_units", "adam_eps_dominates", "lost_updates", "rank_collapse",
    "constant_output",
)  # fmt: skip
ANYTHING = tuple(dict.fromkeys((*BLOW_UP, *STANDSTILL)))

EXPLAINS: dict[str, tuple[str, ...]] = {
    "no_effective_step": (*STANDSTILL, "constant_output", "loss_at_start"),
    "orphan_parameter": ("frozen_layer", "plateau", "unbalanced_rotation", "update_ratio",
                         "dormant_units", "vanishing_gradients", "rank_collapse"),
    "gradients_not_cleared": ("lr_too_high", "schedule_fault", "overfitting", *BLOW_UP),
    "wrong_loss_input": ("plateau", "loss_at_start", "lr_too_low", "vanishing_gradients",
                         "exploding_gradients", "constant_output", "overfitting", "lr_too_high",
                         "over_clipping", "class_imbalance", "dormant_units"),
    "summed_loss": ("loss_at_start", "lr_too_high", *BLOW_UP),
    "non_finite_input": ("lr_too_high", "amp_overflow", *BLOW_UP),
    "input_ignored": (*ANYTHING, "overfitting", "lr_too_high", "bad_init"),
    "input_scale": ("lr_too_high", *ANYTHING),
    "class_imbalance": ("plateau", "constant_output", "loss_spike", "gradient_spike", "divergence",
                        "oscillation", "overfitting", "leakage", "loss_shock", "gradient_shock",
                        "tensor_spike"),
    "repeated_batches": ("overfitting", "leakage", "plateau"),
    "bad_init": ("lr_too_high", "lr_too_low", "constant_output", *ANYTHING),
    "schedule_fault": ("lr_too_high", "lr_too_low", *ANYTHING),
    "lost_updates": STANDSTILL,
    "amp_overflow": ("non_finite", "frozen_layer", "plateau"),
    "adam_eps_dominates": ("lr_too_low", "plateau", "update_ratio", "vanishing_gradients",
                           "unbalanced_rotation"),
    "over_clipping": ("lr_too_low", "plateau", "update_ratio", "adam_eps_dominates"),
    "over_regularised": ("plateau", "vanishing_gradients", "lr_too_high", "lr_too_low",
                         "dead_units", "dormant_units", "rank_collapse", "activation_scale",
                         "constant_output", "update_ratio", "update_not_descent", "divergence",
                         "unbalanced_rotation", "frozen_layer"),
    "attention_logits": ("attention_collapse", "exploding_gradients", "vanishing_gradients",
                         "massive_activations", "plateau", "loss_spike", "rank_collapse"),
    "adam_variance_lag": ("gradient_shock", "loss_shock", "loss_spike", "gradient_spike",
                          "tensor_spike", "divergence", "update_ratio", "update_not_descent"),
    "batch_too_small": ("oscillation", "plateau"),
    "lr_too_high": (*BLOW_UP, "constant_output"),
    "lr_too_low": ("plateau", "update_ratio", "frozen_layer", "unbalanced_rotation",
                   "constant_output"),
    "weight_blow_up": ("constant_output", "activation_scale", "saturation", "exploding_gradients",
                       "loss_spike", "divergence", "non_finite", "massive_activations",
                       "gradient_spike", "tensor_spike", "logit_drift", "plateau", "dead_units",
                       "update_ratio"),
    "activation_scale": ("constant_output", "saturation", "vanishing_gradients",
                         "exploding_gradients", "plateau", "massive_activations", "dead_units",
                         "update_ratio", "unbalanced_rotation"),
    "saturation": ("constant_output", "vanishing_gradients", "plateau", "frozen_layer",
                   "update_ratio", "unbalanced_rotation", "dormant_units"),
    "dead_units": ("constant_output", "vanishing_gradients", "plateau", "frozen_layer",
                   "dormant_units", "loss_spike", "update_ratio", "unbalanced_rotation",
                   "rank_collapse"),
    "vanishing_gradients": ("plateau", "frozen_layer", "update_ratio", "unbalanced_rotation",
                            "dormant_units", "constant_output", "rank_collapse"),
    "exploding_gradients": ("gradient_spike", "tensor_spike", "non_finite", "loss_spike",
                            "divergence", "plateau", "update_ratio", "over_clipping",
                            "massive_activations", "oscillation", "unbalanced_rotation",
                            "loss_at_start", "update_not_descent"),
    "frozen_layer": ("plateau", "unbalanced_rotation"),
    "update_ratio": ("unbalanced_rotation",),
    "gradient_spike": ("loss_spike", "divergence", "tensor_spike"),
    "tensor_spike": ("loss_spike",),
    "attention_collapse": ("constant_output", "plateau", "rank_collapse"),
    "non_finite": ("constant_output", "plateau", "divergence", "loss_spike"),
    "loss_spike": ("divergence",),
    "divergence": ("constant_output", "plateau", "oscillation"),
    "leakage": ("repeated_batches",),
    "constant_output": ("plateau",),
    "exploding_start": ("lr_too_high", *BLOW_UP),
    "gradient_shock": BLOW_UP,
    "loss_shock": BLOW_UP,
    "attention_growth": ("constant_output", "attention_collapse", "exploding_gradients",
                         "vanishing_gradients", "massive_activations", "plateau", "loss_spike",
                         "rank_collapse"),
    "weight_jump": ("lr_too_high", *BLOW_UP),
}  # fmt: skip
"""What each ailment brings with it. Pairs that go up `ORDER` are not read."""

WHENEVER = frozenset(
    {"no_effective_step", "orphan_parameter", "gradients_not_cleared", "wrong_loss_input",
     "summed_loss", "input_scale", "input_ignored", "bad_init", "lr_too_high", "lr_too_low",
     "over_clipping", "over_regularised", "adam_eps_dominates", "lost_updates", "class_imbalance",
     "vanishing_gradients"}
)  # fmt: skip
"""Ailments that are there all the time: when they were first seen says nothing."""

ROLES = (
    "constant_output", "attention_growth", "weight_jump", "exploding_start", "gradient_shock",
    "loss_shock",
)  # fmt: skip
"""Names that no rule has: what a rule saw, told apart by `role`."""

SHOCKS = {"gradient_spike": "gradient_shock", "loss_spike": "loss_shock"}
"""Large spikes: a single bad step, after which anything may go wrong."""

GIVES_UP = ("dead_units", "dormant_units", "rank_collapse", "input_ignored", "saturation",
            "attention_collapse", "frozen_layer", "vanishing_gradients")  # fmt: skip
LATE = 0.1
"""What sets in after this part of a run that never learned is not the reason why."""

_PLACE = {name: at for at, name in enumerate(ORDER)}


def role(run: Run, one: Finding) -> str:
    """Its name in the tables above: the rule's, or that of the consequence it is in this run."""
    key = next((what.key for what in one.evidence if what.key), "")
    if one.name == "input_ignored" and key.startswith("output"):
        return "constant_output"  # the input varies: something in between lets nothing through
    if one.name == "attention_logits" and one.first_step > run.first_step + 2 * run.every:
        return "attention_growth"  # they did not begin so
    if one.name == "weight_blow_up" and key.startswith("parameter") and key.endswith("max"):
        return "weight_jump"  # no step did it
    if one.name == "exploding_gradients" and one.first_step <= run.first_step:
        return "exploding_start"  # the first gradient comes before the first step
    if one.name in SHOCKS and one.severity is not Severity.INFO:
        return SHOCKS[one.name]
    return one.name


def explains(run: Run, cause: Finding, symptom: Finding) -> bool:
    """Whether the one accounts for the other."""
    above, below = role(run, cause), role(run, symptom)
    if below not in EXPLAINS.get(above, ()):
        return False
    if _PLACE[above] >= _PLACE[below]:
        return False
    if cause.severity is Severity.INFO and symptom.severity is not Severity.INFO:
        return False
    slack = SLACK * run.every
    return above in WHENEVER or cause.first_step <= symptom.first_step + slack


def group(run: Run, found: Iterable[Finding]) -> list[Finding]:
    """Root causes with their symptoms, ranked."""
    findings = sorted(found, key=lambda one: _PLACE.get(role(run, one), len(ORDER)))
    parent: dict[str, Finding] = {}
    for at, symptom in enumerate(findings):
        causes = [one for one in findings[:at] if explains(run, one, symptom)]
        if causes:
            parent[symptom.name] = max(causes, key=_strength)
    for late in _after_the_fact(run, findings, parent):
        parent[late.name] = next(one for one in findings if one.name == "plateau")
    roots = [one for one in findings if one.name not in parent]
    gathered: dict[str, list[Finding]] = {one.name: [] for one in roots}
    for symptom in findings:
        if symptom.name in parent:
            top = parent[symptom.name]
            while top.name in parent:
                top = parent[top.name]
            gathered[top.name].append(symptom)
    whole = [_with_symptoms(one, gathered[one.name]) for one in roots]
    return sorted(whole, key=_rank)


def _after_the_fact(run: Run, found: list[Finding], parent: dict[str, Finding]) -> list[Finding]:
    """What set in long after it was clear that nothing is learned: the model gave up."""
    stuck = next((one for one in found if one.name == "plateau"), None)
    if stuck is None or stuck.severity is Severity.INFO or stuck.name in parent:
        return []
    long_after = stuck.first_step + LATE * (run.last_step - stuck.first_step)
    return [
        one
        for one in found
        if one.name in GIVES_UP and one.name not in parent and one.first_step > long_after
    ]


def _with_symptoms(cause: Finding, symptoms: list[Finding]) -> Finding:
    """A cause is as bad as the worst it brought."""
    worst = max((cause.severity, *(one.severity for one in symptoms)), key=lambda s: s.rank)
    ranked = sorted(symptoms, key=lambda one: (-one.severity.rank, one.first_step))
    return replace(cause, severity=worst, symptoms=tuple(ranked))


def _strength(one: Finding) -> tuple[float, float]:
    return (one.severity.rank, one.confidence)


def _rank(one: Finding) -> tuple[float, float, float]:
    """Worst first; then the surer, with a little weight for what explains more."""
    weight = one.confidence + 0.03 * min(len(one.symptoms), 5)
    return (-one.severity.rank, -weight, _PLACE.get(one.name, len(ORDER)))
