"""Runs of a ModuleMonitor are shown by what they hold."""

from __future__ import annotations

import math
from pathlib import Path

import torch
from torch import nn

from tests.views.made_runs import WEIGHTS, make_run
from torchvitals import ModuleMonitor, stats
from torchvitals.record import Key
from torchvitals.store import open_run
from torchvitals.views.layers import LayerTable, layer_table
from torchvitals.views.summary import RunSummary, summarize


def train(path: Path, *, spoil_from: int | None = None, named: bool = True) -> Path:
    """Three monitored steps of five; the layer "2" is a hundred times as large as the others."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    with torch.no_grad():
        model[2].weight.mul_(100.0)
    monitor = ModuleMonitor(lambda step: step % 2 == 0, run=path)
    monitor.set_module(model)
    monitor.add_activation_metric("l2norm", lambda x: x.norm(dim=-1), metric_regex=r"\d")
    monitor.add_activation_metric("least", lambda x: x.amin(dim=-1), metric_regex="1$")
    monitor.add_parameter_metric("opnorm", lambda p: p.norm(), metric_regex=".*weight")
    monitor.add_gradient_metric("norm" if named else "size", stats.norm)
    for step in range(5):
        if spoil_from is not None and step >= spoil_from:
            with torch.no_grad():
                model[1].weight.fill_(math.nan)
        monitor.begin_step(step)
        model(torch.ones(2, 4)).sum().backward()
        monitor.log_scalar("loss", 1.0 / (1 + step))
        monitor.monitor_parameters()
        monitor.monitor_gradients()
        monitor.end_step()
        model.zero_grad()
    monitor.close()
    return path


def table(path: Path, kind: str, **options: object) -> LayerTable:
    with open_run(path) as history:
        found = layer_table(history, kind, **options)  # type: ignore[arg-type]
    assert found is not None
    return found


def summary(path: Path) -> RunSummary:
    with open_run(path) as history:
        return summarize(history)


def test_each_kind_has_a_table_of_its_metrics(tmp_path: Path) -> None:
    path = train(tmp_path / "run")
    found = table(path, "parameter")
    assert (found.lead, found.stats, found.step) == ("opnorm", ("opnorm",), 4)
    assert found.lines[0].site == "2.weight"
    assert {line.site for line in found.lines} == {"0.weight", "1.weight", "2.weight"}
    assert found.worst == "not finite, then |opnorm| furthest from the median of all layers"
    assert len(found.lines[0].spark) == 3
    found = table(path, "activation")
    assert found.stats == ("l2norm", "least")
    assert found.lines[0].site == "2"
    assert [line.values["least"] is None for line in found.lines].count(False) == 1


def test_a_metric_that_is_a_known_statistic_is_judged_as_one(tmp_path: Path) -> None:
    found = table(train(tmp_path / "run"), "gradient")
    assert (found.lead, found.stats) == ("norm", ("norm", "vs_median"))
    assert found.num_layers == 6
    assert found.worst == "not finite, then norm furthest from the median of all layers"
    other = table(train(tmp_path / "other", named=False), "gradient")
    assert (other.lead, other.stats) == ("size", ("size",))


def test_asked_for_by_name_it_shows_where_it_was_measured(tmp_path: Path) -> None:
    path = train(tmp_path / "run")
    assert [line.site for line in table(path, "activation", stats=["least"]).lines] == ["1"]
    assert table(path, "gradient", stats=["norm"]).num_layers == 6
    assert [line.site for line in table(path, "gradient", site=r"^0\.b").lines] == ["0.bias"]


def test_what_is_not_finite_comes_first_and_is_named(tmp_path: Path) -> None:
    path = train(tmp_path / "run", spoil_from=3)
    found = table(path, "parameter")
    assert (found.lines[0].site, found.lines[0].note) == ("1.weight", "opnorm not finite")
    assert not any(line.note for line in found.lines[1:])
    activations = table(path, "activation")
    assert activations.lines[0].site == "1"  # in two of its metrics
    assert activations.lines[0].note == "l2norm, least not finite"
    bad = {one.kind: one for one in summary(path).not_finite}
    assert bad["parameter"].first_step == 4
    assert bad["parameter"].first_sites == ["1.weight"]
    assert bad["activation"].num_sites == 2


def test_the_summary_counts_the_steps_that_were_measured(tmp_path: Path) -> None:
    found = summary(train(tmp_path / "run"))
    assert (found.num_measured, found.not_finite) == (3, [])
    alone = ModuleMonitor(lambda step: step % 2 == 0, run=tmp_path / "alone")
    alone.set_module(nn.Linear(2, 2))
    for step in range(5):
        alone.begin_step(step)
        alone.log_scalar("RCC x_t/0/l2norm", 1.0)
        alone.end_step()
    alone.close()
    assert summary(tmp_path / "alone").num_measured == 3


def test_a_stat_that_no_layer_has_shows_what_has_it(tmp_path: Path) -> None:
    """In a run of watch(): the norm of all gradients has a clip ratio, a layer's has none."""
    make_run(tmp_path)
    found = table(tmp_path, "gradient", stats=["clip_ratio"])
    assert [line.site for line in found.lines] == ["[root module]"]
    assert {line.site for line in table(tmp_path, "gradient").lines} == set(WEIGHTS)


def test_a_metric_beside_the_statistics_leaves_their_table_as_it_is(tmp_path: Path) -> None:
    def change(_step: int, values: dict[Key, float]) -> None:
        for name in WEIGHTS:
            values[Key("gradient", name, "mine")] = 2.0

    make_run(tmp_path, change=change)
    assert "mine" not in table(tmp_path, "gradient").stats
    assert table(tmp_path, "gradient", stats=["mine"]).num_layers == len(WEIGHTS)
