"""GradScaler: norms of unscaled gradients, once; the scaler's own skips are seen."""

import math

import pytest
import torch

from torchvitals import Guard
from torchvitals.guard import MeanStd

from .training import BAD, NAN, Training, same

SCALE = 1024.0
WAYS = pytest.mark.parametrize(
    ("fused", "decide"), [(False, "host"), (True, "host"), (True, "device")]
)


def adamw(fused):
    return lambda parameters: torch.optim.AdamW(parameters, lr=0.01, fused=fused)


def amp_step(training, scaler, batch, *, unscale=False, clip=None, overflow=False):
    loss = training.loss(batch)
    scaler.scale(loss).backward()
    if overflow:
        training.model[0].weight.grad.fill_(math.inf)
    if unscale:
        scaler.unscale_(training.optimizer)
    if clip is not None:
        torch.nn.utils.clip_grad_norm_(training.model.parameters(), clip)
    scaler.step(training.optimizer)
    scaler.update()
    training.optimizer.zero_grad()


def norm_of(training, batch):
    training.loss(batch).backward()
    squares = [p.grad.double().square().sum() for p in training.model.parameters()]
    training.optimizer.zero_grad()
    return math.sqrt(float(sum(squares)))


@pytest.mark.parametrize("unscale", [False, True])
@WAYS
def test_the_norm_is_of_unscaled_gradients_once(fused, unscale, decide):
    training = Training(adamw(fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    with Guard("skip", decide=decide).attach(training.optimizer, training.model) as guard:
        for batch in range(4):
            expected = norm_of(training, batch)
            amp_step(training, scaler, batch, unscale=unscale)
            assert guard.last_norm == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("given", [False, True])
def test_clipping_under_a_scaler(fused, given):
    training = Training(adamw(fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    guard = Guard("skip", scaler=scaler if given else None)
    with guard.attach(training.optimizer, training.model):
        for batch in range(3):
            expected = norm_of(training, batch)
            amp_step(training, scaler, batch, unscale=True, clip=0.1)
            assert guard.last_norm == pytest.approx(expected, rel=1e-5)
        # Clipping scaled gradients is a mistake of the loop; the norm is right nevertheless.
        expected = norm_of(training, 3)
        amp_step(training, scaler, 3, unscale=False, clip=0.1)
        assert guard.last_norm == pytest.approx(expected, rel=1e-5)


@WAYS
def test_the_scalers_own_skips_are_seen(fused, decide):
    training = Training(adamw(fused))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    noted = []
    guard = Guard("skip", decide=decide).attach(training.optimizer, training.model)
    with guard:
        guard.listen(lambda *what: noted.append(what))
        amp_step(training, scaler, 0)
        assert not guard.last_step_skipped
        before = training.everything()
        amp_step(training, scaler, 1, overflow=True)
        assert guard.last_step_skipped
        assert same(before, training.everything())
        assert guard.counts["scaler_skip"] == 1
        assert guard.counts["skip"] == 0
        assert scaler.get_scale() == SCALE / 2
        amp_step(training, scaler, 2)
        assert not guard.last_step_skipped
    assert [kind for kind, *_ in noted] == ["scaler"]


@WAYS
def test_a_spike_is_skipped_and_the_scale_is_left_alone(fused, decide):
    clean, training = Training(adamw(fused)), Training(adamw(fused))
    scalers = [torch.amp.GradScaler("cpu", init_scale=SCALE) for _ in range(2)]
    rule = MeanStd(6.0, warmup=5)
    guard = Guard("skip", rule=rule, decide=decide).attach(training.optimizer, training.model)
    with guard:
        for batch in [*range(8), (8, BAD), 9, 10]:
            amp_step(training, scalers[0], batch)
        assert guard.counts["skip"] == 1
        assert scalers[0].get_scale() == SCALE
    for batch in [*range(8), 9, 10]:
        amp_step(clean, scalers[1], batch)
    assert same(clean.everything(), training.everything())


def test_a_disabled_scaler_is_no_scaler():
    training = Training(adamw(False))
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    with Guard("skip").attach(training.optimizer, training.model) as guard:
        amp_step(training, scaler, 0)
        amp_step(training, scaler, (1, NAN))
        assert (guard.counts["skip"], guard.counts["scaler_skip"]) == (1, 0)


def test_a_scaler_can_still_be_saved():
    import pickle

    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    training = Training(adamw(False))
    with Guard("skip").attach(training.optimizer):
        amp_step(training, scaler, 0)
        assert pickle.loads(pickle.dumps(scaler)).get_scale() == SCALE


def test_other_optimizers_of_the_scaler_are_none_of_our_business():
    ours, other = Training(adamw(False)), Training(adamw(False))
    scaler = torch.amp.GradScaler("cpu", init_scale=SCALE)
    with Guard("skip").attach(ours.optimizer) as guard:
        amp_step(other, scaler, 0, overflow=True)
        assert guard.counts["scaler_skip"] == 0
