"""Several forward and backward passes a step: summed exactly, with a last group that is smaller."""

from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    create_selective_checkpoint_contexts,
)

import torchvitals

SIZES = [(16, 16, 16), (16, 16, 16), (16, 5)]
"""Samples of the micro-batches of each step."""


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)) for _ in range(3)
        )
        self.head = nn.Linear(8, 2)
        self.context_fn = None

    def forward(self, x):
        for block in self.blocks:
            if self.context_fn is None:
                x = block(x)
            else:
                x = checkpoint(block, x, use_reentrant=False, context_fn=self.context_fn)
        return self.head(x)


def train(path, *, context_fn=None, **watch):
    """Losses, the outputs of the first layer and gradients of its weight, step by step."""
    torch.manual_seed(0)
    model = Net()
    model.context_fn = context_fn
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    settings = {"every": 1, "updates": "exact", "histograms": "full", "machine": False, **watch}
    monitor = None if path is None else torchvitals.watch(model, optimizer, run=path, **settings)
    losses, outputs, gradients = [], [], []
    for step, sizes in enumerate(SIZES):
        seen = []
        for number, size in enumerate(sizes):
            x = torch.randn(size, 8, generator=torch.Generator().manual_seed(10 * step + number))
            with torch.no_grad():
                seen.append(nn.functional.linear(x, *model.blocks[0][0].parameters()))
            loss = model(x).square().mean() * size / sum(sizes)
            loss.backward()
            losses.append(loss.item())
            if monitor is not None:
                monitor.log(loss=loss)
        outputs.append(torch.cat(seen).double())
        gradients.append(model.blocks[0][0].weight.grad.double().clone())
        optimizer.step()
        optimizer.zero_grad()
    if monitor is not None:
        monitor.close()
    return losses, outputs, gradients


def test_an_uneven_last_group_is_summed_exactly(tmp_path):
    losses, outputs, gradients = train(tmp_path / "run")
    assert losses == train(None)[0]
    with torchvitals.open_run(tmp_path / "run") as history:
        for step, (out, gradient) in enumerate(zip(outputs, gradients, strict=True), start=1):
            row = {str(key): value for key, value in history.row(step).items()}
            rms = float(out.square().mean().sqrt())
            assert row["activation/blocks.0.0/rms"] == pytest.approx(rms, rel=1e-6)
            assert row["activation/blocks.0.0/mean"] == pytest.approx(float(out.mean()), rel=1e-5)
            norm = float(gradient.norm())
            assert row["gradient/blocks.0.0.weight/norm"] == pytest.approx(norm, rel=1e-6)
        counts = history.histograms("blocks.0.0", "activation").counts
        assert counts.sum() == 8 * sum(map(sum, SIZES))
        means = [np.mean(losses[:3]), np.mean(losses[3:6]), np.mean(losses[6:])]
        assert history.series("loss").values.tolist() == pytest.approx(means)


def keep_products(_context, operator, *_args, **_kwargs):
    """Products are kept, everything else is computed again."""
    kept = {torch.ops.aten.addmm.default, torch.ops.aten.mm.default}
    return CheckpointPolicy.MUST_SAVE if operator in kept else CheckpointPolicy.PREFER_RECOMPUTE


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_selectively_checkpointed_layers_count_once(tmp_path, backend):
    selective = partial(create_selective_checkpoint_contexts, keep_products)
    bare = train(None, context_fn=selective)[0]
    watched = train(tmp_path / "kept", context_fn=selective, backend=backend)[0]
    assert watched == bare
    train(tmp_path / "plain", backend=backend)
    with (
        torchvitals.open_run(tmp_path / "kept") as kept,
        torchvitals.open_run(tmp_path / "plain") as plain,
    ):
        for kind in ("activation", "gradient", "update"):
            assert set(kept.keys(kind)) == set(plain.keys(kind))
            for key in plain.keys(kind):
                np.testing.assert_array_equal(
                    kept.series(key).values, plain.series(key).values, err_msg=str(key)
                )
        for kind, site in plain.histogram_sites():
            found, wanted = (h.histograms(site, kind).counts.sum(axis=0) for h in (kept, plain))
            np.testing.assert_array_equal(found, wanted)
