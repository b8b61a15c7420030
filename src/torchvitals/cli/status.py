"""`vitals status`: a run at a glance, followed until it ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from torchvitals.cli.options import echo_json, json_option

if TYPE_CHECKING:
    from rich.console import RenderableType

    from torchvitals.store import History
    from torchvitals.views.status import RunStatus
    from torchvitals.views.terminal import Screen

BREAK = 4.0
"""Pauses last at least so many times as long as a look at the run took: the training needs the
processor more."""

EPILOG = """\b
Examples:
  vitals status                    the run that is running under ./runs, until it ends
  vitals status gpt --interval 5   runs/gpt, a look every five seconds
  vitals status gpt --once         as it is now
  vitals status --json | jq .pace.progress.eta_s
"""


@click.command("status", epilog=EPILOG)
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--once", is_flag=True, help="Print it once instead of following the run.")
@click.option(
    "--interval",
    metavar="S",
    type=click.FloatRange(min=0.1),
    default=1.0,
    show_default=True,
    help="Seconds between two looks at the run.",
)
@json_option
@click.pass_context
def command(
    context: click.Context, run: str | None, *, once: bool, interval: float, as_json: bool
) -> None:
    """Follow a run from another terminal: how far, how well, how fast.

    RUN is a run's folder, its file, or a name under ./runs; without it, the newest run there that
    is running, or else the newest. On a terminal the screen is kept up to date until the run ends;
    Ctrl-C leaves, and the run goes on. Elsewhere, and with --once or --json, it is printed once.

    Exits with 1 when the run failed or was killed.
    """
    from torchvitals.cli.find_run import find_run, newest_run
    from torchvitals.store import open_run
    from torchvitals.views.status import status_of

    if run is None:
        path, why = newest_run()
        click.echo(f"{path}, {why}", err=True)
    else:
        path = find_run(run)
    with open_run(path) as history:
        if as_json:
            found = status_of(history)
            echo_json(found)
        else:
            from torchvitals.views.terminal import Screen

            screen = Screen()
            if once or not screen.is_terminal:
                found = look(history, screen)
                screen.show(drawn(found, screen))
            else:
                found = follow(history, screen, interval)
    if found.ended_badly:
        context.exit(1)


def follow(history: History, screen: Screen, interval: float) -> RunStatus:
    """Keep the screen up to date until the run ends, or until Ctrl-C."""
    from rich.live import Live

    from torchvitals.views.status import later

    # The state is taken before the look: what comes in between is seen by the next one.
    seen, took = _state(history, screen), 0.0
    found = look(history, screen)
    live = Live(drawn(found, screen), console=screen, auto_refresh=False)
    try:
        live.start(refresh=True)
        while found.status == "running":
            time.sleep(max(interval, BREAK * took))
            now = _state(history, screen)
            if now != seen:
                seen, begun = now, time.perf_counter()
                found = look(history, screen)
                took = time.perf_counter() - begun
            else:
                found = later(found, time.time())
            live.update(drawn(found, screen), refresh=True)
    except KeyboardInterrupt:
        pass  # leaving is not an error, and the run goes on
    finally:
        live.stop()
    return found


def look(history: History, screen: Screen) -> RunStatus:
    """The run as it is now, drawn lines as long as the screen takes them."""
    from torchvitals.views.status import status_of
    from torchvitals.views.status_text import spark_width

    return status_of(history, spark_width=spark_width(screen.width))


def drawn(found: RunStatus, screen: Screen) -> RenderableType:
    """As text."""
    from torchvitals.views.status_text import status_text

    return status_text(found, screen.width)


def _state(history: History, screen: Screen) -> tuple[int, str, int]:
    """Differs when there is something new to show. A run that is killed commits nothing."""
    return history.version(), history.status, screen.width
