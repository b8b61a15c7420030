"""The scripts of the gallery: run both ways, and what they print told apart from what may vary.

VITALS_GALLERY=1 writes the scripts and what they print into docs/gallery.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.cli.processes import environment

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples" / "gallery"
PAGES = ROOT / "docs" / "gallery"
WRITES = os.environ.get("VITALS_GALLERY") == "1"

FINDINGS = {
    "loss_not_decreasing": "no_effective_step",
    "loss_spike": "loss_spike",
    "validation_increasing": "overfitting",
    "layer_not_learning": "orphan_parameter",
    "explosion": "exploding_gradients",
    "vanishing": "vanishing_gradients",
}
"""What each script is an example of, in the order of the index."""

BOTH = """
import runpy, sys
script = sys.argv[1]
for options in ([], ["--fixed"]):
    sys.argv = [script, *options]
    runpy.run_path(script, run_name="__main__")
    print("<end>")
"""
"""One process for both: half of the time goes into the import of torch."""

FENCE = re.compile(r"^```(?P<language>\w+)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
HEAD = re.compile(r"^[✗!·] (error|warning|info)  (\w+)  (.+?)(?: and \d+ more)? · ")
NUMBER = re.compile(r"\d+(?:\.\d+)?(?:e-?\d+)?")


@dataclass(frozen=True)
class Told:
    """What a finding must be on every machine: the numbers in its evidence may differ."""

    severity: str
    name: str
    site: str
    """The first one."""
    fix: str
    """With # for its numbers."""


def run(name: str, folder: Path) -> tuple[str, str]:
    """What the script prints, with the mistake and without."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", BOTH, str(SCRIPTS / f"{name}.py")],
        cwd=folder,
        env=environment(TORCHVITALS_STRICT="1", COLUMNS="82"),  # the width of a page
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    sick, fixed, _ = done.stdout.split("<end>\n")
    return sick, fixed


def told(printed: str) -> list[Told]:
    """The warnings and errors in it; notes come and go with the last digits."""
    found = []
    for part in printed.split("\n\n"):
        head = HEAD.match(part)
        if head is not None and head[1] != "info":
            _, _, rest = part.partition("\n  → ")
            fix, _, _ = rest.partition("\n  explains:")
            found.append(Told(*head.groups(), NUMBER.sub("#", " ".join(fix.split()))))
    return found


def shown(name: str) -> tuple[str, str, str]:
    """Of the page: the script, what it prints, what it prints with --fixed."""
    script, sick, fixed = (match["body"] for match in FENCE.finditer(_page(name).read_text()))
    return script, sick, fixed


def write(name: str, printed: tuple[str, str]) -> None:
    """Put the script as it is, and what it printed, into the page."""
    page = _page(name)
    bodies = iter([(SCRIPTS / f"{name}.py").read_text(), *printed])

    def renewed(match: re.Match[str]) -> str:
        return f"```{match['language']}\n{next(bodies)}```"

    page.write_text(FENCE.sub(renewed, page.read_text()))


def check(name: str, folder: Path) -> None:
    """It says what it is an example of, first; fixed it says nothing; the page shows the same."""
    printed = run(name, folder)
    if WRITES:
        write(name, printed)
    sick, fixed = map(told, printed)
    assert sick, printed[0]
    assert sick[0].name == FINDINGS[name]
    assert sick[0].fix
    assert fixed == [], printed[1]
    _, *on_page = shown(name)
    hint = "VITALS_GALLERY=1 python -m pytest tests/gallery writes the pages anew"
    assert list(map(told, on_page)) == [sick, fixed], hint


def _page(name: str) -> Path:
    return PAGES / f"{name}.md"
