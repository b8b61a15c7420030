"""`vitals diagnose`: what is wrong with a run, where, since when, why, and what to do."""

from __future__ import annotations

import click

from torchvitals.cli.options import echo_json, json_option, run_argument, threshold_option

EPILOG = """\b
Examples:
  vitals diagnose gpt                       the run runs/gpt
  vitals diagnose runs/gpt --at 500         as it looked after step 500
  vitals diagnose runs/gpt --threshold dead_share=0.7
  vitals diagnose runs/gpt --json | jq '.findings[0].fix'
"""


@click.command("diagnose", epilog=EPILOG)
@run_argument
@click.option("--at", type=click.IntRange(min=0), help="As it looked after this step.")
@threshold_option
@json_option
@click.pass_context
def command(
    context: click.Context,
    run: str,
    *,
    at: int | None,
    thresholds: tuple[str, ...],
    as_json: bool,
) -> None:
    """Say what is wrong with a run: the cause first, its evidence, and what to do.

    RUN is a run's folder, its file, or a name under ./runs. Symptoms stand under the cause that
    explains them. Rules that could not judge are listed, with how to enable them in --json. Limits
    come from pyproject.toml ([tool.torchvitals.thresholds]) and --threshold.

    Exits with 1 when there is an error-level finding.
    """
    from torchvitals.cli.find_run import find_run
    from torchvitals.diagnosis import diagnose
    from torchvitals.record import Severity
    from torchvitals.rules.thresholds import Thresholds, parse_option
    from torchvitals.store import open_run

    limits = Thresholds.make(dict(map(parse_option, thresholds)))
    path = find_run(run)
    with open_run(path) as history:
        found = diagnose(history, thresholds=limits, at=at)
    if as_json:
        echo_json(found.to_json())
    else:
        from torchvitals.views.findings_text import diagnosis_text
        from torchvitals.views.terminal import Screen

        screen = Screen()
        screen.show(diagnosis_text(found, screen.width, path=path))
    if found.worst is Severity.ERROR:
        context.exit(1)
