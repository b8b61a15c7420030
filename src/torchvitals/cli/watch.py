"""`vitals watch`: follows a run, tells what goes wrong with it, and when it hangs or dies."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import click

from torchvitals.cli.options import threshold_option

if TYPE_CHECKING:
    from pathlib import Path

    from torchvitals.alerts import Alerts
    from torchvitals.cli.watch_told import Told
    from torchvitals.diagnosis import Watchdog
    from torchvitals.record import Event
    from torchvitals.rules.thresholds import Thresholds
    from torchvitals.store import History

BREAK = 100.0
"""Pauses last at least so many times as long as a look took: looking stays within 1 % of a
processor, as the diagnosis beside the training does."""
LEVELS = ("info", "warning", "error")

EPILOG = """\b
Examples:
  vitals watch                      the run that is running under ./runs, until it ends
  vitals watch gpt --wait 600       runs/gpt, which may begin within ten minutes
  vitals watch gpt --stall 300      it is stalled after five minutes without a step
  vitals watch gpt --alerts error   tell those of VITALS_ALERT_URLS, too
  vitals watch gpt --exit-on stalled || scancel $JOB
  vitals watch gpt --json | jq -r .finding.fix
"""


@click.command("watch", epilog=EPILOG)
@click.argument("run", metavar="[RUN]", required=False)
@click.option(
    "--wait",
    metavar="S",
    type=click.FloatRange(min=0),
    default=60.0,
    show_default=True,
    help="Seconds to wait for a run that has not begun.",
)
@click.option(
    "--interval",
    metavar="S",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks at the run.",
)
@click.option(
    "--stall",
    metavar="S",
    type=click.FloatRange(min=0, min_open=True),
    help="Seconds without a step after which it is stalled, whatever its steps usually take. "
    "[default: ten usual steps, and a minute]",
)
@threshold_option
@click.option(
    "--exit-on",
    metavar="LEVEL|RULE",
    help="Leave with 1 at the first finding of this level (info, warning, error) or worse, or of "
    "this rule (stalled).",
)
@click.option(
    "--alerts",
    "level",
    metavar="LEVEL",
    type=click.Choice(LEVELS),
    help="Tell those whom watch(alerts=…) would tell: findings from this level on.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document a line.")
@click.pass_context
def command(
    context: click.Context,
    run: str | None,
    *,
    wait: float,
    interval: float,
    stall: float | None,
    thresholds: tuple[str, ...],
    exit_on: str | None,
    level: str | None,
    as_json: bool,
) -> None:
    """Follow a run from another process, and hear of it when something goes wrong.

    RUN is a run's folder, its file, or a name under ./runs, and need not have begun; without it,
    the newest run there that is running, or else the newest. A finding is printed when it opens and
    when it is over. That the run hangs, or died, is one too. Findings come from the run's own
    diagnosis; where that is off, and with --threshold, the rules are asked from here. The run's
    file is only read. Ctrl-C leaves, and the run goes on.

    Exits with 1 when the run failed or died, ended with an error-level finding, or --exit-on says.
    """
    from torchvitals.alerts import Alerts
    from torchvitals.cli.find_run import newest_run
    from torchvitals.cli.watch_told import told
    from torchvitals.diagnosis import Watchdog
    from torchvitals.rules.thresholds import Thresholds, parse_option
    from torchvitals.store import open_run

    _check(exit_on)
    given = dict(map(parse_option, thresholds))
    # What is said of silence is asked from here anyway; other limits need the rules.
    asks = True if any(not name.startswith("stall_") for name in given) else None
    if stall is not None:
        given |= {"stall_factor": 0.0, "stall_least_s": stall}
    limits = Thresholds.make(given)
    alerts = None if level is None else Alerts(level=level)
    try:
        if run is None:
            path, why = newest_run()
            click.echo(f"{path}, {why}", err=True)
        else:
            path = _awaited(run, wait)
        with open_run(path) as history:
            dog = Watchdog(history, partial(open_run, path), thresholds=limits, asks=asks)
            with told(history, dog, as_json=as_json, stall=_stall_words(limits)) as out:
                code = follow(dog, out, history, interval=interval, exit_on=exit_on, alerts=alerts)
    except KeyboardInterrupt:
        return  # leaving is not an error, and the run goes on
    context.exit(code)


def follow(
    dog: Watchdog,
    out: Told,
    history: History,
    *,
    interval: float,
    exit_on: str | None,
    alerts: Alerts | None,
) -> int:
    """Look until the run ends, or what was waited for happens; gives the exit code."""
    info = history.info
    # A run that tells by itself is not told of twice; that it hangs or died it can't tell.
    tells = info.watch.get("alerts") is not None
    if alerts is not None:
        alerts.begin(info.name or history.path.parent.name)
    try:
        while True:
            begun, asked = time.process_time(), dog.spent_s
            leaves = False
            for event in dog.look():
                out.heard(event)
                leaves |= _is_asked_for(event, exit_on)
                if alerts is not None and (not tells or event.data["name"] == "stalled"):
                    alerts.event(event)
            if leaves or dog.status != "running":
                out.end()
                return int(leaves or dog.ended_badly)
            out.going()
            took = time.process_time() - begun - (dog.spent_s - asked)
            time.sleep(max(interval, BREAK * took))
    finally:
        dog.close()
        if alerts is not None:
            _last_word(alerts, history, "finished" if tells else dog.status)


def _last_word(alerts: Alerts, history: History, status: str) -> None:
    """Send what is left, and that the run failed; of its death the finding has told already."""
    if status == "failed":
        for event in history.events("error"):
            alerts.event(event)
    alerts.close(status if status == "failed" else "finished")


def _awaited(run: str, seconds: float) -> Path:
    """The run, as soon as there is one; what is waited for is said once."""
    from torchvitals.cli.find_run import await_run
    from torchvitals.record.errors import CorruptRun, RunNotFound

    try:
        return await_run(run, 0.0)
    except (RunNotFound, CorruptRun) as missing:  # a file in the making is empty at first
        if not seconds:
            raise
        near = f"{missing}".partition(" Did you mean")
        hint = "".join(near[1:])
        click.echo(f"Waiting up to {seconds:g} s for {run} to begin.{hint}", err=True)
    return await_run(run, seconds)


def _check(exit_on: str | None) -> None:
    from difflib import get_close_matches

    from torchvitals.rules.catalogue import NAMES
    from torchvitals.rules.plugged import plugged

    known = [*LEVELS, *NAMES, *(rule.name for rule in plugged())]
    if exit_on is None or exit_on in known:
        return
    near = get_close_matches(exit_on, known, n=1)
    raise click.BadParameter(
        f"{exit_on!r} is no level ({', '.join(LEVELS)}) and no rule"
        + (f"; did you mean {near[0]}?" if near else "; 'vitals explain' lists the rules."),
        param_hint="--exit-on",
    )


def _is_asked_for(event: Event, exit_on: str | None) -> bool:
    from torchvitals.record import Severity

    if exit_on is None or event.data["state"] == "resolved":
        return False
    if exit_on not in LEVELS:
        return bool(event.data["name"] == exit_on)
    return Severity(event.data["finding"]["severity"]).rank >= Severity(exit_on).rank


def _stall_words(limits: Thresholds) -> str:
    least = f"{limits.stall_least_s:g} s"
    if limits.stall_factor <= 0:
        return f"{least} without a step"
    return f"{least} without a step, or {limits.stall_factor:g} usual ones if that is longer"
