"""The table of situations: which test shows what. Printed by python -m tests.situations.matrix."""

from __future__ import annotations

COLUMNS = ("values equal", "loss bit-identical", "no extra sync", "hooks removed")

COMPILE = "tests/situations/test_compile.py::"
AMP = "tests/situations/test_amp.py::"
LATE = "tests/situations/test_late.py::"
SPREAD = "tests/distributed/test_values.py::test_statistics_are_those_of_one_process"
SAME = "tests/distributed/test_values.py::test_training_is_the_same_with_and_without"
WAITING = "tests/situations/test_no_waiting.py::test_no_value_is_read_on_the_training_thread"
INVISIBLE = "tests/monitor/test_invisible.py::"
GONE = INVISIBLE + "test_closing_leaves_no_hook_and_no_reference"
SEEN = COMPILE + "test_outputs_of_compiled_models_are_seen_and_nothing_changes"
EAGER = COMPILE + "test_values_are_those_of_the_same_model_run_eagerly"

ACCUMULATION = "tests/situations/test_accumulation.py::"
ACCUMULATED = "tests/distributed/test_accumulation.py::"
ACTIVATIONS = "tests/monitor/test_activations.py::"

MATRIX: dict[str, tuple[str | None, str | None, str | None, str | None]] = {
    "one process, float32": (
        "tests/monitor/test_values.py::test_gradients_parameters_and_exact_updates",
        INVISIBLE + "test_losses_are_bit_identical",
        WAITING,
        GONE,
    ),
    "gradient accumulation": (
        ACTIVATIONS + "test_all_calls_and_micro_batches_of_a_step_count",
        None,
        None,
        None,
    ),
    "gradient accumulation, uneven last group": (
        ACCUMULATION + "test_an_uneven_last_group_is_summed_exactly",
        ACCUMULATION + "test_an_uneven_last_group_is_summed_exactly",
        None,
        None,
    ),
    "activation checkpointing, reentrant and not": (
        ACTIVATIONS + "test_checkpointed_layers_count_once",
        None,
        None,
        None,
    ),
    "selective activation checkpointing": (
        ACCUMULATION + "test_selectively_checkpointed_layers_count_once",
        ACCUMULATION + "test_selectively_checkpointed_layers_count_once",
        None,
        None,
    ),
    "AMP, optimizer not fused, with and without `unscale_`": (
        AMP + "test_gradients_are_measured_unscaled",
        AMP + "test_gradients_are_measured_unscaled",
        WAITING,
        None,
    ),
    "AMP, fused optimizer, with and without `unscale_`": (
        AMP + "test_gradients_are_measured_unscaled",
        AMP + "test_gradients_are_measured_unscaled",
        WAITING,
        None,
    ),
    "AMP, a step the scaler skips": (
        AMP + "test_a_step_that_the_scaler_skips_is_no_step_of_the_weights",
        AMP + "test_a_step_that_the_scaler_skips_is_no_step_of_the_weights",
        None,
        None,
    ),
    "bf16 autocast": (
        AMP + "test_autocast_leaves_float32_gradients_and_bfloat16_outputs",
        None,
        None,
        None,
    ),
    "bf16 and fp16 parameters": (
        AMP + "test_low_precision_parameters_are_summed_in_float32_at_least",
        None,
        None,
        None,
    ),
    "bf16 and fp16 parameters, updates lost to rounding": (
        AMP + "test_updates_lost_to_rounding_are_counted",
        None,
        None,
        None,
    ),
    "`torch.compile(model)`": (EAGER, SEEN, None, SEEN),
    "`model.compile()`": (None, SEEN, None, SEEN),
    "`fullgraph=True`, dynamic shapes": (None, SEEN, None, SEEN),
    "layers compiled by themselves": (EAGER, None, None, SEEN),
    "compiled optimizer step": (
        COMPILE + "test_a_compiled_optimizer_step_is_seen",
        COMPILE + "test_a_compiled_optimizer_step_is_seen",
        None,
        None,
    ),
    "DDP, 2 and 4 processes": (SPREAD, SAME, None, SAME),
    "DDP, `find_unused_parameters`": (SPREAD, None, None, None),
    "DDP, accumulation with `no_sync`, uneven last group": (
        ACCUMULATED + "test_accumulated_groups_are_those_of_one_process",
        ACCUMULATED + "test_training_with_no_sync_is_the_same_with_and_without",
        None,
        None,
    ),
    "FSDP2, 2 and 4 processes, uneven and empty shards": (SPREAD, SAME, None, SAME),
    "HSDP, 2 × 2 processes": (SPREAD, None, None, None),
    "tensor parallel, 2 and 4 processes": (SPREAD, SAME, None, SAME),
    "FSDP2 and tensor parallel, 2 × 2 processes": (SPREAD, None, None, None),
    "parameters frozen mid-run": (LATE + "test_a_frozen_parameter_is_followed", None, None, None),
    "parameters frozen and unfrozen again": (
        LATE + "test_a_parameter_frozen_and_unfrozen_again_is_followed",
        None,
        None,
        None,
    ),
    "a layer initialised anew mid-run": (
        LATE + "test_a_layer_initialised_anew_mid_run_is_followed",
        None,
        None,
        None,
    ),
    "a parameter group added to the optimizer": (
        LATE + "test_a_group_added_to_the_optimizer_is_followed",
        None,
        None,
        None,
    ),
    "weights loaded or moved mid-run": (
        LATE + "test_weights_loaded_or_moved_mid_run_are_followed",
        None,
        None,
        None,
    ),
    "an optimizer made anew": (
        LATE + "test_an_optimizer_made_anew_is_followed",
        None,
        None,
        LATE + "test_an_optimizer_made_anew_is_followed",
    ),
    "resumed from a checkpoint": (
        "tests/situations/test_resume.py::"
        "test_series_and_findings_are_those_of_an_uninterrupted_run",
        None,
        None,
        None,
    ),
    "LoRA of peft": (LATE + "test_lora_of_peft_is_watched", None, None, None),
    "`torch.func`": (
        LATE + "test_functional_calls_do_not_count_as_the_models",
        None,
        None,
        None,
    ),
}


def table() -> str:
    """The table in Markdown: ✓ where a test shows it."""
    lines = [
        "| situation | " + " | ".join(COLUMNS) + " |",
        "|---" * (len(COLUMNS) + 1) + "|",
    ]
    for situation, cells in MATRIX.items():
        marks = ["·" if cell is None else "✓" for cell in cells]
        lines.append(f"| {situation} | " + " | ".join(marks) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
