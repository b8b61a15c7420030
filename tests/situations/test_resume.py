"""A run that was interrupted and resumed from a checkpoint is the one that was not."""

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.record import ConfigError

STEPS = 40


class Training:
    """Data that depends on the step alone, a layer with learning rate 0, dead units."""

    def __init__(self):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 6), nn.Linear(6, 2))
        self.model[0].bias.data[:8] = -50.0
        still = list(self.model[2].parameters())
        moving = [*self.model[0].parameters(), *self.model[3].parameters()]
        self.optimizer = torch.optim.SGD(
            [{"params": moving}, {"params": still, "lr": 0.0}], lr=0.05, momentum=0.9
        )

    def watch(self, path, **kwargs):
        return torchvitals.watch(
            self.model, self.optimizer, run=path, every=4, guard="skip", machine=False,
            clocks=False, **kwargs,
        )  # fmt: skip

    def run(self, monitor, steps):
        for step in steps:
            x = torch.randn(64, 6, generator=torch.Generator().manual_seed(step))
            loss = (self.model(x) - x[:, :2]).square().mean()
            (loss * (1e4 if step == 30 else 1.0)).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            monitor.log(loss=loss)


def resumed(path, *, crashed_at, kept_at):
    """Train to `crashed_at`, go on from the checkpoint of `kept_at` in a new object."""
    first = Training()
    monitor = first.watch(path)
    first.run(monitor, range(1, kept_at + 1))
    state = {
        "model": {k: v.clone() for k, v in first.model.state_dict().items()},
        "optimizer": first.optimizer.state_dict(),
        "monitor": monitor.state_dict(),
    }
    torch.save(state, path.parent / "checkpoint.pt")
    first.run(monitor, range(kept_at + 1, crashed_at + 1))
    monitor.close("failed")
    state = torch.load(path.parent / "checkpoint.pt")  # weights_only: plain data
    second = Training()
    second.model.load_state_dict(state["model"])
    second.optimizer.load_state_dict(state["optimizer"])
    with second.watch(path, resume=True) as monitor:
        monitor.load_state_dict(state["monitor"])
        second.run(monitor, range(kept_at + 1, STEPS + 1))
        assert monitor.step_number == STEPS


@pytest.mark.parametrize(("crashed_at", "kept_at"), [(20, 20), (27, 18), (33, 31)])
def test_series_and_findings_are_those_of_an_uninterrupted_run(tmp_path, crashed_at, kept_at):
    whole = Training()
    with whole.watch(tmp_path / "whole") as monitor:
        whole.run(monitor, range(1, STEPS + 1))
    resumed(tmp_path / "resumed", crashed_at=crashed_at, kept_at=kept_at)
    with (
        torchvitals.open_run(tmp_path / "whole") as one,
        torchvitals.open_run(tmp_path / "resumed") as two,
    ):
        # The monitor's own cost is never the same twice.
        own = {k for k in one.keys() if k.site == "monitor" or k.kind in {"machine", "clock"}}
        assert set(two.keys()) - own == set(one.keys()) - own
        for key in set(one.keys()) - own:
            found, wanted = two.series(key), one.series(key)
            assert found.steps.tolist() == wanted.steps.tolist(), key
            np.testing.assert_array_equal(found.values, wanted.values, err_msg=str(key))
        names = [{f.name for f in h.findings() if f.is_open} for h in (one, two)]
        assert names[0] == names[1]
        guarded = [[e.step for e in h.events("guard")] for h in (one, two)]
        assert guarded[0] == guarded[1] == [30]


def test_a_state_must_be_one_and_come_in_time(tmp_path):
    training = Training()
    with training.watch(tmp_path / "run") as monitor:
        with pytest.raises(ConfigError, match="no state of a monitor"):
            monitor.load_state_dict({"step": 3})
        training.run(monitor, [1])
        with pytest.raises(ConfigError, match="before the first step"):
            monitor.load_state_dict(monitor.state_dict())
