"""What is known about a run when it starts: code version, packages, machine, settings."""

from __future__ import annotations

import dataclasses
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

import torch
from torch.optim import Optimizer

from torchvitals.probes.tree import Tree
from torchvitals.record import ConfigError, GroupInfo, RunInfo

GIT_TIMEOUT_S = 2.0


def describe_run(
    name: str,
    tree: Tree,
    optimizers: Sequence[Optimizer],
    *,
    config: Any,
    watch: Mapping[str, Any],
) -> RunInfo:
    """Everything worth keeping about this run."""
    return RunInfo(
        name=name,
        config=plain_config(config),
        watch=dict(watch),
        command=tuple(sys.orig_argv),
        directory=str(Path.cwd()),
        git=git_state(),
        packages=packages(),
        device=machine(),
        models=tree.describe(),
        groups=tuple(groups(tree, optimizers)),
    )


def plain_config(config: Any) -> dict[str, Any]:
    """The user's settings as a dict of JSON values: from a dict, a dataclass or a namespace."""
    if config is None:
        return {}
    if isinstance(config, Mapping):
        found: Mapping[Any, Any] = config
    elif dataclasses.is_dataclass(config) and not isinstance(config, type):
        found = dataclasses.asdict(config)
    elif hasattr(config, "__dict__"):
        found = vars(config)
    else:
        raise ConfigError(
            f"config must be a dict, a dataclass or a namespace, got {type(config).__name__}"
        )
    return {str(key): _plain(value) for key, value in found.items()}


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(inner) for inner in value]
    return str(value)


def git_state() -> dict[str, Any]:
    """Commit, branch and whether files were changed; empty outside a repository."""

    def ask(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments],
            capture_output=True,
            text=True,
            timeout=GIT_TIMEOUT_S,
            check=True,
        ).stdout.strip()

    try:
        return {
            "commit": ask("rev-parse", "HEAD"),
            "branch": ask("rev-parse", "--abbrev-ref", "HEAD"),
            "dirty": bool(ask("status", "--porcelain", "--untracked-files=no")),
        }
    except (OSError, subprocess.SubprocessError):
        return {}


def packages() -> dict[str, str]:
    """Installed packages and their versions."""
    found = dict(map(_name_and_version, distributions()))
    named = [(name, version) for name, version in found.items() if name and version]
    return dict(sorted(named, key=lambda item: item[0].lower()))


def _name_and_version(package: Distribution) -> tuple[str, str]:
    # `package.metadata` parses its whole text as an e-mail: a third of a second for all packages.
    text = package.read_text("METADATA") or package.read_text("PKG-INFO") or ""
    head = dict(line.partition(": ")[::2] for line in text.partition("\n\n")[0].splitlines())
    return head.get("Name", ""), head.get("Version", "")


def machine() -> dict[str, Any]:
    """Host, processor, threads and accelerators."""
    found: dict[str, Any] = {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "python": platform.python_version(),
        "cpus": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }
    if torch.cuda.is_available():
        found["gpus"] = [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())]
    return found


def groups(tree: Tree, optimizers: Sequence[Optimizer]) -> list[GroupInfo]:
    """The parameter groups, with names instead of tensors."""
    names = {id(site.parameter): site.name for site in tree.parameters}
    return [
        GroupInfo(
            optimizer=type(optimizer).__name__,
            index=index,
            parameters=tuple(names.get(id(p), "(not in the model)") for p in group["params"]),
            options={k: _plain(v) for k, v in group.items() if k != "params"},
        )
        for optimizer in optimizers
        for index, group in enumerate(optimizer.param_groups)
    ]
