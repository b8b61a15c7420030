"""Lightning, for real: values, validation, accumulation, manual optimization, resume, errors."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning
import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import Callback, ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchvitals.integrations.lightning import VitalsCallback
from torchvitals.store.history import open_run

pytestmark = pytest.mark.filterwarnings("ignore")
logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)


def loader(batch_size: int = 4) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(16, 4, generator=generator)
    return DataLoader(TensorDataset(x, x.sum(1, keepdim=True)), batch_size=batch_size)


class Lit(lightning.LightningModule):
    def __init__(self, fails_at: int | None = None) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
        self.fails_at = fails_at
        self.losses: list[float] = []

    def training_step(self, batch: Any, index: int) -> Any:
        if index == self.fails_at:
            raise RuntimeError("broken batch")
        loss = nn.functional.mse_loss(self.net(batch[0]), batch[1])
        self.losses.append(loss.item())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, index: int) -> None:
        self.log("val_loss", nn.functional.mse_loss(self.net(batch[0]), batch[1]))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=1e-2)


class Gan(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Linear(4, 4)
        self.critic = nn.Linear(4, 1)
        self.losses: list[tuple[float, float]] = []

    def training_step(self, batch: Any, index: int) -> None:
        makes, judges = self.optimizers()
        fake = self.generator(batch[0])
        judged = self.critic(fake.detach()).mean() - self.critic(batch[0]).mean()
        judges.zero_grad()
        self.manual_backward(judged)
        judges.step()
        made = -self.critic(fake).mean()
        makes.zero_grad()
        self.manual_backward(made)
        makes.step()
        self.losses.append((judged.item(), made.item()))

    def configure_optimizers(self) -> Any:
        return [
            torch.optim.SGD(self.generator.parameters(), lr=0.01),
            torch.optim.SGD(self.critic.parameters(), lr=0.01),
        ]


def fit(model: lightning.LightningModule, *callbacks: Callback, **options: Any) -> Any:
    ckpt_path = options.pop("ckpt_path", None)
    settings: dict[str, Any] = {
        "max_epochs": 2, "accelerator": "cpu", "logger": False, "enable_progress_bar": False,
        "enable_model_summary": False, "enable_checkpointing": False, **options,
    }  # fmt: skip
    trainer = lightning.Trainer(callbacks=list(callbacks), **settings)
    trainer.fit(model, loader(), loader(8), ckpt_path=ckpt_path)
    return trainer


def trained(*callbacks: Callback, **options: Any) -> Lit:
    torch.manual_seed(1)
    model = Lit()
    fit(model, *callbacks, **options)
    return model


def test_values_validation_and_bits(tmp_path: Path) -> None:
    callback = VitalsCallback(run=tmp_path / "run", every=2)
    plain = trained(accumulate_grad_batches=2, gradient_clip_val=0.5)
    seen = trained(callback, accumulate_grad_batches=2, gradient_clip_val=0.5)
    assert seen.losses == plain.losses
    history = open_run(tmp_path / "run")
    means = np.array(plain.losses).reshape(-1, 2).mean(1)
    assert history.series("loss").steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(history.series("loss").values, means, rtol=1e-6)
    assert {"net.0.weight", "net.2.bias"} <= {k.site for k in history.keys("gradient", stat="rms")}
    assert history.steps("update").tolist() == [1, 2, 4]
    assert history.steps("activation").tolist() == [1, 2, 4]
    evaluated = history.series("eval/val/loss")
    assert evaluated.steps.tolist() == [2, 4]
    assert [key.stat for key in history.keys("eval")] == ["loss"]
    assert history.series("epoch/run/number").steps.tolist() == [2, 4]
    clipped = history.series("gradient/[root module]/clip_ratio").values
    assert len(clipped) == 3
    assert history.status == "finished"
    assert history.info.watch["total_steps"] == 4
    assert history.series("speed/run/samples_per_s").values[-1] > 0


def test_manual_optimization_of_two_parts(tmp_path: Path) -> None:
    losses = []
    for callbacks in ([], [VitalsCallback(run=tmp_path / "run", every=2)]):
        torch.manual_seed(2)
        model = Gan()
        fit(model, *callbacks)
        losses.append(model.losses)
    assert losses[0] == losses[1]
    history = open_run(tmp_path / "run")
    assert history.last_step == 8
    critic, generator = np.array(losses[0]).T
    np.testing.assert_allclose(history.series("loss_critic").values, critic, rtol=1e-5)
    np.testing.assert_allclose(history.series("loss_generator").values, generator, rtol=1e-5)


def test_resume(tmp_path: Path) -> None:
    """The checkpoint knows the run and the step, also for a callback that names no run."""
    saving = ModelCheckpoint(dirpath=tmp_path, filename="half")
    options = {"enable_checkpointing": True, "default_root_dir": tmp_path}
    trained(VitalsCallback(run=tmp_path / "run", every=2), saving, max_epochs=1, **options)
    callback = VitalsCallback(every=2)
    trained(callback, max_epochs=2, ckpt_path=tmp_path / "half.ckpt", **options)
    history = open_run(tmp_path / "run")
    assert len(history.attempts) == 2
    assert history.series("loss").steps.tolist() == list(range(1, 9))
    assert history.steps("update").tolist() == [1, 2, 4, 6, 8]
    assert history.series("epoch/run/number").values.tolist() == [1, 2]
    assert callback.monitor is not None
    assert callback.monitor.step_number == 8


def test_an_error_comes_through(tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.autograd.backward
    with pytest.raises(RuntimeError, match="broken batch"):
        fit(Lit(fails_at=2), VitalsCallback(run=tmp_path / "run"))
    history = open_run(tmp_path / "run")
    assert history.status == "failed"
    assert history.events("error")[0].text == "RuntimeError: broken batch"
    assert torch.autograd.backward is before
