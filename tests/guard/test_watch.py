"""The guard under a monitor: events, summary, measurements around a skipped step."""

import numpy as np
import pytest
import torch

import torchvitals
from torchvitals import Guard, watch
from torchvitals.record import Key
from torchvitals.views.summary import summarize
from torchvitals.views.summary_text import summary_text

from .training import BAD, NAN, Training, same


def adam(parameters):
    return torch.optim.Adam(parameters, lr=0.01)


def run(tmp_path, batches, training=None, **options):
    training = Training(adam) if training is None else training
    skipped = []
    with watch(training.model, training.optimizer, run=tmp_path / "run", **options) as monitor:
        for batch in batches:
            loss = training.step(batch)
            skipped.append(monitor.last_step_skipped)
            monitor.log(loss=loss)
    return training, torchvitals.open_run(tmp_path / "run"), skipped, monitor


@pytest.mark.parametrize("every", [1, 10])
@pytest.mark.parametrize("updates", ["exact", "sampled"])
def test_steps_are_judged_whatever_every_is(tmp_path, every, updates):
    clean = Training(adam).run([*range(7), 8, 9, 10])
    training, history, skipped, monitor = run(
        tmp_path, [*range(7), (7, NAN), 8, 9, 10], every=every, guard="skip", updates=updates
    )
    assert same(clean.everything(), training.everything())
    assert skipped == [batch == 7 for batch in range(11)]
    assert monitor.guard.counts["skip"] == 1
    (event,) = [event for event in history.events() if event.kind == "guard"]
    assert event.step == 8
    assert event.text.startswith("non-finite: gradient norm nan in 2.")
    assert event.data["done"] == "skip"
    assert event.data["culprits"][0] in dict(training.model.named_parameters())
    assert history.steps("gradient").tolist() == (list(range(1, 12)) if every == 1 else [1, 10])


@pytest.mark.parametrize("updates", ["exact", "sampled"])
def test_a_skipped_steps_row_has_its_gradients_and_no_update(tmp_path, updates):
    training = Training(adam)
    expected = []
    for batch in (0, 1, 2, 3):
        training.loss((batch, BAD) if batch == 3 else batch).backward()
        expected.append(float(training.model[0].weight.grad.norm()))
        if batch < 3:
            training.optimizer.step()
        training.optimizer.zero_grad()
    _, history, skipped, _ = run(
        tmp_path, [0, 1, 2, (3, BAD), 4], every=1, guard=Guard("skip", rule=1e3), updates=updates
    )
    assert skipped == [False, False, False, True, False]
    norms = history.series(Key("gradient", "0.weight", "norm")).values
    np.testing.assert_allclose(norms[:4], expected, rtol=1e-4)
    ratio = history.series(Key("update", "0.weight", "ratio")).values
    assert ratio[3] == 0.0
    assert (ratio[[0, 1, 2, 4]] > 0).all()


@pytest.mark.parametrize("updates", ["exact", "sampled"])
def test_a_clipped_steps_row_has_its_gradients_as_they_were(tmp_path, updates):
    _, history, _, monitor = run(
        tmp_path, [0, 1, 2, (3, BAD), 4], every=1, guard=Guard("clip", rule=1e3), updates=updates
    )
    norms = history.series(Key("gradient", "[root module]", "norm")).values
    assert monitor.guard.counts["clip"] == 1
    assert norms[3] > 1e4


def test_closures_under_a_monitor(tmp_path):
    clean, training = Training(adam), Training(adam)

    def closures(one, batches):
        for batch in batches:

            def closure(batch=batch):
                one.optimizer.zero_grad()
                loss = one.loss(batch)
                loss.backward()
                return loss

            one.optimizer.step(closure)

    closures(clean, [0, 1, 3])
    with watch(
        training.model, training.optimizer, run=tmp_path / "run", every=1, guard="skip"
    ) as monitor:
        closures(training, [0, 1, (2, NAN), 3])
        assert monitor.guard.counts["skip"] == 1
    assert same(clean.everything(), training.everything())
    history = torchvitals.open_run(tmp_path / "run")
    assert history.series(Key("gradient", "2.bias", "num_nan")).values.tolist() == [0, 0, 2, 0]


def test_counts_stand_in_the_summary(tmp_path):
    _, history, _, _ = run(tmp_path, [0, 1, (2, NAN), (3, NAN), 4], every=1, guard="skip")
    found = summarize(history)
    assert found.guard == {"skip": 2}
    from rich.console import Console

    console = Console(width=100, file=None, record=True, force_terminal=False)
    with console.capture() as captured:
        console.print(summary_text(found, 100))
    assert "2 steps skipped" in captured.get()
    assert summarize(history, step=3).guard == {"skip": 1}
    assert history.info.watch["guard"]["action"]["spike"] == "skip"


def test_a_logged_loss_is_judged_for_divergence(tmp_path):
    training = Training(adam)
    with watch(
        training.model, training.optimizer, run=tmp_path / "run", guard=Guard(rollback_every=10)
    ) as monitor:
        for batch in range(100):
            training.step(batch)
            monitor.log(loss=1.0 + 0.01 * (batch % 5) if batch < 60 else 30.0)
            if monitor.guard.counts["rollback"]:
                break
        assert monitor.last_step_skipped
    assert 60 < batch < 70
    event = next(e for e in torchvitals.open_run(tmp_path / "run").events() if e.kind == "guard")
    assert event.data["cause"] == "divergence"


def test_no_guard_no_skips(tmp_path):
    training, _, skipped, monitor = run(tmp_path, [0, (1, NAN), 2], every=1)
    assert monitor.guard is None
    assert skipped == [False] * 3
    assert torch.isnan(training.model[0].weight).any()


def test_closing_the_monitor_detaches_the_guard(tmp_path):
    training, _, _, monitor = run(tmp_path, [0, 1], guard=True)
    assert not monitor.guard._handles
    training.step((2, NAN))
    assert torch.isnan(training.model[0].weight).any()


def test_a_stop_is_noted_before_it_ends_the_run(tmp_path):
    from torchvitals.record import GuardStop

    with pytest.raises(GuardStop):
        run(tmp_path, [0, (1, NAN), 2], guard="stop")
    history = torchvitals.open_run(tmp_path / "run")
    assert history.status == "failed"
    assert [e.kind for e in history.events() if e.kind in ("guard", "error")] == ["guard", "error"]
