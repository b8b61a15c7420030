"""Accelerate, for real: tracker, values, checkpoints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from torchvitals.integrations.accelerate import VitalsTracker, watch
from torchvitals.store.history import open_run

pytestmark = pytest.mark.filterwarnings("ignore")


def train(
    folder: Path | None = None,
    tracker: VitalsTracker | None = None,
    *,
    epochs: int = 2,
    load: Path | None = None,
    fails: bool = False,
) -> list[float]:
    torch.manual_seed(1)
    accelerator = Accelerator(
        cpu=True, gradient_accumulation_steps=2, log_with=[tracker] if tracker else None
    )
    accelerator.init_trackers("test", config={"lr": 1e-2})
    model: Any = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=1e-2)
    x = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
    loader: Any = DataLoader(TensorDataset(x), batch_size=4)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    if tracker is not None:
        tracker.watch(accelerator, model, optimizer)
    if load is not None:
        accelerator.load_state(str(load))
    losses = []
    for _ in range(epochs):
        for (batch,) in loader:
            with accelerator.accumulate(model):
                loss = (model(batch) - batch.sum(1, keepdim=True)).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            accelerator.log({"seen": loss.item(), "note": "a word"})
            if fails:
                raise RuntimeError("broken batch")
    if folder is not None:
        accelerator.save_state(str(folder))
    accelerator.end_training()
    return losses


def test_values_and_bits(tmp_path: Path) -> None:
    plain = train()
    tracker = VitalsTracker(run=tmp_path / "run", every=2)
    assert train(tracker=tracker) == plain
    history = open_run(tmp_path / "run")
    means = np.array(plain).reshape(-1, 2).mean(1)
    assert history.series("loss").steps.tolist() == [1, 2, 3, 4]
    np.testing.assert_allclose(history.series("loss").values, means, rtol=1e-6)
    assert {"0.weight", "2.bias"} <= {key.site for key in history.keys("gradient", stat="rms")}
    assert history.info.config == {"lr": 1e-2}
    assert len(history.series("seen").values)
    assert history.status == "finished"


def test_resume(tmp_path: Path) -> None:
    train(tmp_path / "state", VitalsTracker(run=tmp_path / "run", every=2), epochs=1)
    train(tracker=VitalsTracker(every=2), epochs=1, load=tmp_path / "state")
    history = open_run(tmp_path / "run")
    assert len(history.attempts) == 2
    assert history.series("loss").steps.tolist() == [1, 2, 3, 4]


def test_an_error_comes_through_and_watching_alone(tmp_path: Path) -> None:
    before = torch.autograd.backward
    tracker = VitalsTracker(run=tmp_path / "run")
    with pytest.raises(RuntimeError, match="broken batch"):
        train(tracker=tracker, fails=True)
    tracker.finish()
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    accelerator = Accelerator(cpu=True)
    model, optimizer = accelerator.prepare(model, optimizer)
    watched = watch(accelerator, model, optimizer, run=tmp_path / "alone", every=1)
    for _ in range(3):
        with accelerator.accumulate(model):
            accelerator.backward(model(torch.ones(2, 3)).sum())
            optimizer.step()
    watched.finish()
    assert open_run(tmp_path / "alone").series("loss").steps.tolist() == [1, 2, 3]
    assert torch.autograd.backward is before
