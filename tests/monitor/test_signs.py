"""Evaluations, epochs and categories in one process."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import torchvitals
from torchvitals.record import ConfigError

from .training import batches, loss_of, make_net, train


@pytest.fixture
def watched(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=5, samples_every=4
    ) as monitor:
        yield model, optimizer, monitor


def test_evaluations_stand_at_the_last_step_done(watched):
    model, optimizer, monitor = watched
    monitor.log_eval(loss=9.0)  # before training: a baseline, at the first step
    for rounds in range(1, 3):
        train(model, optimizer, batches(3))
        monitor.log_eval("val", loss=torch.tensor(1.0 / rounds), accuracy=0.5, count=10)
        monitor.log_eval("test", loss=float("nan"))
    history = monitor.history
    steps, values = history.series("eval/val/loss")
    assert steps.tolist() == [1, 3, 6]
    assert values.tolist() == [9.0, 1.0, 0.5]
    assert history.series("eval/val/accuracy").values.tolist() == [0.5, 0.5]
    assert np.isnan(history.series("eval/test/loss").values).all()


def test_mistakes_are_told(watched):
    _, _, monitor = watched
    with pytest.raises(ConfigError, match="at least one number"):
        monitor.log_eval("val")
    with pytest.raises(ConfigError, match="count"):
        monitor.log_eval("val", loss=1.0, count=-1)
    with pytest.raises(ConfigError, match="one number"):
        monitor.log_eval("val", loss=torch.zeros(3))
    with pytest.raises(ConfigError, match="whole number"):
        monitor.epoch(1.5)


def test_epochs_from_the_loader_and_their_means(watched):
    model, optimizer, monitor = watched
    losses = []
    for _ in range(3):
        for x in monitor.data(batches(4), epochs=3):
            loss = loss_of(model, x)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.log(loss=loss)
            losses.append(loss.item())
    history = monitor.history
    assert history.series("epoch/run/number").steps.tolist() == [4, 8, 12]
    assert history.series("epoch/run/number").values.tolist() == [1, 2, 3]
    means = np.array(losses).reshape(3, 4).mean(axis=1)
    np.testing.assert_allclose(history.series("epoch/loss/mean").values, means, rtol=1e-6)
    assert [e.data for e in history.events("epoch")] == [
        {"epoch": n, "epochs": 3} for n in (1, 2, 3)
    ]


def test_epochs_by_hand_and_a_pass_that_is_left_early(watched):
    model, optimizer, monitor = watched
    monitor.epoch(7)
    for number, x in enumerate(batches(2)):
        monitor.log(loss=float(number))
        train(model, optimizer, [x])
    for x in monitor.data(batches(4)):
        monitor.log(loss=float("inf"))
        train(model, optimizer, [x])
        break
    monitor.epoch(20)
    history = monitor.history
    assert history.series("epoch/run/number").values.tolist() == [7, 8]
    assert history.series("epoch/loss/mean").values.tolist() == [0.5, math.inf]


def test_epochs_go_on_where_a_resumed_run_left_off(tmp_path):
    for attempt in range(2):
        model = make_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with torchvitals.watch(
            model, optimizer, run=tmp_path / "run", resume=attempt > 0
        ) as monitor:
            for _ in range(2):
                for x in monitor.data(batches(2)):
                    train(model, optimizer, [x])
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.series("epoch/run/number").values.tolist() == [1, 2, 3, 4]


def test_losses_by_category_equal_a_reference_and_are_reported_in_time(watched):
    model, optimizer, monitor = watched
    rng = np.random.default_rng(0)
    seen = []
    for step in range(1, 11):
        losses = torch.from_numpy(rng.gamma(2.0, size=32))
        labels = torch.from_numpy(rng.integers(0, 5, 32))
        lengths = torch.from_numpy(rng.integers(1, 9, 32))
        train(model, optimizer, batches(1))
        monitor.log_samples(losses, category=labels, weight=lengths)
        seen += [(step, *line) for line in zip(losses, labels, lengths, strict=True)]
    monitor.report_samples()
    history = monitor.history
    table = np.array(seen, dtype=np.float64)
    bounds = [(0, 3), (3, 7), (7, 10)]  # a step's own samples come after its end
    for label in range(5):
        steps, values = history.series(f"category/{label}/loss")
        assert steps.tolist() == [4, 8, 10]
        for value, (low, high) in zip(values, bounds, strict=True):
            mine = table[(table[:, 0] > low) & (table[:, 0] <= high) & (table[:, 2] == label)]
            assert value == pytest.approx(np.average(mine[:, 1], weights=mine[:, 3]), rel=1e-6)


def test_ten_thousand_categories(watched):
    model, optimizer, monitor = watched
    labels = torch.arange(10_000)
    for _ in range(5):
        monitor.log_samples(labels.double(), category=labels)
        train(model, optimizer, batches(1))
    monitor.report_samples()
    history = monitor.history
    assert len(history.keys("category", stat="loss")) == 10_000
    assert history.series("category/1234/loss").values.tolist() == [1234.0, 1234.0]


def test_a_log_named_like_a_column_is_still_found(watched):
    model, optimizer, monitor = watched
    monitor.log(**{"eval/mine/loss": 3.0})
    train(model, optimizer, batches(2))
    assert monitor.history.series("eval/mine/loss").values.tolist() == [3.0]


def test_forecast_and_schedule_of_a_run(tmp_path):
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 200)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for step in range(1, 201):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            schedule.step()
            monitor.log(loss=1.0 + 5.0 * step**-0.5)
        history = monitor.history
        found = history.forecast("loss", at=400)
        assert found.confident
        assert found.value == pytest.approx(1.25, rel=0.02)
        assert found.low <= found.value <= found.high
        assert history.schedule().shape == "cosine"
        assert history.schedule().peak == pytest.approx(0.4)
