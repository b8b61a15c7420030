"""The table of situations: which test shows what. Printed by python -m tests.situations.matrix."""

from __future__ import annotations

from tests.distributed.situations import SPREAD
from tests.situations.trainings import SITUATIONS

COLUMNS = ("values equal", "loss bit-identical", "no extra sync", "hooks removed")

ACCUMULATION = "tests/situations/test_accumulation.py::"
ACTIVATIONS = "tests/monitor/test_activations.py::"
AMP = "tests/situations/test_amp.py::"
COMPILE = "tests/situations/test_compile.py::"
EAGER = COMPILE + "test_values_are_those_of_the_same_model_run_eagerly"
LATE = "tests/situations/test_late.py::"
MONITOR = "tests/monitor/test_values.py::"
NO_TRACE = "tests/situations/test_no_trace.py::"
RESUME = "tests/situations/test_resume.py::"
TOGETHER = "tests/distributed/test_values.py::test_statistics_are_those_of_one_process"
GROUPED = "tests/distributed/test_accumulation.py::test_accumulated_groups_are_those_of_one_process"

VALUES = {
    "one process, float32": MONITOR + "test_gradients_parameters_and_exact_updates",
    "gradient accumulation": ACTIVATIONS + "test_all_calls_and_micro_batches_of_a_step_count",
    "gradient accumulation, uneven last group": ACCUMULATION
    + "test_an_uneven_last_group_is_summed_exactly",
    "activation checkpointing, reentrant and not": ACTIVATIONS
    + "test_checkpointed_layers_count_once",
    "selective activation checkpointing": ACCUMULATION
    + "test_selectively_checkpointed_layers_count_once",
    "AMP, optimizer not fused, with and without `unscale_`": AMP
    + "test_gradients_are_measured_unscaled",
    "AMP, fused optimizer, with and without `unscale_`": AMP
    + "test_gradients_are_measured_unscaled",
    "AMP, a step the scaler skips": AMP
    + "test_a_step_that_the_scaler_skips_is_no_step_of_the_weights",
    "bf16 autocast": AMP + "test_autocast_leaves_float32_gradients_and_bfloat16_outputs",
    "bf16 and fp16 parameters": AMP
    + "test_low_precision_parameters_are_summed_in_float32_at_least",
    "bf16 and fp16 parameters, updates lost to rounding": AMP
    + "test_updates_lost_to_rounding_are_counted",
    "`torch.compile(model)`": EAGER,
    "`model.compile()`": EAGER,
    "`fullgraph=True`, dynamic shapes": EAGER,
    "layers compiled by themselves": EAGER,
    "compiled optimizer step": COMPILE + "test_a_compiled_optimizer_step_is_seen",
    "DDP, 2 and 4 processes": TOGETHER,
    "DDP, `find_unused_parameters`": TOGETHER,
    "DDP, accumulation with `no_sync`, uneven last group": GROUPED,
    "FSDP2, 2 and 4 processes, uneven and empty shards": TOGETHER,
    "HSDP, 2 × 2 processes": TOGETHER,
    "tensor parallel, 2 and 4 processes": TOGETHER,
    "FSDP2 and tensor parallel, 2 × 2 processes": TOGETHER,
    "a model built on `meta`": LATE + "test_a_model_on_meta_is_watched_once_it_has_numbers",
    "lazy modules": LATE + "test_lazy_modules_are_watched_once_they_have_shapes",
    "shared parameters": MONITOR + "test_norms_of_every_subtree_count_shared_parameters_once",
    "parameters frozen mid-run": LATE + "test_a_frozen_parameter_is_followed",
    "parameters frozen and unfrozen again": LATE
    + "test_a_parameter_frozen_and_unfrozen_again_is_followed",
    "a layer initialised anew mid-run": LATE + "test_a_layer_initialised_anew_mid_run_is_followed",
    "a parameter group added to the optimizer": LATE
    + "test_a_group_added_to_the_optimizer_is_followed",
    "weights loaded or moved mid-run": LATE + "test_weights_loaded_or_moved_mid_run_are_followed",
    "a layer swapped for another": LATE
    + "test_an_unfrozen_parameter_and_a_swapped_layer_are_named",
    "an optimizer made anew": LATE + "test_an_optimizer_made_anew_is_followed",
    "resumed from a checkpoint": RESUME
    + "test_series_and_findings_are_those_of_an_uninterrupted_run",
    "LoRA of peft": LATE + "test_lora_of_peft_is_watched",
    "`torch.func`": LATE + "test_functional_calls_do_not_count_as_the_models",
}
"""Each situation, and the test that compares its values."""

NAMED = {"a layer swapped for another"}
"""Not followed: the run says so, and how to go on."""

SAME = "losses_are_bit_identical_and_no_hook_stays"
UNREAD = "nothing_is_read_on_the_training_thread"


def cells(situation: str) -> tuple[str | None, str | None, str | None, str | None]:
    """The tests of a line, one a column."""
    if situation in SPREAD:
        same = "tests/distributed/test_same.py::test_" + SAME
        return VALUES[situation], same, "tests/distributed/test_on_devices.py::test_" + UNREAD, same
    assert situation in SITUATIONS, situation
    same = NO_TRACE + "test_" + SAME
    # Fused with an operator of ours, a layer's last bit may be another one.
    exact = None if situation == "layers compiled by themselves" else same
    return VALUES[situation], exact, NO_TRACE + "test_" + UNREAD, same


def table() -> str:
    """The table in Markdown: ✓ where a test shows it."""
    lines = [
        "| situation | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for situation in VALUES:
        marks = ["¹" if cell is None else "✓" for cell in cells(situation)]
        if situation in NAMED:
            marks[0] = "named"
        lines.append(f"| {situation} | " + " | ".join(marks) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
