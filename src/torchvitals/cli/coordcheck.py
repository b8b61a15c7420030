"""`vitals coordcheck`: trains a model at several widths, shows how its updates go with them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import click

from torchvitals.cli.options import json_option

if TYPE_CHECKING:
    from torchvitals.record.errors import ConfigError, MissingExtra

WIDTHS = "64,128,256,512"

EPILOG = """\b
Examples:
  vitals coordcheck my_model:build --widths 128,256,512 --optimizer adam --lr 1e-3
  vitals coordcheck examples/coordinate_check_mlp.py:mup --plot mup.png
  vitals coordcheck my_model:build --json | jq .exponents

\b
my_model.py:
  def build(width):                  # a model of that width
      return nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.Linear(width, 10))
  def batches():                     # what to train it on: (inputs, targets), or any batch
      while True:
          yield torch.randn(16, 32), torch.randint(10, (16,))
  def optimizer(model): ...          # optional: --optimizer and --lr choose one otherwise
  def loss(model, batch): ...        # optional: cross-entropy or squared error otherwise
"""


def whole_numbers(_context: click.Context, _option: click.Parameter, value: str) -> list[int]:
    """``64,128`` as numbers."""
    try:
        return [int(part) for part in value.split(",")]
    except ValueError as error:
        raise click.BadParameter(f"{value!r} is not a list like {WIDTHS}") from error


@click.command("coordcheck", epilog=EPILOG)
@click.argument("target", metavar="MODULE:FUNCTION")
@click.option(
    "--widths",
    metavar="N,N,…",
    default=WIDTHS,
    show_default=True,
    callback=whole_numbers,
    help="Widths to train at.",
)
@click.option(
    "--steps", type=click.IntRange(min=1), default=3, show_default=True, help="Updates a run."
)
@click.option(
    "--seeds", type=click.IntRange(min=1), default=3, show_default=True, help="Runs a width."
)
@click.option(
    "--optimizer",
    type=click.Choice(["adam", "adamw", "sgd"]),
    help="Instead of the module's own. [default: adam if it has none]",
)
@click.option(
    "--lr",
    type=click.FloatRange(min=0, min_open=True),
    default=1e-2,
    show_default=True,
    help="Learning rate of --optimizer.",
)
@click.option("--plot", metavar="FILE", type=click.Path(), help="Draw it: .png, .svg or .pdf.")
@json_option
def command(
    target: str,
    *,
    widths: list[int],
    steps: int,
    seeds: int,
    optimizer: str | None,
    lr: float,
    plot: str | None,
    as_json: bool,
) -> None:
    """Train a model at several widths and show how its updates grow with the width.

    MODULE:FUNCTION names a function of the width that returns a model; MODULE is imported from
    here, or is a Python file. The module's `batches` (an iterable, or a function that gives one) is
    what it is trained on; `optimizer` and `loss` are taken if they are there. All three may stand
    on the function instead: `build.batches = …`.

    An exponent is the slope of log RMS on log width. Under μP the effective updates have exponents
    near 0: a learning rate found on a small model then serves a large one. At +1, the update of a
    layer doubles when the width does.
    """
    module, make_model = find(target)
    offered = {name: offer(module, make_model, name) for name in ("batches", "optimizer", "loss")}
    if offered["batches"] is None:
        raise _wrong(
            f"{target} comes without data: add a function batches() to its module that yields "
            "(inputs, targets)"
        )
    check = _import_check()
    if plot is not None:
        check.need_plots(plot)  # before the training, not after it
    table = check.coordinate_check(
        make_model,
        widths,
        offered["batches"],
        optimizer=optimizer or offered["optimizer"] or "adam",
        lr=lr,
        steps=steps,
        seeds=seeds,
        loss=offered["loss"],
    )
    # First what was measured: it must not be lost, whatever becomes of the drawing.
    click.echo(table.to_json() if as_json else table.summary())
    if plot is not None:
        table.plot(plot)


def find(target: str) -> tuple[ModuleType, Callable[[int], Any]]:
    """The module and the function that a target names."""
    place, _, name = target.rpartition(":")
    if not place or not name:
        raise _wrong(f"expected MODULE:FUNCTION, as in my_model:build, got {target!r}")
    module = _import_file(Path(place)) if place.endswith(".py") else _import_named(place)
    made = getattr(module, name, None)
    if not callable(made):
        raise _wrong(f"{place} has no function {name!r} that makes a model of a width")
    return module, made


def offer(module: ModuleType, function: Callable[[int], Any], name: str) -> Any:
    """What stands on the function, else in its module, else None."""
    found = getattr(function, name, None)
    return getattr(module, name, None) if found is None else found


def _import_named(name: str) -> ModuleType:
    if "" not in sys.path:
        sys.path.insert(0, "")  # as `python -m` does: modules of this folder can be named
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise _no_torch() from error
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise _wrong(f"there is no module {name!r} to import from this folder") from error


def _import_file(path: Path) -> ModuleType:
    from importlib.util import module_from_spec, spec_from_file_location

    if not path.is_file():
        raise _wrong(f"there is no file {path}")
    spec = spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # dataclasses and pickle look there
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        if error.name == "torch":
            raise _no_torch() from error
        raise
    return module


def _import_check() -> Any:
    try:
        from torchvitals.coordcheck import check
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise _no_torch() from error
    return check


def _wrong(text: str) -> ConfigError:
    # The record room loads numpy, which `vitals --help` has no use for.
    from torchvitals.record.errors import ConfigError

    return ConfigError(text)


def _no_torch() -> MissingExtra:
    from torchvitals.record.errors import MissingExtra

    return MissingExtra(
        "the coordinate check trains models and needs torch, which is not installed here. Install "
        "it with: pip install torch"
    )
