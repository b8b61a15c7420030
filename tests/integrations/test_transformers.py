"""The Trainer of transformers, for real, on tiny models made here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

from torchvitals.integrations.transformers import VitalsCallback
from torchvitals.store.history import open_run

pytestmark = pytest.mark.filterwarnings("ignore")

TOKENS = torch.randint(32, (16, 12), generator=torch.Generator().manual_seed(0))
DATA = [{"input_ids": row, "labels": row} for row in TOKENS]


class Logged(TrainerCallback):
    def __init__(self, fails_at: int | None = None) -> None:
        self.losses: list[float] = []
        self.fails_at = fails_at

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        if "loss" in logs:
            self.losses.append(float(logs["loss"]))

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self.fails_at:
            raise RuntimeError("broken step")


def gpt2() -> GPT2LMHeadModel:
    torch.manual_seed(1)
    return GPT2LMHeadModel(
        GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=2, n_head=2,
                   bos_token_id=0, eos_token_id=1)
    )  # fmt: skip


def llama() -> LlamaForCausalLM:
    torch.manual_seed(1)
    return LlamaForCausalLM(
        LlamaConfig(vocab_size=32, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, bos_token_id=0, eos_token_id=1)
    )  # fmt: skip


def train(folder: Path, model: Any, *callbacks: Any, resume: Any = None, **options: Any) -> Logged:
    logged = next((c for c in callbacks if isinstance(c, Logged)), Logged())
    settings: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 6, "per_device_train_batch_size": 2,
        "logging_steps": 1, "save_strategy": "no", "report_to": [], "use_cpu": True,
        "disable_tqdm": True, "seed": 3, **options,
    }  # fmt: skip
    trainer = Trainer(
        model, TrainingArguments(**settings), train_dataset=DATA, eval_dataset=DATA[:4],
        callbacks=[logged, *(c for c in callbacks if c is not logged)],
    )  # fmt: skip
    trainer.train(resume_from_checkpoint=resume)
    return logged


def test_values_evaluation_and_bits(tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": 2, "eval_strategy": "steps", "eval_steps": 3}
    plain = train(tmp_path / "a", gpt2(), **options)
    callback = VitalsCallback(run=tmp_path / "run", every=2, attention=True)
    seen = train(tmp_path / "b", gpt2(), callback, **options)
    assert seen.losses == plain.losses
    history = open_run(tmp_path / "run")
    assert history.series("loss").steps.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(history.series("loss").values, plain.losses, rtol=1e-6)
    names = {key.site for key in history.keys("gradient", stat="rms")}
    assert "transformer.h.1.attn.c_attn.weight" in names
    assert history.steps("update").tolist() == [1, 2, 4, 6]
    assert history.steps("activation").tolist() == [1, 2, 4, 6]
    assert history.series("eval/eval/loss").steps.tolist() == [3, 6]
    assert {key.stat for key in history.keys("eval")} == {"loss", "train_mode"}
    assert not history.series("eval/eval/train_mode").values.any()
    # Its attention is torch's own: seen without a change to the model.
    assert history.keys("attention", stat="entropy")
    assert history.status == "finished"


def test_resume(tmp_path: Path) -> None:
    plain = train(tmp_path / "a", llama())
    saving = {"save_strategy": "steps", "save_steps": 3}
    first = VitalsCallback(run=tmp_path / "run", every=2)
    train(tmp_path / "b", llama(), first, **{**saving, "max_steps": 3})
    again = VitalsCallback(every=2)
    rest = train(
        tmp_path / "b", llama(), again, resume=str(tmp_path / "b" / "checkpoint-3"), **saving
    )
    assert again.monitor is not None
    assert again.monitor.path == tmp_path / "run"
    history = open_run(tmp_path / "run")
    assert len(history.attempts) == 2
    assert history.series("loss").steps.tolist() == [1, 2, 3, 4, 5, 6]
    np.testing.assert_allclose(history.series("loss").values[3:], rest.losses, rtol=1e-6)
    assert len(plain.losses) == 6
    assert "model.layers.1.self_attn.q_proj.weight" in {
        key.site for key in history.keys("parameter", stat="rms")
    }


def test_an_error_comes_through(tmp_path: Path) -> None:
    callback = VitalsCallback(run=tmp_path / "run", every=1)
    with pytest.raises(RuntimeError, match="broken step"):
        train(tmp_path / "a", gpt2(), callback, Logged(fails_at=2))
    # The next training closes the one that did not come to its end.
    other = VitalsCallback(run=tmp_path / "other")
    train(tmp_path / "b", gpt2(), other, max_steps=1)
    assert callback.monitor is not None
    callback.monitor.close("failed")
    assert open_run(tmp_path / "run").last_step == 2
