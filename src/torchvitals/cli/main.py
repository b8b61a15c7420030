"""`vitals`: finds the command, turns errors into one clear line, and ends quietly.

Commands are imported when they are called (or listed), and import what they need when they run:
``vitals --help`` loads neither numpy nor torch.
"""

from __future__ import annotations

import os
import sys
from importlib import import_module
from typing import Any, NoReturn

import click

from torchvitals import __version__

COMMANDS = (
    "demo",
    "run",
    "ui",
    "ls",
    "status",
    "watch",
    "show",
    "diagnose",
    "explain",
    "report",
    "export",
    "verify",
    "doctor",
    "coordcheck",
)
"""In the order in which a newcomer meets them."""

EXIT_PROBLEM = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


class Vitals(click.Group):
    """The group of all commands."""

    def list_commands(self, _context: click.Context) -> list[str]:
        """All names, in the order of `COMMANDS`."""
        return list(COMMANDS)

    def get_command(self, _context: click.Context, name: str) -> click.Command | None:
        """Import the file of that name; its function is called `command`."""
        if name not in COMMANDS:
            return None
        found: click.Command = import_module(f"torchvitals.cli.{name}").command
        return found

    def resolve_command(
        self, context: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """As click does it, with the closest names when there is no such command."""
        try:
            return super().resolve_command(context, args)
        except click.UsageError as error:
            from difflib import get_close_matches

            near = get_close_matches(args[0], COMMANDS, n=1)
            raise click.UsageError(
                f"There is no command {args[0]!r}."
                + (f" Did you mean {near[0]}?" if near else f" There are {', '.join(COMMANDS)}."),
                context,
            ) from error

    def invoke(self, context: click.Context) -> Any:
        """Run the command; what torchvitals raises on purpose becomes one line and an exit code."""
        try:
            return super().invoke(context)
        except (click.ClickException, click.exceptions.Exit, click.Abort):
            raise
        except BrokenPipeError as error:
            raise PipeClosed from error
        except Exception as error:
            from torchvitals.record.errors import VitalsError

            if isinstance(error, VitalsError):
                raise Trouble(error) from error
            raise


class PipeClosed(Exception):
    """The reader (head, less) has seen enough. click would make an exit code 1 of it."""


class Trouble(click.ClickException):
    """A VitalsError, shown as a sentence."""

    def __init__(self, error: Exception) -> None:
        from torchvitals.record.errors import ConfigError, RunExists, RunNotFound, UnknownKey

        super().__init__(str(error))
        self._wrong_input = isinstance(error, ConfigError | RunExists | RunNotFound | UnknownKey)

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click has a plain attribute
        """What was asked for is wrong, or it is right and there is a problem."""
        return EXIT_USAGE if self._wrong_input else EXIT_PROBLEM

    def show(self, _file: Any = None) -> None:
        """One line on stderr."""
        click.echo(f"vitals: {self.format_message()}", err=True)


EPILOG = """\b
Examples:
  vitals demo                  a small training with a fault, its diagnosis, and again fixed
  vitals run train.py          watch a training script, unchanged
  vitals ui                    the runs under ./runs in your browser, live
  vitals ls                    the same as a list
  vitals status                follow the run that is running
  vitals watch                 hear of it when something goes wrong, or it hangs or dies
  vitals show runs/gpt         how a run is doing, the worst layers first
  vitals diagnose runs/gpt     what is wrong with it, and what to do
  vitals report runs/gpt       all of that as one file, to send or to keep
  vitals export runs/gpt --to csv -o gpt.csv

A run is made by torchvitals.watch(model, optimizer) around your training loop.
Exit codes: 0 all well, 1 a problem was found, 2 the command was called wrongly.
"""


@click.command(cls=Vitals, epilog=EPILOG, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "-V", "--version", message="torchvitals %(version)s")
def vitals() -> None:
    """Vital signs for PyTorch training: look at recorded runs."""


def main() -> NoReturn:
    """The entry point of the command line."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that knows no blocks shows question marks instead of failing.
            stream.reconfigure(errors="replace")
    try:
        code = vitals.main(prog_name="vitals", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        error.show()
        code = error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("vitals: interrupted", err=True)
        code = EXIT_INTERRUPTED
    except (PipeClosed, BrokenPipeError):
        # Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    sys.exit(code if isinstance(code, int) else 0)


if __name__ == "__main__":
    main()
