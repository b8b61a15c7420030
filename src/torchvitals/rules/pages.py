"""A rule's page: its docstring, its limits and the columns it reads, as Markdown.

The files in docs/rules are these pages; `python -m torchvitals.rules.pages docs` writes them.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

from torchvitals.rules.catalogue import NAMES, rule, rules
from torchvitals.rules.rule import Rule
from torchvitals.rules.thresholds import Thresholds


def page(one: Rule) -> str:
    """The page of a rule."""
    parts = [f"# {one.title.capitalize()}", f"`{one.name}`", one.page]
    limits = [
        f"| `{limit.name}` | {limit.default:g} | {limit.metadata['about']} |"
        for limit in fields(Thresholds)
        if one.name in limit.metadata["rules"]
    ]
    if limits:
        parts.append("\n".join(["| threshold | default | meaning |", "|---|---|---|", *limits]))
    if one.needs:
        needs = ", ".join(f"`{need}`" for need in one.needs)
        parts.append(f"It reads {needs}; where these were not measured it is told as not checked.")
    return "\n\n".join(parts) + "\n"


def index() -> str:
    """The list of all rules."""
    lines = [
        "# All rules",
        "",
        "Each finding of a [diagnosis](../diagnosis.md) is named after one of these; "
        "`vitals explain NAME` prints its page.",
        "",
        "| rule | what it is |",
        "|---|---|",
        *(f"| [{name}]({name}.md) | {rule(name).title} |" for name in NAMES),
    ]
    return "\n".join(lines) + "\n"


def thresholds_page() -> str:
    """The list of all limits."""
    lines = [
        "# All thresholds",
        "",
        "Change them by keyword, in `pyproject.toml` or on the command line: see "
        "[Diagnosis](diagnosis.md#thresholds).",
        "",
        "| threshold | default | rules | meaning |",
        "|---|---|---|---|",
    ]
    for limit in fields(Thresholds):
        names = ", ".join(f"[{name}](rules/{name}.md)" for name in limit.metadata["rules"])
        lines.append(
            f"| `{limit.name}` | {limit.default:g} | {names} | {limit.metadata['about']} |"
        )
    return "\n".join(lines) + "\n"


def written() -> dict[str, str]:
    """File name under docs/ → text."""
    pages = {f"rules/{one.name}.md": page(one) for one in rules()}
    return {**pages, "rules/index.md": index(), "thresholds.md": thresholds_page()}


def main() -> None:
    """Write the pages below the folder given."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "docs")
    for name, text in written().items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
