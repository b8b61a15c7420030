"""Every column against values computed by hand in float64."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_, clip_grad_value_  # imported before any monitor

import torchvitals
from torchvitals.record import ROOT, Key
from torchvitals.views.offenders import offenders

from .training import batches, loss_of, make_net

BACKENDS = ["native", "torch"]
close = {"rel": 1e-5, "abs": 1e-12}


def statistics(x):
    x = x.detach().double().flatten()
    return {
        "norm": float(x.norm()),
        "rms": float(x.square().mean().sqrt()),
        "mean": float(x.mean()),
        "std": float(x.std(unbiased=False)),
        "min": float(x.min()),
        "max": float(x.max()),
        "zero_frac": float((x == 0).double().mean()),
        "num_nan": 0.0,
        "num_posinf": 0.0,
        "num_neginf": 0.0,
    }


def named(model):
    """Parameters once each, under the name of their first place."""
    return dict(model.named_parameters())


def norm_of(tensors):
    return math.sqrt(sum(float(t.detach().double().square().sum()) for t in tensors))


def expect(row, kind, site, stats, tolerance=1e-5):
    for stat, value in stats.items():
        got = row[Key(kind, site, stat)]
        slack = tolerance * abs(stats["rms"])
        assert got == pytest.approx(value, rel=tolerance, abs=slack), (kind, site, stat)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("make_optimizer", [
    lambda ps: torch.optim.SGD(ps, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    lambda ps: torch.optim.AdamW(ps, lr=0.01, weight_decay=0.1),
    lambda ps: torch.optim.AdamW(ps, lr=0.01, foreach=True),
], ids=["sgd", "adamw", "foreach"])  # fmt: skip
def test_gradients_parameters_and_exact_updates(tmp_path, backend, make_optimizer):
    model = make_net()
    optimizer = make_optimizer(model.parameters())
    monitor = torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact", backend=backend
    )
    for step, x in enumerate(batches(4), start=1):
        loss_of(model, x).backward()
        before = {n: p.detach().clone() for n, p in named(model).items()}
        grads = {n: p.grad.clone() for n, p in named(model).items()}
        optimizer.step()
        after = {n: p.detach().clone() for n, p in named(model).items()}
        row = monitor.history.row(step)
        for name, grad in grads.items():
            delta = after[name] - before[name]
            expect(row, "gradient", name, statistics(grad))
            expect(row, "parameter", name, statistics(after[name]))
            expect(row, "update", name, statistics(delta))
            ratio = norm_of([delta]) / (norm_of([after[name]]) + 1e-12)
            assert row[Key("update", name, "ratio")] == pytest.approx(ratio, rel=1e-5)
            lr_ratio = norm_of([delta]) / norm_of([grad])
            assert row[Key("update", name, "lr_ratio")] == pytest.approx(lr_ratio, rel=1e-5)
            cosine = torch.nn.functional.cosine_similarity(
                delta.double().flatten(), -grad.double().flatten(), dim=0
            )
            assert row[Key("update", name, "cosine")] == pytest.approx(float(cosine), abs=1e-4)
        optimizer.zero_grad()
    monitor.close()


def test_no_cosine_with_gradients_the_optimizer_overwrote(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, foreach=True
    )
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact"
    ) as monitor:
        loss_of(model, batches(1)[0]).backward()
        norm = norm_of([model.head.weight.grad])
        optimizer.step()
        row = monitor.history.row(1)
        assert row[Key("gradient", "head.weight", "norm")] == pytest.approx(norm, rel=1e-5)
        assert Key("update", "head.weight", "cosine") not in row
        assert row[Key("update", "head.weight", "ratio")] > 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_norms_of_every_subtree_count_shared_parameters_once(tmp_path, backend):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact", backend=backend
    )
    x = batches(1)[0]
    loss_of(model, x).backward()
    before = {id(p): p.detach().clone() for p in model.parameters()}
    grads = {id(p): p.grad.clone() for p in model.parameters()}
    optimizer.step()
    row = monitor.history.row(1)
    for raw_name, module in model.named_modules():
        inside = list(module.parameters())
        if not inside:
            continue
        name = raw_name or ROOT
        grad_norm = norm_of([grads[id(p)] for p in inside])
        update_norm = norm_of([p - before[id(p)] for p in inside])
        parameter_norm = norm_of(inside)
        assert row[Key("gradient", name, "norm")] == pytest.approx(grad_norm, rel=1e-5)
        assert row[Key("parameter", name, "norm")] == pytest.approx(parameter_norm, rel=1e-5)
        assert row[Key("update", name, "norm")] == pytest.approx(update_norm, rel=1e-5)
        ratio = update_norm / parameter_norm
        assert row[Key("update", name, "ratio")] == pytest.approx(ratio, rel=1e-5)
        assert row[Key("update", name, "lr_ratio")] == pytest.approx(0.1, rel=1e-4)
    assert Key("gradient", "scale", "norm") in row  # a bare nn.Parameter is a leaf of its own
    assert Key("gradient", "tied", "norm") in row  # holds the shared weight
    assert Key("gradient", "tied.weight", "norm") not in row  # which is stored once
    infos = {p.name: p.aliases for p in monitor.history.info.models[0].parameters}
    assert infos["head.weight"] == ("tied.weight",)
    monitor.close()


def test_updates_see_writes_between_two_steps(tmp_path):
    """A copy kept from the last step must not be trusted when the weights were changed since."""
    model = nn.Linear(40, 40)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monitor = torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact", activations=False
    )

    def step():
        model(torch.ones(2, 40)).square().mean().backward()
        before = model.weight.detach().clone()
        optimizer.step()
        optimizer.zero_grad()
        return norm_of([model.weight - before])

    expected = [step()]
    with torch.no_grad():
        model.weight.mul_(2.0)  # the version counter tells
    expected.append(step())
    model.weight.data.clamp_(-0.1, 0.1)  # nothing tells but the values
    expected.append(step())
    model.weight.data = torch.randn(40, 40)  # another storage
    expected.append(step())
    got = monitor.history.series("update/weight/norm").values
    assert got == pytest.approx(expected, rel=1e-5)
    monitor.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_sampled_updates_estimate_the_exact_ones(tmp_path, backend):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(300, 400), nn.Tanh(), nn.Linear(400, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    monitor = torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="sampled", backend=backend
    )
    for step in range(1, 4):
        before = {n: p.detach().clone() for n, p in model.named_parameters()}
        model(torch.randn(32, 300)).square().mean().backward()
        optimizer.step()
        row = monitor.history.row(step)
        for name, p in model.named_parameters():
            delta = p.detach() - before[name]
            tolerance = 0.15 if p.numel() > 1024 else 1e-5
            ratio = norm_of([delta]) / norm_of([p])
            assert row[Key("update", name, "norm")] == pytest.approx(
                norm_of([delta]), rel=tolerance
            )
            assert row[Key("update", name, "ratio")] == pytest.approx(ratio, rel=tolerance)
            assert row[Key("parameter", name, "norm")] == pytest.approx(norm_of([p]), rel=1e-5)
            cosine = nn.functional.cosine_similarity(delta.flatten(), -p.grad.flatten(), dim=0)
            assert row[Key("update", name, "cosine")] == pytest.approx(float(cosine), abs=0.1)
        optimizer.zero_grad()
    monitor.close()


def test_accumulated_gradients_are_measured_once(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for x in batches(3):
            (loss_of(model, x) / 3).backward()
        norm = norm_of([p.grad for p in model.parameters()])
        optimizer.step()
        history = monitor.history
        assert history.steps().tolist() == [1]
        assert history.row(1)[Key("gradient", ROOT, "norm")] == pytest.approx(norm, rel=1e-5)


@pytest.mark.parametrize("through", ["module", "imported"])
@pytest.mark.parametrize("limit", [0.01, 1e9])
def test_clipping_by_norm(tmp_path, through, limit):
    clip = clip_grad_norm_ if through == "imported" else nn.utils.clip_grad_norm_
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        loss_of(model, batches(1)[0]).backward()
        before = norm_of([p.grad for p in model.parameters()])
        weight = norm_of([model.head.weight.grad])
        clip((p for p in model.parameters()), limit)  # a generator, as model.parameters() is
        after = norm_of([p.grad for p in model.parameters()])
        optimizer.step()
        row = monitor.history.row(1)
        assert row[Key("gradient", ROOT, "norm")] == pytest.approx(before, rel=1e-5)
        assert row[Key("gradient", "head.weight", "norm")] == pytest.approx(weight, rel=1e-5)
        assert row[Key("gradient", ROOT, "clipped_norm")] == pytest.approx(after, rel=1e-4)
        assert row[Key("gradient", ROOT, "clip_ratio")] == pytest.approx(before / limit, rel=1e-4)
        # Plain SGD moves by lr × clipped gradient: the ratio to it is the learning rate.
        assert row[Key("update", ROOT, "lr_ratio")] == pytest.approx(0.1, rel=1e-2)


@pytest.mark.parametrize("way", ["known norm", "twice"])
def test_clipping_in_two_calls(tmp_path, way):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    parameters = list(model.parameters())
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        (x,) = batches(1)
        (100 * loss_of(model, x)).backward()
        before = norm_of([p.grad for p in parameters])
        if way == "twice":
            clip_grad_norm_(parameters, before / 2)
            clip_grad_norm_(parameters, before / 8)
        else:
            grads = [p.grad for p in parameters if p.grad is not None]
            norm = nn.utils.get_total_norm(grads)
            nn.utils.clip_grads_with_norm_(parameters, before / 8, norm)
        assert norm_of([p.grad for p in parameters]) == pytest.approx(before / 8, rel=1e-4)
        optimizer.step()
        row = monitor.history.row(1)
        assert row[Key("gradient", ROOT, "norm")] == pytest.approx(before, rel=1e-5)
        assert row[Key("gradient", ROOT, "clipped_norm")] == pytest.approx(before / 8, rel=1e-4)
        assert row[Key("gradient", ROOT, "clip_ratio")] == pytest.approx(8.0, rel=1e-4)


def test_clipping_by_value(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        loss_of(model, batches(1)[0]).backward()
        before = norm_of([p.grad for p in model.parameters()])
        clip_grad_value_(model.parameters(), 1e-3)
        after = norm_of([p.grad for p in model.parameters()])
        optimizer.step()
        row = monitor.history.row(1)
        assert row[Key("gradient", ROOT, "norm")] == pytest.approx(before, rel=1e-5)
        assert row[Key("gradient", ROOT, "clipped_norm")] == pytest.approx(after, rel=1e-4)
        assert row[Key("gradient", ROOT, "clip_value")] == pytest.approx(1e-3)


def test_learning_rate_and_weight_decay_of_each_group(tmp_path):
    model = make_net()
    optimizer = torch.optim.AdamW(
        [
            {"params": model.blocks.parameters(), "lr": 0.1, "weight_decay": 0.0},
            {"params": [model.head.weight], "lr": 0.01},
        ],
        weight_decay=0.5,
    )
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for x in batches(2):
            loss_of(model, x).backward()
            optimizer.step()
            schedule.step()
        history = monitor.history
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.series("optimizer/group0/lr").values == pytest.approx([0.1, 0.05])
        assert history.series("optimizer/group1/lr").values == pytest.approx([0.01, 0.005])
        assert history.series("optimizer/group0/weight_decay").values == pytest.approx([0, 0])
        assert history.series("optimizer/group1/weight_decay").values == pytest.approx([0.5] * 2)
        groups = history.info.groups
        assert groups[1].parameters == ("head.weight",)


def test_frozen_needs_patience_and_spares_what_is_frozen_on_purpose(tmp_path):
    model = make_net()
    model.norm.requires_grad_(False)
    optimizer = torch.optim.SGD(
        [{"params": model.blocks.parameters()}, {"params": [model.head.weight], "lr": 0.0}], lr=0.1
    )
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact"
    ) as monitor:
        for x in batches(4):
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
        history = monitor.history
        assert history.series("update/head.weight/frozen").values.tolist() == [0, 0, 1, 1]
        assert history.series("update/blocks.0.0.weight/frozen").values.tolist() == [0] * 4
        assert history.series("summary/update_ratio/num_frozen").values.tolist() == [0, 0, 1, 1]
        assert not history.keys(kind="update", site="norm.weight")


def test_summary_stands_for_all_layers(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        loss_of(model, batches(1)[0]).backward()
        norms = sorted(norm_of([p.grad]) for p in model.parameters())
        optimizer.step()
        row = monitor.history.row(1)
        got = {k.stat: v for k, v in row.items() if k[:2] == ("summary", "gradient_norm")}
        assert got["median"] == pytest.approx(np.median(norms), rel=1e-5)
        assert got["p95"] == pytest.approx(norms[math.ceil(0.95 * len(norms)) - 1], rel=1e-5)
        assert (got["min"], got["max"]) == pytest.approx((norms[0], norms[-1]), rel=1e-5)
        assert (got["num_vanishing"], got["num_exploding"]) == (0, 0)
        summary = [k for k in row if k.kind == "summary" and "." not in k.site]
        assert len(summary) == 12


def test_the_worst_parameters_are_series_of_their_own(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(
        [{"params": model.blocks.parameters()}, {"params": [model.head.weight], "lr": 0.0}], lr=0.1
    )
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact"
    ) as monitor:
        loss_of(model, batches(1)[0]).backward()
        norms = {n: norm_of([p.grad]) for n, p in named(model).items() if p.grad is not None}
        # What no optimizer holds is not stepped, and its gradient is not seen at a step.
        stepped = {n: v for n, v in norms.items() if n.startswith(("blocks", "head"))}
        optimizer.step()
        found = offenders(monitor.history)
    largest = sorted(stepped.items(), key=lambda item: -item[1])[:5]
    assert [name for name, _ in found.largest_gradients] == [name for name, _ in largest]
    assert [v for _, v in found.largest_gradients] == pytest.approx([v for _, v in largest])
    assert found.smallest_updates[0] == ("head.weight", 0.0)
    assert len(found.smallest_updates) == 5


@pytest.mark.parametrize("backend", BACKENDS)
def test_adams_second_moment_against_gradient_and_epsilon(tmp_path, backend):
    torch.manual_seed(0)
    model = nn.Linear(10, 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, betas=(0.9, 0.99), eps=1e-6)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, backend=backend
    ) as monitor:
        for step in range(1, 6):
            optimizer.zero_grad()
            model(torch.randn(4, 10)).square().mean().backward()
            optimizer.step()
            state = optimizer.state[model.weight]
            v = state["exp_avg_sq"].double() / (1 - 0.99**step)
            g = model.weight.grad.double()
            row = monitor.history.row(step)
            if step not in {1, 5}:  # one in four
                assert Key("optimizer", "weight", "g2_over_v_rms") not in row
                continue
            want = float((g.square() / v.clamp(min=1e-12)).mean().sqrt())
            assert row[Key("optimizer", "weight", "g2_over_v_rms")] == pytest.approx(want, rel=1e-4)
            median = float(v.sqrt().median()) / 1e-6
            got = row[Key("optimizer", "weight", "sqrt_v_over_eps")]
            assert got == pytest.approx(median, rel=0.1)


def test_histograms_are_stored_and_percentiles_derived(tmp_path):
    torch.manual_seed(0)
    model = nn.Linear(50, 50)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact", histograms="full"
    ) as monitor:
        x = torch.randn(64, 50)
        out = model(x)
        out.square().mean().backward()
        grad = model.weight.grad.clone()
        optimizer.step()
        history = monitor.history
        counts = history.histogram("weight", "gradient").counts
        assert counts.sum() == 2500
        for q in (25, 50, 75, 95, 99):
            exact = np.percentile(grad.numpy(), q)
            got = history.series(f"gradient/weight/p{q}").values[0]
            assert got == pytest.approx(exact, rel=0.1, abs=0.02 * float(grad.std()))
        kinds = {kind for kind, _ in history.histogram_sites()}
        assert kinds == {"gradient", "parameter", "update", "activation"}


def test_an_optimizer_may_hold_the_parameters_in_its_own_order(tmp_path):
    model = make_net()
    groups = [
        {"params": [p for p in model.parameters() if p.dim() == 1]},
        {"params": [p for p in model.parameters() if p.dim() > 1][::-1]},
    ]
    for updates in ("sampled", "exact"):
        optimizer = torch.optim.AdamW(groups, lr=0.01)
        with torchvitals.watch(
            model, optimizer, run=tmp_path / updates, every=1, updates=updates
        ) as monitor:
            for x in batches(3):
                before = {n: p.detach().clone() for n, p in named(model).items()}
                loss_of(model, x).backward()
                optimizer.step()
                optimizer.zero_grad()
            row = monitor.history.row(3)
            for name, p in named(model).items():
                norm = norm_of([p - before[name]])
                assert row[Key("update", name, "norm")] == pytest.approx(norm, rel=1e-4)


def test_a_diverged_model_is_not_a_vanishing_or_frozen_one(tmp_path):
    model = make_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with torchvitals.watch(
        model, optimizer, run=tmp_path / "run", every=1, updates="exact"
    ) as monitor:
        for _ in range(4):
            loss_of(model, batches(1)[0] * float("nan")).backward()
            optimizer.step()
        row = monitor.history.row(4)
    for kind in ("gradient", "parameter", "update"):
        assert np.isnan(row[Key(kind, ROOT, "norm")])
        assert np.isnan(row[Key(kind, "head.weight", "norm")])
        assert row[Key(kind, "head.weight", "num_nan")] == 64
    assert row[Key("summary", "update_ratio", "num_frozen")] == 0
    assert Key("summary", "gradient_norm", "num_vanishing") not in row
