"""`vitals report`: a run as one file that opens in any browser, offline."""

from __future__ import annotations

from pathlib import Path

import click

from torchvitals.cli.options import echo_json, json_option, run_argument

EPILOG = """\b
Examples:
  vitals report gpt                         writes gpt.html
  vitals report runs/gpt -o report.html     to send, or to keep beside the results
"""


@click.command("report", epilog=EPILOG)
@run_argument
@click.option(
    "-o",
    "--output",
    metavar="FILE",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: the run's name with .html, here.",
)
@json_option
def command(run: str, *, output: Path | None, as_json: bool) -> None:
    """Write a run's findings, heatmaps and key charts as one HTML file.

    It is the page of `vitals ui` with what it shows of this run inside: it needs no server and no
    network, and asks for nothing. Findings have their evidence; curves have at most 600 points,
    heatmaps 400; distributions are those of layers that findings name, and a few more.
    """
    from torchvitals.cli.find_run import find_run
    from torchvitals.dashboard.report import report
    from torchvitals.record.errors import StoreError
    from torchvitals.store import open_run
    from torchvitals.views import words

    path = find_run(run)
    with open_run(path) as history:
        final = output if output is not None else Path(f"{history.path.parent.name}.html")
        if final.exists() and final.samefile(history.path):
            raise click.UsageError(f"{final} is the run itself; name another file.")
        text = report(history)
    part = final.with_name(f"{final.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(final)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(f"can't write {final}: {error.strerror or error}") from error
    size = final.stat().st_size
    if as_json:
        echo_json({"run": path, "output": final, "size_bytes": size})
    else:
        click.echo(f"Wrote {final} ({words.size(size)}).", err=True)
