"""`group`: symptoms under their cause, the worst cause first.

`EXPLAINS` is the table "A explains B". It is read from causes to symptoms: an edge holds when A
began no later than B (within `SLACK` monitored steps), unless the pair is listed in `WHENEVER`.
The rules in `ORDER` go from the most fundamental (wiring, data) to what follows from anything
else (the loss); edges only go down that list, so that there are no circles. Only a spike may
explain what stands above it, if that came later.
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
    "over_clipping", "over_regularised", "attention_logits", "adam_variance_lag",
    "batch_too_small", "lr_too_high", "lr_too_low",
    # What follows.
    "attention_collapse", "weight_blow_up", "activation_scale", "saturation", "dead_units",
    "vanishing_gradients", "exploding_gradients", "frozen_layer", "dormant_units", "rank_collapse",
    "massive_activations", "logit_drift", "edge_of_stability", "unbalanced_rotation",
    "update_not_descent", "update_ratio", "tensor_spike", "gradient_spike", "loss_spike",
    "non_finite", "loss_at_start", "divergence", "oscillation", "overfitting", "plateau",
)  # fmt: skip

BLOW_UP = (
    "weight_blow_up activation_scale saturation dead_units exploding_gradients "
    "massive_activations logit_drift edge_of_stability unbalanced_rotation update_not_descent "
    "update_ratio tensor_spike gradient_spike non_finite loss_spike divergence oscillation "
    "plateau dormant_units attention_collapse input_ignored attention_logits rank_collapse "
    "frozen_layer adam_variance_lag vanishing_gradients over_clipping loss_at_start"
)
"""What steps that are too large bring about."""
STANDSTILL = (
    "lr_too_low plateau frozen_layer update_ratio unbalanced_rotation vanishing_gradients "
    "dormant_units adam_eps_dominates lost_updates rank_collapse"
)
"""What too little progress looks like."""

AFTERMATH = (
    "non_finite divergence plateau exploding_gradients weight_blow_up dead_units dormant_units "
    "update_ratio frozen_layer massive_activations over_clipping saturation"
)
"""What a single bad step leaves behind."""
SPIKES = frozenset({"gradient_spike", "loss_spike"})

EXPLAINS = {
    cause: frozenset(symptoms.split())
    for cause, symptoms in {
        "no_effective_step": (f"{STANDSTILL} input_ignored loss_at_start"),
        "orphan_parameter": (
            "frozen_layer plateau unbalanced_rotation update_ratio dormant_units "
            "vanishing_gradients rank_collapse"
        ),
        "gradients_not_cleared": (f"{BLOW_UP} lr_too_high schedule_fault overfitting"),
        "wrong_loss_input": (
            "plateau loss_at_start lr_too_low vanishing_gradients exploding_gradients "
            "input_ignored overfitting lr_too_high over_clipping class_imbalance dormant_units"
        ),
        "summed_loss": (f"{BLOW_UP} lr_too_high"),
        "non_finite_input": (f"{BLOW_UP} lr_too_high amp_overflow"),
        "input_ignored": (f"{BLOW_UP} {STANDSTILL} overfitting lr_too_high bad_init"),
        "input_scale": (f"{BLOW_UP} {STANDSTILL} lr_too_high"),
        "class_imbalance": "plateau input_ignored loss_spike gradient_spike",
        "repeated_batches": "overfitting leakage plateau",
        "bad_init": (f"{BLOW_UP} {STANDSTILL} lr_too_high"),
        "schedule_fault": (f"{BLOW_UP} {STANDSTILL} lr_too_high"),
        "lost_updates": f"{STANDSTILL}",
        "amp_overflow": "non_finite frozen_layer plateau",
        "adam_eps_dominates": (
            "lr_too_low plateau update_ratio vanishing_gradients unbalanced_rotation"
        ),
        "over_clipping": "lr_too_low plateau update_ratio adam_eps_dominates",
        "over_regularised": (
            "plateau vanishing_gradients lr_too_high lr_too_low dead_units dormant_units "
            "rank_collapse activation_scale input_ignored update_ratio update_not_descent "
            "divergence unbalanced_rotation frozen_layer"
        ),
        "attention_logits": (
            "attention_collapse exploding_gradients vanishing_gradients massive_activations "
            "plateau loss_spike rank_collapse"
        ),
        "adam_variance_lag": (
            "loss_spike gradient_spike tensor_spike divergence update_ratio update_not_descent"
        ),
        "batch_too_small": "oscillation plateau",
        "lr_too_high": f"{BLOW_UP}",
        "lr_too_low": "plateau update_ratio frozen_layer unbalanced_rotation input_ignored",
        "weight_blow_up": (
            "input_ignored activation_scale saturation exploding_gradients loss_spike "
            "divergence non_finite massive_activations gradient_spike tensor_spike logit_drift "
            "plateau dead_units update_ratio"
        ),
        "activation_scale": (
            "input_ignored saturation vanishing_gradients exploding_gradients plateau "
            "massive_activations dead_units update_ratio unbalanced_rotation"
        ),
        "saturation": (
            "input_ignored vanishing_gradients plateau frozen_layer update_ratio "
            "unbalanced_rotation dormant_units"
        ),
        "dead_units": (
            "input_ignored vanishing_gradients plateau frozen_layer dormant_units loss_spike "
            "update_ratio unbalanced_rotation rank_collapse"
        ),
        "vanishing_gradients": (
            "plateau frozen_layer update_ratio unbalanced_rotation dormant_units input_ignored "
            "rank_collapse"
        ),
        "exploding_gradients": (
            "input_ignored gradient_spike tensor_spike non_finite loss_spike divergence plateau "
            "update_ratio over_clipping massive_activations oscillation unbalanced_rotation "
            "loss_at_start update_not_descent"
        ),
        "frozen_layer": "plateau unbalanced_rotation",
        "update_ratio": "unbalanced_rotation",
        "gradient_spike": f"loss_spike tensor_spike {AFTERMATH}",
        "tensor_spike": "loss_spike",
        "attention_collapse": "plateau rank_collapse",
        "non_finite": "plateau divergence",
        "loss_spike": AFTERMATH,
        "divergence": "plateau oscillation",
        "leakage": "repeated_batches",
    }.items()
}
"""What each ailment brings with it. Pairs that go up `ORDER` are not read."""

WHENEVER = frozenset(
    {"no_effective_step", "orphan_parameter", "gradients_not_cleared", "wrong_loss_input",
     "summed_loss", "input_scale", "input_ignored", "bad_init", "lr_too_high", "lr_too_low",
     "over_clipping", "over_regularised", "adam_eps_dominates", "lost_updates", "class_imbalance",
     "vanishing_gradients", "dead_units", "saturation"}
)  # fmt: skip
"""Ailments that are there all the time: when they were first seen says nothing."""

_PLACE = {name: at for at, name in enumerate(ORDER)}
_CONSTANT_OUTPUT = _PLACE["rank_collapse"]
_GROWN = _PLACE["loss_spike"] + 0.5


def _place(one: Finding) -> float:
    """Where it stands in `ORDER`: a constant input is a cause, a constant output is not.

    A single weight that jumped by itself is a cause, weights that grow follow from the steps.
    """
    if one.name == "input_ignored" and not one.sites[0].startswith("input "):
        return _CONSTANT_OUTPUT
    if one.name == "weight_blow_up" and "roll_back_to" not in one.change:
        return _GROWN
    return _PLACE.get(one.name, len(ORDER))


def explains(run: Run, cause: Finding, symptom: Finding) -> bool:
    """Whether the one accounts for the other."""
    if symptom.name not in EXPLAINS.get(cause.name, frozenset()):
        return False
    if cause.severity is Severity.INFO and symptom.severity is not Severity.INFO:
        return False
    if cause.name in SPIKES and cause.first_step < symptom.first_step:
        return True  # what came after a bad step may well come from it, wherever it stands
    if _place(cause) >= _place(symptom):
        return False
    # A spike is one step; what is measured after it can't have made it.
    slack = 0 if symptom.name in SPIKES else SLACK * run.every
    return cause.name in WHENEVER or cause.first_step <= symptom.first_step + slack


def group(run: Run, found: Iterable[Finding]) -> list[Finding]:
    """Root causes with their symptoms, ranked."""
    findings = sorted(found, key=_place)
    parent: dict[str, Finding] = {}
    for symptom in findings:
        causes = [
            one
            for one in findings
            if explains(run, one, symptom) and symptom.name not in _above(one.name, parent)
        ]
        if causes:
            parent[symptom.name] = max(causes, key=_strength)
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


def _above(name: str, parent: dict[str, Finding]) -> set[str]:
    """Its causes up to the root, and itself."""
    found = {name}
    while name in parent:
        name = parent[name].name
        found.add(name)
    return found


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
    return (-one.severity.rank, -weight, _place(one))
