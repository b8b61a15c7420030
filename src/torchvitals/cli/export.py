"""`vitals export`: all values of a run as CSV, JSON lines or Parquet."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import click

from torchvitals.cli.options import (
    echo_json,
    json_option,
    kind_option,
    run_argument,
    site_option,
    stat_option,
)

if TYPE_CHECKING:
    from torchvitals.record import Key
    from torchvitals.views.records import LongChunk, WideChunk

EPILOG = """\b
Examples:
  vitals export runs/gpt --to csv -o gpt.csv
  vitals export runs/gpt --to jsonl --kind scalar | head
  vitals export runs/gpt --to csv --wide --kind scalar -o losses.csv
  vitals export runs/gpt --to parquet -o gpt.parquet
"""


class Format(Protocol):
    """What a file format offers."""

    def long(self, chunk: LongChunk) -> None:
        """Write the values of one column."""

    def wide(self, chunk: WideChunk) -> None:
        """Write some steps."""

    def empty(self, keys: list[Key], *, wide: bool) -> None:
        """Write what a file without values has."""

    def close(self) -> None:
        """Write what is left."""


@click.command("export", epilog=EPILOG)
@run_argument
@click.option("--to", type=click.Choice(["csv", "jsonl", "parquet"]), required=True, help="Format.")
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(dir_okay=False), help="Default: stdout."
)
@kind_option
@site_option
@stat_option
@click.option(
    "--wide", is_flag=True, help="A line a step, a column a key, instead of a line a value."
)
@json_option
def command(
    run: str,
    *,
    to: str,
    output: str | None,
    kinds: tuple[str, ...],
    site: str | None,
    stats: tuple[str, ...],
    wide: bool,
    as_json: bool,
) -> None:
    """Write the values of a run to a file or a pipe.

    Long format by default: step, time (seconds since the epoch), kind, site, stat, value; column
    after column. What was not measured is left out (empty in --wide CSV). Values that are not
    finite are kept: NaN, Infinity and -Infinity, as texts in JSON lines. With --json a summary of
    what was written is printed, which needs --output.
    """
    from torchvitals.cli.find_run import find_run
    from torchvitals.store import open_run
    from torchvitals.views.records import chosen_keys

    if output in (None, "-") and (to == "parquet" or as_json):
        reason = "Parquet is not written to a pipe" if to == "parquet" else "--json prints there"
        raise click.UsageError(f"{reason}; name a file with -o FILE.")
    with open_run(find_run(run)) as history:
        if output is not None and _same(output, history.path):
            raise click.UsageError(f"{output} is the run itself; name another file.")
        keys = chosen_keys(history, kinds=kinds, site=site, stats=stats)
        done = _write(history, keys, to=to, output=output, wide=wide)
    if as_json:
        echo_json({"run": history.path.parent, "format": to, "wide": wide, **done})
    elif output not in (None, "-"):
        from torchvitals.views import words

        what = f"{words.count(done['num_values'])} values of {words.plural(len(keys), 'column')}"
        click.echo(f"Wrote {what} to {output} ({words.size(done['size_bytes'])}).", err=True)


def _write(
    history: Any, keys: list[Key], *, to: str, output: str | None, wide: bool
) -> dict[str, Any]:
    from torchvitals.views.records import WIDE_STEPS, long_chunks, wide_chunks

    num_values = num_rows = 0
    with _target(to, output) as target:
        if wide:
            total = -(-len(history.steps()) // WIDE_STEPS)
            for some in _progress(wide_chunks(history, keys), total, show=output is not None):
                target.wide(some)
                num_values += int(some.measured.sum())
                num_rows += len(some.steps)
        else:
            for one in _progress(long_chunks(history, keys), len(keys), show=output is not None):
                target.long(one)
                num_values += len(one.steps)
            num_rows = num_values
        target.empty(keys, wide=wide)
    return {
        "output": output,
        "num_columns": len(keys),
        "num_rows": num_rows,
        "num_values": num_values,
        "size_bytes": Path(output).stat().st_size if output not in (None, "-") else None,
    }


@contextmanager
def _target(to: str, output: str | None) -> Iterator[Format]:
    """The format on its file. A file appears under its name when all of it is written."""
    if output in (None, "-"):
        target = _text_format(to, sys.stdout)
        yield target
        target.close()
        return
    from torchvitals.record.errors import StoreError

    final = Path(str(output))
    part = final.with_name(f"{final.name}.part")
    try:
        if to == "parquet":
            from torchvitals.views.export_parquet import ParquetFile

            parquet = ParquetFile(part)
            try:
                yield parquet
            finally:
                parquet.close()
        else:
            with part.open("w", encoding="utf-8", newline="") as file:
                target = _text_format(to, file)
                yield target
                target.close()
        part.replace(final)
    except OSError as error:
        part.unlink(missing_ok=True)
        if isinstance(error, StoreError):
            raise
        raise StoreError(f"can't write {final}: {error.strerror or error}") from error
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def _text_format(to: str, file: Any) -> Format:
    if to == "csv":
        from torchvitals.views.export_csv import CsvFile

        return CsvFile(file)
    from torchvitals.views.export_jsonl import JsonlFile

    return JsonlFile(file)


def _progress(chunks: Iterable[Any], total: int, *, show: bool) -> Iterable[Any]:
    """A bar on stderr while a file is written at a terminal; nothing in pipes."""
    if not (show and sys.stderr.isatty()):
        return chunks
    from rich.progress import track

    from torchvitals.views.terminal import Screen

    return track(
        chunks, description="Exporting", total=total, console=Screen(stderr=True), transient=True
    )


def _same(output: str, path: Path) -> bool:
    try:
        return os.path.samefile(output, path)
    except OSError:
        return False
