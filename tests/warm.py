"""`python …` in a process of its own that has torch loaded already: five seconds less each time.

A server loads torch once and forks for every request. What runs is a process like any other, with
its own folder, environment, arguments, streams, exit code and end; only what torch does while it is
imported has happened before. For tests of that, and of how a process starts, there is `subprocess`.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import tempfile
import types
import warnings
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

Done = subprocess.CompletedProcess[str]


class Running:
    """A process that was started."""

    def __init__(self, server: subprocess.Popen[str], request: dict[str, Any], room: Any) -> None:
        self._server, self._request, self._room = server, request, room

    def wait(self) -> Done:
        """Its end."""
        assert self._server.stdout is not None
        answer = self._server.stdout.readline()
        status = os.waitstatus_to_exitcode(int(answer))
        out, err = (Path(self._request[name]).read_text() for name in ("out", "err"))
        self._room.cleanup()
        return subprocess.CompletedProcess(self._request["arguments"], status, out, err)


def start(
    arguments: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str] | None = None,
    stdin: str = "",
    strict: bool = False,
    timeout: int = 300,
) -> Running:
    """`python script …` or `python -c code …`; one at a time. `strict`: with `-W error`.

    What takes longer than `timeout` seconds is killed, as its exit code says.
    """
    room = tempfile.TemporaryDirectory()
    given, out, err = (Path(room.name, name) for name in ("in", "out", "err"))
    given.write_text(stdin)
    request = {
        "arguments": list(map(str, arguments)),
        "cwd": str(cwd),
        "env": dict(os.environ if env is None else env),
        "strict": strict,
        "timeout": timeout,
        "in": str(given),
        "out": str(out),
        "err": str(err),
    }
    server = _server()
    assert server.stdin is not None
    server.stdin.write(json.dumps(request) + "\n")
    server.stdin.flush()
    return Running(server, request, room)


def run(arguments: Sequence[str], **options: Any) -> Done:
    """The same, with its end waited for."""
    return start(arguments, **options).wait()


@cache
def _server() -> subprocess.Popen[str]:
    server = subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    atexit.register(_end, server)
    return server


def _end(server: subprocess.Popen[str]) -> None:
    with server:
        server.kill()


def _become(request: dict[str, Any]) -> None:
    """What the interpreter and the shell do before a script runs."""
    signal.alarm(request["timeout"])
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    for number, (name, flags) in enumerate(
        (("in", os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("err", os.O_WRONLY | os.O_CREAT))
    ):
        os.dup2(os.open(request[name], flags), number, inheritable=True)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115  for the life of the process
    action = "error" if request["strict"] else os.environ.get("PYTHONWARNINGS")
    if action:
        sys.warnoptions[:] = [action]
        warnings.resetwarnings()
        warnings.simplefilter(action)  # type: ignore[arg-type]


def _execute(arguments: list[str]) -> None:
    first, *others = arguments
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    if first == "-c":
        code, *others = others
        sys.argv, sys.path[0] = ["-c", *others], ""
        exec(compile(code, "<string>", "exec"), main.__dict__)
    else:
        sys.argv, sys.path[0] = arguments, str(Path(first).resolve().parent)
        main.__file__ = first
        exec(compile(Path(first).read_text(), first, "exec"), main.__dict__)


def _serve() -> None:
    """Returns in the children only, each of which then runs what was asked for."""
    while request := sys.stdin.readline():
        child = os.fork()
        if not child:
            asked = json.loads(request)
            _become(asked)
            _execute(asked["arguments"])
            return
        _, status = os.waitpid(child, 0)
        print(status, flush=True)


if __name__ == "__main__":
    _serve()
