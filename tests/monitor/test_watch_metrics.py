"""Metrics of one's own beside what watch() measures by itself."""

import pytest
import torch

import torchvitals
from torchvitals import stats

from .training import batches, loss_of, make_net


def test_both_styles_mix(tmp_path):
    model = make_net()
    optimizer = torch.optim.AdamW(model.parameters())
    expected = {}
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=2, reference="init"
    ) as monitor:
        monitor.add_activation_metric("l1", lambda x: x.abs().sum(dim=-1), "head$")
        monitor.add_gradient_metric("l1", lambda g: g.abs().sum(), "head")
        monitor.add_gradient_metric("own_norm", stats.norm)
        monitor.add_parameter_metric("opnorm", lambda p: torch.linalg.matrix_norm(p, 2), "head")
        monitor.add_parameter_difference_metric("moved", lambda p, q: (p - q).norm(), "head")
        monitor.add_activation_difference_metric(
            "moved", lambda a, b: (a - b).norm(dim=-1), "head$"
        )
        for step, x in enumerate(batches(4), start=1):
            monitor.run_reference(x)
            loss_of(model, x).backward()
            expected[step] = float(model.head.weight.grad.abs().sum())
            optimizer.step()
            optimizer.zero_grad()
        flat = monitor.get_step_metrics()
        history = monitor.history
        steps, values = history.series("gradient/head.weight/l1")
        assert steps.tolist() == [1, 2, 4]
        assert history.series("activation/head/l1").steps.tolist() == [1, 2, 4]
        assert history.series("activation_difference/head/moved").values[0] == 0
        assert values.tolist() == pytest.approx([expected[n] for n in (1, 2, 4)], rel=1e-5)
        assert history.row(4)[torchvitals.Key("gradient", "head.weight", "own_norm")] == (
            pytest.approx(history.series("gradient/head.weight/norm").values[-1], rel=1e-6)
        )
    assert flat["gradient/head.weight/l1"] == pytest.approx(expected[4], rel=1e-6)
    opnorm = torch.linalg.matrix_norm(model.head.weight.detach(), 2)
    assert flat["parameter/head.weight/opnorm"] == pytest.approx(float(opnorm), rel=1e-5)
    assert flat["parameter_difference/head.weight/moved"] > 0
    assert flat["activation_difference/head/moved"] > 0
    assert flat["activation/head/l1"] > 0
    assert "summary/gradient_norm/median" in flat
    assert len(flat) < 80


def test_a_failing_metric_is_an_event_and_training_goes_on(tmp_path, caplog):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        monitor.add_activation_metric("bad", lambda _x: None)
        for x in batches(3):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
        assert monitor.step_number == 3
        (event,) = monitor.history.events("metric_failed")
    assert "'bad'" in event.text
    assert len([r for r in caplog.records if "'bad'" in r.message]) == 1


def test_a_wrong_reference_is_told(tmp_path):
    model = make_net()
    with pytest.raises(ValueError, match="init"):
        torchvitals.watch(model, run=tmp_path / "run", reference="start")
    monitor = torchvitals.watch(model, run=tmp_path / "other")
    with pytest.raises(ValueError, match=r"^Set the reference module"):
        monitor.run_reference(torch.ones(1, 8))
    monitor.close()
