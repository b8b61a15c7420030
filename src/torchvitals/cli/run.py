"""`vitals run`: runs a training script as python does, and watches it."""

from __future__ import annotations

import click

EPILOG = """\b
Examples:
  vitals run train.py --lr 3e-4
  vitals run --run runs/gpt --every 5 train.py
  vitals run -m package.train --lr 3e-4
  vitals run torchrun --nproc-per-node 2 train.py
  torchrun --no-python --nproc-per-node 2 vitals run train.py

Options come before the script; what stands behind it is the script's. There is no --json: stdout
belongs to the script, and 'vitals show RUN --json' has the run.
"""


@click.command(
    "run",
    epilog=EPILOG,
    context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False},
)
@click.option(
    "--run", metavar="DIR", envvar="VITALS_RUN", help="The run's folder. [default: under ./runs]"
)
@click.option(
    "--every",
    metavar="N",
    type=click.IntRange(min=1),
    envvar="VITALS_EVERY",
    help="Measure the first step and every N-th. [default: 10]",
)
@click.option(
    "--guard",
    metavar="WORD",
    envvar="VITALS_GUARD",
    help="What to do about a bad step, as in watch(guard=…).",
)
@click.option("--ui", is_flag=True, envvar="VITALS_UI", help="Serve the page meanwhile.")
@click.option(
    "--stop-on",
    metavar="LEVEL",
    envvar="VITALS_STOP_ON",
    help="Stop at findings of this level, as in watch(stop_on=…).",
)
@click.option("-m", "is_module", is_flag=True, help="Run a module instead of a script.")
@click.argument("script")
@click.argument("args", nargs=-1, type=click.UNPROCESSED)
def command(
    *,
    run: str | None,
    every: int | None,
    guard: str | None,
    ui: bool,
    stop_on: str | None,
    is_module: bool,
    script: str,
    args: tuple[str, ...],
) -> None:
    """Run a training script and watch it: nothing in the script changes.

    Models and optimizers are found when an optimizer takes its first step, the loss is what
    backward() starts from. Exit code, signals, stdin and output are the script's own. At its end
    the diagnosis of the run goes to stderr. The options can be given as VITALS_RUN, VITALS_EVERY,
    VITALS_GUARD, VITALS_UI and VITALS_STOP_ON, too.
    """
    from torchvitals.launch.settings import Settings
    from torchvitals.launch.start import start

    settings = Settings(run=run, every=every, guard=guard, ui=ui, stop_on=stop_on)
    start(settings, [script, *args], is_module=is_module)
