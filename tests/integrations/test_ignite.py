"""Ignite, for real: values, evaluators, checkpoints, errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ignite.engine import Engine, Events, create_supervised_evaluator, create_supervised_trainer
from ignite.handlers import Checkpoint, DiskSaver
from ignite.metrics import Loss
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchvitals.integrations.ignite import VitalsHandler
from torchvitals.store.history import open_run


def loader() -> DataLoader[Any]:
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=4)


def parts(**options: Any) -> tuple[nn.Module, torch.optim.Optimizer, Engine, list[float]]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    trainer = create_supervised_trainer(model, optimizer, nn.MSELoss(), **options)
    losses: list[float] = []
    trainer.add_event_handler(
        Events.ITERATION_COMPLETED, lambda engine: losses.append(engine.state.output)
    )
    return model, optimizer, trainer, losses


def test_values_evaluations_and_bits(tmp_path: Path) -> None:
    _, _, trainer, plain = parts(gradient_accumulation_steps=2)
    trainer.run(loader(), max_epochs=2)
    model, optimizer, trainer, losses = parts(gradient_accumulation_steps=2)
    evaluator = create_supervised_evaluator(model, {"loss": Loss(nn.MSELoss())})
    handler = VitalsHandler(model, optimizer, run=tmp_path / "run", every=2)
    handler.attach(trainer, evaluators={"val": evaluator})
    trainer.add_event_handler(Events.EPOCH_COMPLETED, lambda _: evaluator.run(loader()))
    trainer.run(loader(), max_epochs=2)
    assert losses == plain
    history = open_run(tmp_path / "run")
    means = np.array(plain).reshape(-1, 2).mean(1)
    assert history.series("loss").steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(history.series("loss").values, means, rtol=1e-6)
    assert {"0.weight", "2.bias"} <= {key.site for key in history.keys("gradient", stat="rms")}
    assert history.steps("activation").tolist() == [1, 2, 4]
    assert history.series("eval/val/loss").steps.tolist() == [2, 4]
    assert history.series("epoch/run/number").steps.tolist() == [2, 4]
    assert history.status == "finished"


def test_resume(tmp_path: Path) -> None:
    model, optimizer, trainer, _ = parts()
    handler = VitalsHandler(model, optimizer, run=tmp_path / "run", every=2)
    handler.attach(trainer)
    saved = {"trainer": trainer, "model": model, "optimizer": optimizer, "vitals": handler}
    saver = Checkpoint(saved, DiskSaver(tmp_path / "saved", create_dir=True))
    trainer.add_event_handler(Events.EPOCH_COMPLETED, saver)
    trainer.run(loader(), max_epochs=1)

    model, optimizer, trainer, _ = parts()
    handler = VitalsHandler(model, optimizer, every=2)
    handler.attach(trainer)
    (file,) = (tmp_path / "saved").iterdir()
    loaded = {"trainer": trainer, "model": model, "optimizer": optimizer, "vitals": handler}
    Checkpoint.load_objects(loaded, torch.load(file, weights_only=True))
    trainer.run(loader(), max_epochs=2)
    history = open_run(tmp_path / "run")
    assert len(history.attempts) == 2
    assert history.series("loss").steps.tolist() == list(range(1, 9))
    assert history.series("epoch/run/number").values.tolist() == [1, 2]
    # The same handler may watch on: one run, one line to remove.
    trainer.run(loader(), max_epochs=3)
    assert open_run(tmp_path / "run").last_step == 12
    handler.detach()
    assert not optimizer._optimizer_step_pre_hooks


@pytest.mark.parametrize("handled", [False, True])
def test_an_error_comes_through(tmp_path: Path, handled: bool) -> None:
    """Unless the user has a handler of exceptions, who then has the word."""
    model, optimizer, trainer, _ = parts()
    before = torch.autograd.backward
    handler = VitalsHandler(model, optimizer, run=tmp_path / "run")
    handler.attach(trainer)

    @trainer.on(Events.ITERATION_COMPLETED(once=2))
    def fail() -> None:
        raise RuntimeError("broken iteration")

    if handled:
        trainer.add_event_handler(Events.EXCEPTION_RAISED, lambda _engine, _error: None)
        trainer.run(loader(), max_epochs=1)
    else:
        with pytest.raises(RuntimeError, match="broken iteration"):
            trainer.run(loader(), max_epochs=1)
    history = open_run(tmp_path / "run")
    assert history.status == "failed"
    assert history.events("error")[0].text == "RuntimeError: broken iteration"
    assert torch.autograd.backward is before
    handler.detach()
    assert (Events.EXCEPTION_RAISED in trainer._event_handlers) == handled
