"""`vitals coordcheck`, in this process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.house.house import WITHOUT_TORCH, run_python
from torchvitals.cli.coordcheck import command
from torchvitals.coordcheck import CoordinateTable, check
from torchvitals.record import ConfigError

from .examples import FOLDER

MODEL = """
import torch
from torch import nn

def build(width):
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 3))

def batches():
    torch.manual_seed(0)
    while True:
        yield torch.randn(6, 4), torch.randint(3, (6,))

def bare(width):
    return build(width)

def optimizer(model):
    return torch.optim.SGD(model.parameters(), lr=0.0)

bare.batches = [(torch.ones(2, 4), torch.zeros(2, 3))]
not_a_function = 3
"""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, [*arguments, "--widths", "8,16", "--seeds", "1"])


@pytest.fixture
def model(in_tmp: Path) -> str:
    # A name of its own: imported modules stay in the process.
    path = in_tmp / f"model_{abs(hash(in_tmp))}.py"
    path.write_text(MODEL)
    return path.stem


@pytest.mark.parametrize("ending", ["", ".py"])
def test_summary(model: str, ending: str) -> None:
    done = run(f"{model}{ending}:build", "--optimizer", "adam", "--lr", "1e-3")
    assert done.exit_code == 0, done.output
    assert "Exponents of the width at step 3: widths 8, 16; 1 seed" in done.stdout
    assert "\n0  " in done.stdout.replace("     ", "  ")


def test_json_and_what_the_module_offers(model: str) -> None:
    """Its optimizer does not move; the option replaces it."""
    still = json.loads(run(f"{model}:build", "--json", "--steps", "1").stdout)
    assert {row["value"] for row in still["rows"] if row["term"] == "effective"} == {0.0}
    done = json.loads(run(f"{model}:bare", "--json", "--steps", "1", "--optimizer", "sgd").stdout)
    assert {row["step"] for row in done["rows"]} == {0, 1}
    assert max(row["value"] for row in done["rows"] if row["term"] == "effective") > 0.0
    assert {"module", "term", "step", "slope", "low", "high"} <= set(done["exponents"][0])


def test_plot(model: str, in_tmp: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(f"{model}:build", "--plot", "out.svg", "--optimizer", "adam").exit_code == 0
    assert (in_tmp / "out.svg").exists()


@pytest.mark.parametrize(
    ("path", "text"),
    [("x.foo", "matplotlib knows no .foo"), ("nodir/x.png", "there is no folder 'nodir'")],
)
def test_a_plot_that_cannot_be_written_is_named_before_the_training(
    model: str, path: str, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(check, "coordinate_check", lambda *_, **__: pytest.fail("it trained"))
    done = run(f"{model}:build", "--plot", path)
    assert isinstance(done.exception, ConfigError)
    assert text in str(done.exception)


def test_what_was_measured_is_told_before_the_drawing(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib")

    def full(*_arguments: object, **_options: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(CoordinateTable, "plot", full)
    done = run(f"{model}:build", "--plot", "x.png")
    assert isinstance(done.exception, OSError)
    assert "Exponents of the width" in done.stdout


def test_example_brings_its_optimizer() -> None:
    done = run(f"{FOLDER}/coordinate_check_mlp.py:mup", "--steps", "1")
    assert done.exit_code == 0, done.output
    assert "readout" in done.stdout


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ("build", "expected MODULE:FUNCTION, as in my_model:build, got 'build'"),
        ("no_such_module:build", "no module 'no_such_module' to import"),
        ("no_such_file.py:build", "no file no_such_file.py"),
        ("{}:biuld", "has no function 'biuld'"),
        ("{}:not_a_function", "has no function 'not_a_function'"),
        ("{}:batches", "function of the width that returns a model of that width, got batches()"),
        ("torch.nn:Identity", "torch.nn:Identity comes without data: add a function batches()"),
    ],
)
def test_wrong_targets(model: str, target: str, text: str) -> None:
    done = run(target.format(model))
    assert isinstance(done.exception, ConfigError)
    assert text in str(done.exception)


def test_wrong_widths(model: str) -> None:
    done = CliRunner().invoke(command, [f"{model}:build", "--widths", "8;16"])
    assert done.exit_code == 2
    assert "'8;16' is not a list like 64,128,256,512" in done.output


@pytest.mark.parametrize("target", ["{}:build", "{}.py:build"])
def test_without_torch_the_error_says_what_to_install(
    model: str, in_tmp: Path, target: str
) -> None:
    code = f"""
from torchvitals.cli.coordcheck import command
from torchvitals.record import MissingExtra
try:
    command.main([{target.format(model)!r}], standalone_mode=False)
except MissingExtra as error:
    print(error)
"""
    done = run_python(WITHOUT_TORCH + code, cwd=in_tmp)
    assert done.returncode == 0, done.stderr
    assert "pip install torch" in done.stdout
