"""How a watched script ends: its traceback without our frames, then what the run came to."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torchvitals.store.history import History

log = logging.getLogger("torchvitals")

OURS = str(Path(__file__).parents[1]) + os.sep


def at_the_end(failed: Callable[[BaseException], None], finish: Callable[[], None]) -> None:
    """Call `failed` with the exception the script died of, and `finish` when it is over."""
    before = sys.excepthook
    interrupted = False

    def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        nonlocal interrupted
        interrupted = isinstance(error, KeyboardInterrupt)
        trace = sys.last_traceback = cleaned(error, trace)
        before(kind, error, trace)
        failed(error)

    def end() -> None:
        finish()
        if interrupted:
            remember_the_interrupt()

    sys.excepthook = show
    atexit.register(end)


def remember_the_interrupt() -> None:
    """Let the process end by SIGINT, as it would have.

    The interpreter notes that a KeyboardInterrupt ended the program, and forgets it when any other
    text is compiled and run: imports of ours do that. Running a text that is interrupted makes it
    note that again.
    """
    with suppress(KeyboardInterrupt):
        exec("raise KeyboardInterrupt")


def cleaned(error: BaseException, trace: TracebackType | None) -> TracebackType | None:
    """The traceback without our frames; those of the exceptions behind it lose theirs, too."""
    seen: set[int] = set()
    behind = [error.__cause__, error.__context__]
    while behind:
        other = behind.pop()
        if other is not None and id(other) not in seen:
            seen.add(id(other))
            other.__traceback__ = without_ours(other.__traceback__)
            behind += [other.__cause__, other.__context__]
    error.__traceback__ = without_ours(trace)
    return error.__traceback__


def without_ours(trace: TracebackType | None) -> TracebackType | None:
    """The same frames but ours; all of them when the innermost is ours: that one is our mistake."""
    frames: list[TracebackType] = []
    while trace is not None:
        frames.append(trace)
        trace = trace.tb_next
    if not frames or _is_ours(frames[-1]):
        return frames[0] if frames else None
    kept: TracebackType | None = None
    for one in reversed(frames):
        if not _is_ours(one):
            kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept


def _is_ours(trace: TracebackType) -> bool:
    return trace.tb_frame.f_code.co_filename.startswith(OURS)


def conclude(runs: Sequence[Path]) -> None:
    """Say what the last run came to, on stderr: stdout is the script's."""
    from torchvitals.store.history import open_run
    from torchvitals.views.terminal import Screen

    screen = Screen(stderr=True)
    try:
        with open_run(runs[-1]) as history:
            screen.show("", conclusion(history, runs[-1], screen.width))
        screen.show("", *(f"vitals show {path}" for path in runs))
    except BrokenPipeError:
        return
    except Exception as error:  # the script is done; this is not its failure
        log.warning("torchvitals: the run %s can't be shown: %s", runs[-1], error)


def conclusion(history: History, path: Path, width: int) -> Any:
    """The diagnosis, as `vitals diagnose` prints it."""
    from torchvitals.diagnosis import diagnose
    from torchvitals.views.findings_text import diagnosis_text

    return diagnosis_text(diagnose(history), width, path=path)
