"""A run written by a process that does as it is told: ``10`` writes ten steps, ``failed`` ends it.

Started as ``python told_writer.py FOLDER TOTAL_STEPS``; answers each line with one of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType

ROOT = Path(__file__).parents[2]


class ToldWriter:
    """That process, seen from a test."""

    def __init__(self, folder: Path, total_steps: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, str(folder), str(total_steps)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, word: str | int) -> None:
        """Returns when it is done and committed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().strip() == str(word)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(60)

    def __enter__(self) -> ToldWriter:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()


def main(folder: str, total_steps: str) -> None:
    from tests.views.made_runs import INFO
    from tests.views.paced_runs import STEP_S, paced, write_steps
    from torchvitals.store import RunWriter

    info = replace(INFO, name="told", watch={"every": 1, "total_steps": int(total_steps)})
    begun, done = time.time(), 0
    writer = RunWriter.create(folder, info)
    for line in sys.stdin:
        word = line.strip()
        if word.isdigit():
            steps = range(done + 1, done + int(word) + 1)
            done += int(word)
            # As if the run had gone on at its pace until now.
            write_steps(writer, steps, paced, start=begun - STEP_S * done)
            writer.commit()
        else:
            writer.close(word)
        print(word, flush=True)


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main(*sys.argv[1:])
