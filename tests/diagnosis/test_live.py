"""The diagnosis beside real trainings."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import torchvitals
from tests.rules.builder import RunBuilder
from tests.rules.sick import CASES
from torchvitals.diagnosis import diagnose
from torchvitals.diagnosis.live import BUDGET, CREDIT_S, Diagnostician
from torchvitals.record import ConfigError, Finding, Severity, StopTraining
from torchvitals.rules.thresholds import Thresholds


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def train(
    path: Path,
    *,
    model: nn.Module | None = None,
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] | None = None,
    batch: Callable[[int, Tensor], Tensor] = lambda step, x: x,
    clear: bool = True,
    steps: int = 60,
    **options: Any,
) -> torchvitals.Monitor:
    model = model or net()
    made = optimizer or (lambda m: torch.optim.Adam(m.parameters(), 1e-3))
    stepper = made(model)
    random = torch.Generator().manual_seed(1)
    truth = torch.randn(20, 10, generator=random)
    with torchvitals.watch(model, stepper, run=path, **{"every": 2, **options}) as monitor:
        for step in range(1, steps + 1):
            x = torch.randn(64, 20, generator=random)
            labels = (x @ truth).argmax(1)
            loss = F.cross_entropy(model(batch(step, x)), labels)
            loss.backward()
            stepper.step()
            if clear:
                stepper.zero_grad()
            monitor.log(loss=loss)
    return monitor


def names(path: Path) -> list[str]:
    with torchvitals.open_run(path) as history:
        return [one.name for one in history.findings()]


def test_a_healthy_training_is_quiet(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train(tmp_path / "run", steps=150)
    assert names(tmp_path / "run") == []
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_nan_batch_is_found_told_once_and_stored(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    heard: list[Finding] = []

    def spoil(step: int, x: Tensor) -> Tensor:
        return x * float("nan") if step == 20 else x

    train(tmp_path / "run", batch=spoil, on_finding=heard.append)
    assert [one.name for one in heard][:1] in (["non_finite"], ["non_finite_input"])
    assert heard[0].first_step == 20
    told = [r for r in caplog.records if "torchvitals: error" in r.getMessage()]
    assert len(told) == 1
    assert told[0].levelno == logging.ERROR
    with torchvitals.open_run(tmp_path / "run") as history:
        (one,) = history.findings()
        assert one.is_open
        (event,) = history.events("finding")
        assert event.data["state"] == "opened"
        assert event.data["id"] == f"{one.name}@20"
        assert diagnose(history).findings[0].name == one.name


def test_a_layer_outside_the_optimizer_is_found(tmp_path: Path) -> None:
    def without(model: nn.Module) -> torch.optim.Optimizer:
        chosen = [p for name, p in model.named_parameters() if not name.startswith("2.")]
        return torch.optim.Adam(chosen, 1e-3)

    train(tmp_path / "run", optimizer=without, steps=10)
    with torchvitals.open_run(tmp_path / "run") as history:
        (one,) = history.findings()
        assert one.name == "orphan_parameter"
        assert one.sites[0] == "2.weight"
        assert one.severity is Severity.ERROR
        # Wiring shows at the second monitored step.
        assert diagnose(history, at=2).findings[0].name == "orphan_parameter"


def test_an_optimizer_of_another_model_is_found(tmp_path: Path) -> None:
    other = net()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(logging.getLogger("torchvitals"), "disabled", True)
        train(
            tmp_path / "run",
            optimizer=lambda model: torch.optim.Adam(other.parameters(), 1e-3),
            steps=12,
        )
    with torchvitals.open_run(tmp_path / "run") as history:
        assert "no_effective_step" in [one.name for one in diagnose(history).findings]


def test_a_detached_block_is_found(tmp_path: Path) -> None:
    class Cut(nn.Sequential):
        def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
            hidden = self[1](self[0](x)).detach()
            out: Tensor = self[4](self[3](self[2](hidden)))
            return out

    torch.manual_seed(0)
    model = Cut(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    train(tmp_path / "run", model=model, steps=10)
    assert names(tmp_path / "run")[0] == "orphan_parameter"


def test_a_far_too_high_rate_is_found_with_a_lower_one(tmp_path: Path) -> None:
    train(
        tmp_path / "run",
        optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=10.0, momentum=0.9),
        steps=60,
    )
    with torchvitals.open_run(tmp_path / "run") as history:
        one = diagnose(history).findings[0]
    assert one.name == "lr_too_high"
    assert one.change["lr"]["from"] == 10.0
    assert 0.01 < one.change["lr"]["to"] <= 1.0


def test_stop_on_ends_the_training_on_its_own_thread(tmp_path: Path) -> None:
    def spoil(step: int, x: Tensor) -> Tensor:
        return x * float("nan") if step == 20 else x

    with pytest.raises(StopTraining, match="non_finite") as stopped:
        train(tmp_path / "run", batch=spoil, stop_on="error", steps=200_000)
    assert isinstance(stopped.value.finding, Finding)
    with torchvitals.open_run(tmp_path / "run") as history:
        assert history.status == "failed"
        assert history.last_step is not None
        assert history.last_step < 200_000


def test_switched_off_nothing_is_looked_for(tmp_path: Path) -> None:
    monitor = train(tmp_path / "run", batch=lambda _, x: x * float("nan"), diagnose=False)
    assert monitor.findings == []
    assert names(tmp_path / "run") == []


def test_monitor_diagnoses_on_demand(tmp_path: Path) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with torchvitals.watch(model, optimizer, run=tmp_path / "run", every=1) as monitor:
        for _ in range(5):
            F.cross_entropy(model(torch.randn(8, 20)), torch.zeros(8, dtype=torch.long)).backward()
            optimizer.step()
            optimizer.zero_grad()
        found = monitor.diagnose()
        assert found.steps == 5
        assert found.status == "running"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"stop_on": "fatal"}, "stop_on must be"),
        ({"thresholds": {"dead_shar": 1}}, "Did you mean dead_share"),
    ],
)
def test_wrong_arguments_are_told_before_the_first_step(
    tmp_path: Path, options: dict[str, Any], text: str
) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    with pytest.raises(ConfigError, match=text):
        torchvitals.watch(model, optimizer, run=tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_an_error_in_on_finding_stops_neither_training_nor_diagnosis(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Finding) -> None:
        raise RuntimeError("no network")

    train(tmp_path / "run", batch=lambda _, x: x * float("nan"), on_finding=fail, steps=20)
    assert names(tmp_path / "run")
    assert "on_finding failed" in caplog.text


def test_resuming_keeps_findings_and_does_not_tell_them_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def without(model: nn.Module) -> torch.optim.Optimizer:
        chosen = [p for name, p in model.named_parameters() if not name.startswith("2.")]
        return torch.optim.Adam(chosen, 1e-3)

    train(tmp_path / "run", optimizer=without, steps=10)
    caplog.clear()
    train(tmp_path / "run", optimizer=without, steps=10, resume=True)
    assert "orphan_parameter" not in caplog.text
    with torchvitals.open_run(tmp_path / "run") as history:
        states = [(e.data["id"], e.data["state"]) for e in history.events("finding")]
        assert states == [("orphan_parameter@1", "opened")]
        assert history.findings()[0].is_open


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_findings_resolve_and_open_anew(tmp_path: Path) -> None:
    sick, well = RunBuilder(tmp_path / "sick"), RunBuilder(tmp_path / "well")
    CASES["frozen_layer"].spoil(sick)
    sick.write()
    well.write()
    current = {"path": tmp_path / "sick"}

    class Turning:
        def __getattr__(self, name: str) -> Any:
            return getattr(torchvitals.open_run(current["path"]), name)

    events: list[Any] = []
    one = Diagnostician(Turning, events.append, thresholds=Thresholds(), clock=Clock())
    one._look(cheap=False)
    assert [found.name for found in one.findings] == ["frozen_layer"]
    current["path"] = tmp_path / "well"
    one._look(cheap=False)
    assert one.findings, "one look may miss it"
    one._look(cheap=False)
    assert one.findings == []
    assert [event.data["state"] for event in events] == ["opened", "resolved"]
    assert events[1].data["finding"]["resolved_step"] == 120


def test_what_changed_between_two_looks_is_stored_at_the_end(tmp_path: Path) -> None:
    """The last look sees what the one before saw: neither is what was stored."""
    for rate in (1e-3, 3e-3):
        builder = RunBuilder(tmp_path / str(rate))
        CASES["lr_too_low"].spoil(builder)
        builder["optimizer/group0/lr"] = rate
        builder.write()
    current = {"path": tmp_path / "0.001"}

    class Turning:
        def __getattr__(self, name: str) -> Any:
            return getattr(torchvitals.open_run(current["path"]), name)

    events: list[Any] = []
    one = Diagnostician(Turning, events.append, thresholds=Thresholds(), clock=Clock())
    one._look(cheap=False)
    current["path"] = tmp_path / "0.003"
    one._look(cheap=False)
    one._look(cheap=False, last=True)
    assert [event.data["state"] for event in events] == ["opened", "updated"]
    told = [event.data["finding"]["fix"] for event in events]
    assert told[0].startswith("raise lr from 1e-3 ")
    assert told[1].startswith("raise lr from 3e-3 ")


def test_looks_stay_within_the_budget(tmp_path: Path) -> None:
    builder = RunBuilder(tmp_path / "run")
    builder.write()
    clock = Clock()

    class Slow:
        """Reading takes five seconds."""

        def __init__(self) -> None:
            self._history = torchvitals.open_run(tmp_path / "run")

        def __getattr__(self, name: str) -> Any:
            if name == "columns":
                clock.now += 5.0
            return getattr(self._history, name)

    one = Diagnostician(Slow, lambda event: None, thresholds=Thresholds(), clock=clock, busy=clock)
    rows = [_row(step) for step in range(1, 5)]
    for _ in range(2000):
        clock.now += 1.0
        one.rows(rows)
        one.tick()
    assert one.spent_s > 0
    assert one.spent_s <= BUDGET * clock.now + CREDIT_S + 5.1


def _row(step: int) -> Any:
    import numpy as np

    from torchvitals.record import Key, Row

    header = (Key("summary", "update_ratio", "median"),)
    return Row(step, float(step), header, np.zeros(1, dtype=np.float32))
