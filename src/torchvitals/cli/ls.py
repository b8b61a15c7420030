"""`vitals ls`: the runs of a folder."""

from __future__ import annotations

import click

from torchvitals.cli.options import echo_json, json_option

EPILOG = """\b
Examples:
  vitals ls                  the runs under ./runs
  vitals ls /data/runs       those of another folder
  vitals ls --json | jq '.[] | select(.status == "failed") | .name'
"""


@click.command("ls", epilog=EPILOG)
@click.argument("folder", metavar="[DIR]", default="runs", type=click.Path())
@json_option
def command(folder: str, *, as_json: bool) -> None:
    """List the runs below DIR (default: runs), the newest last.

    The drawn line is the loss; × stands for a stretch with a NaN or Inf in it. Files that can't be
    read are listed with what is wrong with them.
    """
    from pathlib import Path

    from torchvitals.views.listing import listing

    if not Path(folder).is_dir() and folder != "runs":
        raise click.BadParameter(f"{folder!r} is not a folder.", param_hint="DIR")
    lines = listing(folder)
    if as_json:
        echo_json(lines)
        return
    if not lines:
        click.echo(
            f"There are no runs in {folder}. Make one with 'vitals demo', or in your training:\n\n"
            f'    with torchvitals.watch(model, optimizer, run="{folder}/first") as monitor:'
        )
        return
    from torchvitals.views.terminal import Screen, listing_text

    screen = Screen()
    screen.show(listing_text(lines, screen.width))
