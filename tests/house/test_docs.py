"""What the documentation shows is true: snippets run, commands exist, every page is reachable."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from .house import ROOT, rooms, run_python

DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]
FENCE = re.compile(
    r"(?P<exempt><!-- not run: [^\n]+ -->\n+)?^```(?P<language>\w+)[^\n]*\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """One fenced block of a page."""

    line: int
    language: str
    body: str
    exempt: bool


def blocks(page: Path, language: str) -> Iterator[Block]:
    text = page.read_text()
    for match in FENCE.finditer(text):
        if match["language"] == language:
            line = text.count("\n", 0, match.start("body"))
            yield Block(line, language, match["body"], match["exempt"] is not None)


def script(page: Path) -> str:
    """The page's Python, each line where it stands in the page, so that tracebacks point there."""
    lines: list[str] = []
    for block in blocks(page, "python"):
        if not block.exempt:
            lines += [""] * (block.line - len(lines))
            lines += block.body.splitlines()
    return "\n".join(lines)


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


WITH_PYTHON = [page for page in PAGES if script(page)]


def test_some_page_has_a_snippet() -> None:
    assert WITH_PYTHON


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name)
def test_snippets_run(page: Path, tmp_path: Path) -> None:
    """In order, in one namespace, in an empty folder."""
    code = f"exec(compile({script(page)!r}, {str(page)!r}, 'exec'))"
    if page.parent.name == "frameworks":
        # They warn by themselves, on import and in training; that we do not is still asked for.
        code = f"import warnings; warnings.filterwarnings('error', module='torchvitals'); {code}"
        done = run_python(code, cwd=tmp_path)
    else:
        done = run_python(code, "-W", "error", cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_snippets_are_python(page: Path) -> None:
    """Those that are not run too."""
    for block in blocks(page, "python"):
        ast.parse(block.body, filename=f"{page}:{block.line}")


def commands() -> set[str]:
    done = run_python(
        "import sys; sys.argv = ['vitals', '--help']; "
        "from torchvitals.cli.main import main; sys.exit(main())"
    )
    assert done.returncode == 0, done.stderr
    _, _, listed = done.stdout.partition("Commands:")
    return set(re.findall(r"^\W*([a-z][a-z-]*) ", listed, re.MULTILINE))


def shown_commands() -> Iterator[tuple[Path, str]]:
    for page in PAGES:
        for block in blocks(page, "console"):
            for command in re.findall(r"^\$ vitals ([a-z][a-z-]*)", block.body, re.MULTILINE):
                yield page, command


@pytest.mark.skipif("cli" not in rooms(), reason="the command line is not there yet")
def test_commands_shown_exist() -> None:
    known = commands()
    assert known
    for page, command in shown_commands():
        assert command in known, f"{name(page)} shows 'vitals {command}', which does not exist"


def nav_pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    elif isinstance(entry, dict):
        for value in entry.values():
            yield from nav_pages(value)
    else:
        for value in entry:
            yield from nav_pages(value)


def test_navigation_covers_every_page() -> None:
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    pages = sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))
    assert sorted(nav_pages(config["nav"])) == pages


def test_decisions_are_numbered_and_listed() -> None:
    index = (DOCS / "decisions" / "index.md").read_text()
    decisions = sorted(path.name for path in (DOCS / "decisions").glob("0*.md"))
    assert [int(path[:4]) for path in decisions] == list(range(1, len(decisions) + 1))
    for path in decisions:
        assert f"]({path})" in index, f"docs/decisions/index.md does not list {path}"
        text = (DOCS / "decisions" / path).read_text()
        assert re.findall(r"^## (.+)$", text, re.MULTILINE) == [
            "Context",
            "Decision",
            "Consequences",
        ], path
