"""`vitals doctor`: what is available here, and what watching costs on this machine."""

from __future__ import annotations

import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from torchvitals.cli.options import echo_json, json_option

if TYPE_CHECKING:
    from collections.abc import Iterator

SECONDS = 2.0
LEVELS = ("baseline", "avx2", "avx512")

EPILOG = """\b
Examples:
  vitals doctor
  vitals doctor --no-measure        without the two seconds of training
  vitals doctor --json | jq .kernel.simd
"""


@click.command("doctor", epilog=EPILOG)
@click.option("--measure/--no-measure", default=True, help="Measure the overhead (2 seconds).")
@json_option
def command(*, measure: bool, as_json: bool) -> None:
    """Say what is available here: kernel, threads, torch, extras; measure the overhead.

    The measurement trains a tiny model with and without the monitor, in turns. Of so short a step
    the monitor takes a far higher share than of a real one.
    """
    found = examine()
    if measure and found["torch"] is not None:
        from torchvitals.cli.doctor_overhead import measure_overhead

        found["overhead"] = measure_overhead(SECONDS)
    if as_json:
        echo_json(found)
        return
    from rich.table import Table

    from torchvitals.views.terminal import Screen

    screen = Screen()
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in sentences(found):
        grid.add_row(name, text)
    screen.show(grid)


def examine() -> dict[str, Any]:
    """Everything but the measurement, as plain data."""
    import torchvitals

    torch = _torch()
    return {
        "torchvitals": {
            "version": torchvitals.__version__,
            "path": str(Path(torchvitals.__file__).parent),
        },
        "python": {"version": platform.python_version(), "path": sys.executable},
        "platform": platform.platform(),
        "numpy": _version("numpy"),
        "zstd": _zstd(),
        "torch": None if torch is None else _torch_facts(torch),
        "kernel": _kernel_without_torch() if torch is None else _kernel(),
        "extras": list(_extras()),
        "overhead": None,
    }


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        return None
    return torch


def _torch_facts(torch: Any) -> dict[str, Any]:
    from torchvitals.stats.native.library import pool

    return {
        "version": str(torch.__version__),
        "threads": torch.get_num_threads(),
        "shared_pool": pool() is not None,
        "gpus": [torch.cuda.get_device_name(k) for k in range(torch.cuda.device_count())],
    }


def _kernel() -> dict[str, Any]:
    from torchvitals.stats.backend import choose_backend
    from torchvitals.stats.native.library import kernel, simd
    from torchvitals.stats.triton.usable import trouble

    library, level = kernel(), simd()
    found = {
        **_kernel_without_torch(),
        "simd": level,
        "usable": [],
        "backend": choose_backend().name,
        "triton": {"version": _version("triton"), "trouble": trouble()},
    }
    if library is not None and level is not None:
        found["usable"] = [name for name in LEVELS if library.torchvitals_use(name.encode())]
        library.torchvitals_use(level.encode())
    return found


def _kernel_without_torch() -> dict[str, Any]:
    """Whether it was built; it is opened together with torch only."""
    import torchvitals

    folder = Path(torchvitals.__file__).parent / "stats" / "native"
    try:
        from importlib.util import find_spec

        spec = find_spec("torchvitals.stats.native._kernel")
    except ImportError:
        spec = None
    path = spec.origin if spec is not None else next(map(str, folder.glob("_kernel*.so")), None)
    return {"built": path is not None, "path": path, "simd": None, "usable": [], "backend": None}


def _zstd() -> str | None:
    if sys.version_info >= (3, 14):
        return "compression.zstd"
    version = _version("backports.zstd")
    return None if version is None else f"backports.zstd {version}"


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _extras() -> Iterator[dict[str, Any]]:
    """The extras this installation knows, and whether what they need is there."""
    try:
        lines = metadata.requires("torchvitals") or []
    except metadata.PackageNotFoundError:
        return
    needs: dict[str, list[str]] = {}
    for line in lines:
        match = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        if match and match[1] != "dev":
            needs.setdefault(match[1], []).append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    for extra, packages in needs.items():
        versions = {package: _version(package) for package in packages}
        yield {
            "name": extra,
            "installed": all(versions.values()),
            "packages": versions,
            "pip": f"pip install torchvitals[{extra}]",
        }


def sentences(found: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """(what, in words), a line each."""
    own, torch, kernel = found["torchvitals"], found["torch"], found["kernel"]
    yield "torchvitals", f"{own['version']} in {own['path']}"
    yield "python", f"{found['python']['version']} ({found['python']['path']})"
    yield "platform", found["platform"]
    yield "numpy", found["numpy"] or "not installed"
    yield "zstd", found["zstd"] or "not installed; run files can't be read: pip install torchvitals"
    if torch is None:
        yield "torch", "not installed: runs can be read, shown and exported, not recorded"
        yield "", "to record runs: pip install torch"
        yield "kernel", f"built: {kernel['path']}" if kernel["built"] else "not built"
    else:
        gpus = f", {', '.join(torch['gpus'])}" if torch["gpus"] else ", no GPU"
        yield "torch", torch["version"] + gpus
        yield from _kernel_sentences(kernel, torch)
    for extra in found["extras"]:
        versions = ", ".join(f"{name} {v}" for name, v in extra["packages"].items() if v)
        text = versions if extra["installed"] else f"not installed: {extra['pip']}"
        yield f"[{extra['name']}]", text
    if found["overhead"] is not None:
        yield from _overhead_sentences(found["overhead"])


def _kernel_sentences(kernel: dict[str, Any], torch: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if kernel["simd"] is None:
        yield "kernel", "not built here: torch's own operators serve, slower"
        yield "", "with a C compiler: pip install --force-reinstall --no-deps torchvitals"
    else:
        others = [name for name in kernel["usable"] if name != kernel["simd"]]
        also = f" (also there: {', '.join(others)})" if others else ""
        yield "kernel", f"{kernel['simd']}{also}, {kernel['path']}"
    yield "backend", kernel["backend"]
    gpu = kernel["triton"]
    if gpu["trouble"] is None:
        yield "on a GPU", f"triton {gpu['version']}"
    else:
        yield "on a GPU", f"torch's own operators, not triton: {gpu['trouble']}"
    pool = (
        "borrowed from torch's pool"
        if torch["shared_pool"]
        else "torch's pool was not found: 1 is used"
    )
    yield "threads", f"{torch['threads']}, {pool}"


def _overhead_sentences(overhead: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if overhead["added_us"] < 0:
        yield "overhead", "too small to be seen beside the other programs that run here just now"
        return
    yield (
        "overhead",
        f"{overhead['plain_us']:.0f} µs a step without, {overhead['watched_us']:.0f} µs with "
        f"watch(every=1): {overhead['added_us']:+.0f} µs, {100 * overhead['added_frac']:+.0f} %",
    )
    yield (
        "",
        f"of a tiny model ({overhead['num_parameters']:,} parameters, one thread), every step "
        "measured; of a real step the share is far lower, and with every=10 a tenth of that",
    )
