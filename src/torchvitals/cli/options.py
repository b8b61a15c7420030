"""Options and arguments that several commands share."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

KINDS = (
    *("update", "gradient", "activation", "parameter", "optimizer", "summary", "scalar"),
    *("clock", "speed", "machine", "eval", "epoch", "category", "noise", "rank", "attention"),
    *("input", "output", "criterion", "amp", "probe"),
    *("gradient_before_clip", "activation_difference", "parameter_difference"),
)
"""Of the tensors and what is logged, and beside them."""


def check_pattern(
    _context: click.Context, option: click.Parameter, value: str | None
) -> str | None:
    """A regular expression that does not compile is a usage error."""
    try:
        re.compile(value or "")
    except re.error as error:
        raise click.BadParameter(f"{value!r} is not a regular expression: {error}") from error
    return value


json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
site_option = click.option(
    "--site",
    metavar="REGEX",
    callback=check_pattern,
    help="Only sites (layers, parameters) whose name has a match, e.g. 'blocks\\.3'.",
)
kind_option = click.option(
    "--kind",
    "kinds",
    multiple=True,
    type=click.Choice(KINDS),
    help="Only this kind of column; may be given several times.",
)
stat_option = click.option(
    "--stat",
    "stats",
    multiple=True,
    metavar="STAT",
    help="Only this stat (rms, max, zero_frac …); may be given several times.",
)
threshold_option = click.option(
    "--threshold",
    "thresholds",
    metavar="NAME=VALUE",
    multiple=True,
    help="Another limit than the default; may be given several times.",
)
run_argument = click.argument("run", metavar="RUN")


def echo_json(value: Any) -> None:
    """Print plain data as JSON."""
    from torchvitals.views.as_json import dumps

    click.echo(dumps(value))
