"""`vitals verify`: whether a run file is as it was written."""

from __future__ import annotations

import click

from torchvitals.cli.options import echo_json, json_option, run_argument

EPILOG = """\b
Examples:
  vitals verify runs/gpt
  vitals verify runs/gpt/run.vitals --json
"""


@click.command("verify", epilog=EPILOG)
@run_argument
@json_option
def command(run: str, *, as_json: bool) -> None:
    """Check every byte of a run file: checksums, sizes, and that all parts are there.

    Exit code 1 when something is wrong; each problem is one sentence.
    """
    from torchvitals.cli.find_run import find_run
    from torchvitals.cli.main import EXIT_PROBLEM
    from torchvitals.store import verify
    from torchvitals.views import words

    report = verify(find_run(run))
    if as_json:
        echo_json({"ok": report.ok, **_fields(report)})
    elif report.ok:
        parts = ", ".join(
            words.plural(num, table.removesuffix("s"))
            for table, num in report.counts.items()
            if num
        )
        click.echo(f"{report.path} is as it was written: {parts}.")
    else:
        click.echo(f"{report.path} has {words.plural(len(report.problems), 'problem')}:")
        for problem in report.problems:
            click.echo(f"  {problem}")
    if not report.ok:
        raise click.exceptions.Exit(EXIT_PROBLEM)


def _fields(report: object) -> dict[str, object]:
    from torchvitals.views.as_json import plain

    fields: dict[str, object] = plain(report)
    return fields
