"""Becomes the script's own interpreter, with what watches it loaded before the script begins.

`python train.py` is executed in place of this process: same process id, standard streams, terminal
and parent. The folder `injected/` goes in front of PYTHONPATH, so that the interpreter's `site`
finds our `sitecustomize` there; that one puts the path and the environment back as they were.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from torchvitals.launch.settings import CARRIER, Settings
from torchvitals.record.errors import ConfigError, RunExists

INJECTED = Path(__file__).parent / "injected"

LAUNCHERS = {
    "torchrun": "torch.distributed.run",
    "accelerate": "accelerate.commands.accelerate_cli",
}
"""Programs that start the training in processes of their own, and the modules they are."""
LAUNCHER_MODULES = frozenset(
    {*LAUNCHERS.values(), "torch.distributed.launch", "accelerate.commands.launch"}
)


def start(settings: Settings, target: Sequence[str], *, is_module: bool) -> NoReturn:
    """Run the script (or module) with its arguments, watched. Does not come back.

    Raises:
        ConfigError: there is no such script, or it can't be watched.
    """
    program, *arguments = target
    if is_module:
        is_launcher, what = program in LAUNCHER_MODULES, ["-m", program]
    elif not Path(program).exists() and program in LAUNCHERS and shutil.which(program):
        is_launcher, what = True, ["-m", LAUNCHERS[program]]
    else:
        is_launcher, what = False, [_script(program)]
    if sys.flags.ignore_environment or sys.flags.no_site:
        raise ConfigError("vitals run does not work under python -E, -I or -S: it comes in by site")
    if settings.run is not None and "RANK" not in os.environ and _is_run(settings.run):
        # Told now, not at the first step, from when on the script would run unwatched.
        raise RunExists(f"{settings.run} is a run already; name another folder with --run")
    path = os.environ.get("PYTHONPATH")
    settings = replace(settings, python_path=path, launcher=is_launcher)
    environment = {
        **os.environ,
        CARRIER: settings.dump(),
        "PYTHONPATH": os.pathsep.join([str(INJECTED), *([path] if path else [])]),
    }
    command = [sys.executable, *interpreter_options(), *what, *arguments]
    sys.stdout.flush()
    sys.stderr.flush()
    if os.name == "nt":  # there a process can't become another one
        sys.exit(subprocess.call(command, env=environment))
    os.execve(sys.executable, command, environment)


def interpreter_options() -> list[str]:
    """Options that this interpreter was started with (`python -X dev …`): the script gets them."""
    found: list[str] = []
    words = iter(sys.orig_argv[1:])
    for word in words:
        if not word.startswith("-") or word[:2] in ("-m", "-c"):
            break
        found.append(word)
        if word in ("-W", "-X"):
            found += [next(words, "")]
    return found


def _is_run(folder: str) -> bool:
    from torchvitals.store.connect import run_file

    return run_file(Path(folder)).exists()


def _script(program: str) -> str:
    path = Path(program)
    if path.suffix == ".ipynb":
        raise ConfigError(
            f"{program} is a notebook, and vitals run watches scripts; in a notebook, put "
            "torchvitals.watch(model, optimizer) around the loop"
        )
    # As for python itself, a folder or a zip with a __main__.py is a program, too.
    if not path.exists():
        raise ConfigError(f"there is no script {program!r} here; modules are run with -m")
    return program
