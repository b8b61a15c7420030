"""docs/cli.md speaks of every command and every option, and shows each command."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest

from torchvitals.cli.main import COMMANDS, vitals

PAGE = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
SECTIONS = dict(re.findall(r"^## `vitals (\w+)`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL))


def command(name: str) -> click.Command:
    found = vitals.get_command(click.Context(vitals), name)
    assert found is not None
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_is_documented(name: str) -> None:
    for parameter in command(name).params:
        if isinstance(parameter, click.Option):
            for option in (*parameter.opts, *parameter.secondary_opts):
                assert f"`{option}" in SECTIONS[name], f"docs/cli.md: vitals {name} {option}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_shown_with_its_output(name: str) -> None:
    shown = re.findall(
        r"^```console\n\$ vitals (\w+)[^\n]*\n(.*?)^```", SECTIONS[name], re.M | re.S
    )
    assert any(shown_name == name and output.strip() for shown_name, output in shown)


def test_no_section_without_a_command() -> None:
    assert sorted(SECTIONS) == sorted(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_options_that_do_not_exist_are_not_documented(name: str) -> None:
    known = {
        option
        for one in COMMANDS
        for parameter in command(one).params
        if isinstance(parameter, click.Option)
        for option in (*parameter.opts, *parameter.secondary_opts)
    } | {"--help", "--version", "-h", "-V"}
    for option in re.findall(r"`(--?[a-z-]+)", SECTIONS[name]):
        assert option in known, option
