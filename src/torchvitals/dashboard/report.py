"""`report`: the page and the answers about one run in a single file that opens without a server.

The file holds the page's script and style and, instead of a server, what the page would ask for:
findings with their evidence, the overview, heatmaps of the statistics that say most, distributions
of the layers that findings name. Everything is read at one version of the run. Its policy allows no
connection at all, and data are base64: no name in them can become markup.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import html
import json
import re
import struct
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from torchvitals import __version__
from torchvitals.dashboard.answers import events, histograms, matrix, run, runs, series
from torchvitals.dashboard.asked import Asked
from torchvitals.dashboard.built import STATIC
from torchvitals.dashboard.frames import json_bytes
from torchvitals.dashboard.question import Body, Maker, Question, version_of
from torchvitals.record import Key, StoreError, UnknownKey
from torchvitals.store import History

RUN: Final = "run"
"""The id of the run in its report."""

HEATMAPS: Final = {
    "gradient": ("rms",),
    "update": ("ratio",),
    "activation": ("std", "rms", "zero_frac", "dead_frac"),
    "parameter": ("rms",),
    "attention": ("entropy", "max_logit"),
}
"""Kind → the statistics of all layers that a report has, where the run has them."""

SERIES_POINTS: Final = 600
HEATMAP_VALUES: Final = 150_000
"""Of one heatmap: with more layers it has fewer buckets, 100 … 400."""
HISTOGRAM_POINTS: Final = 150
MOST_HISTOGRAMS: Final = 12
MOST_KEYS: Final = 100
"""Of one question for series."""

Answers = dict[str, Body]
"""What the page would ask → what it gets."""


def report(history: History, *, static: Path = STATIC) -> str:
    """The whole file, as text. StoreError where the page was not built."""
    script, style, icon = _page(static)
    packed = base64.b64encode(gzip.compress(_packed(answers(history)), 6, mtime=0)).decode()
    policy = (
        f"default-src 'none'; script-src 'sha256-{_digest(script)}'; style-src 'unsafe-inline'; "
        "img-src data: blob:; form-action 'none'; base-uri 'none'"
    )
    title = html.escape(history.info.name or history.path.parent.name)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="generator" content="torchvitals {__version__}">
<title>{title} · torchvitals</title>
<link rel="icon" href="data:image/svg+xml;base64,{base64.b64encode(icon).decode()}">
<style>{style}</style>
</head>
<body>
<div id="app"></div>
<noscript>This report draws with JavaScript, which is switched off here.</noscript>
<script type="text/plain" id="answers">{packed}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def answers(history: History) -> Answers:
    """Everything the report can answer. The run's own columns are only those that are in it."""
    found = events.findings(_question(history))
    named, sites = _evidence(json.loads(found.data)["findings"])
    keys = [*series.overview_keys(history), *_known(history, named)]
    out: Answers = {"findings": found, "events": events.events(_question(history))}
    out["overview"] = _ask(history, series.overview, series.OVERVIEW_ARGUMENTS, points=2)
    there = set(keys)
    for kind, stat in _heatmaps(history):
        columns = history.keys(kind, stat=stat)
        there |= set(columns)
        points = min(max(HEATMAP_VALUES // len(columns), 100), 400)
        out[f"matrix/{kind}/{stat}"] = _ask(
            history, matrix.matrix, matrix.MATRIX_ARGUMENTS, kind=kind, stat=stat, points=points
        )
    for first in range(0, len(keys), MOST_KEYS):
        out[f"series/{first}"] = _ask(
            history, series.series, series.SERIES_ARGUMENTS, points=SERIES_POINTS,
            key=[str(key) for key in keys[first : first + MOST_KEYS]],
        )  # fmt: skip
    shown = _histograms(history, sites)
    for kind, site in shown:
        out[f"histograms/{kind}/{site}"] = _ask(
            history, histograms.histograms, histograms.ARGUMENTS,
            kind=kind, site=site, points=HISTOGRAM_POINTS,
        )  # fmt: skip
    about = json.loads(run.run(_question(history)).data)
    about |= {"axes": ["step"], "columns": run.columns(there, shown, history.info)}
    out["run"] = Body(json_bytes(about))
    line = runs.line(history, RUN, history.path.parent.name)
    listed = {"folder": "", "version": line["version"], "runs": [line], "made": time.time()}
    out["runs"] = Body(json_bytes(listed))
    return out


def _question(history: History, arguments: Iterable[str] = (), **given: Any) -> Question:
    pairs = [
        (name, str(one))
        for name, value in given.items()
        for one in (value if isinstance(value, list) else [value])
    ]
    return Question(RUN, version_of(history), history, Asked(pairs, tuple(arguments)))


def _ask(history: History, make: Maker, arguments: Iterable[str], **given: Any) -> Body:
    return make(_question(history, arguments, **given))


def _evidence(findings: list[dict[str, Any]]) -> tuple[list[str], list[str]]:
    """Columns and sites that findings and their symptoms name, each once."""
    keys: dict[str, None] = {}
    sites: dict[str, None] = {}
    for finding in findings:
        below_keys, below_sites = _evidence(finding.get("symptoms", []))
        named = [one["key"] for one in finding["evidence"] if one["key"]]
        keys |= dict.fromkeys([*named, *below_keys])
        sites |= dict.fromkeys([*finding["sites"], *below_sites])
    return list(keys), list(sites)


def _known(history: History, texts: list[str]) -> Iterator[Key]:
    """The columns of that name which are no part of the overview; evidence may be of others."""
    overview = set(series.overview_keys(history))
    for text in texts:
        try:
            key = Key.parse(text)
            history.envelope(key, 1)
        except (UnknownKey, ValueError):
            continue
        if key not in overview:
            yield key


def _heatmaps(history: History) -> Iterator[tuple[str, str]]:
    for kind, stats in HEATMAPS.items():
        for stat in stats:
            if len(history.keys(kind, stat=stat)) > 1:
                yield kind, stat


def _histograms(history: History, sites: list[str]) -> list[tuple[str, str]]:
    """Those of the sites that findings name, and of each kind's first ones."""
    there = history.histogram_sites()
    named = [one for site in sites for one in there if one[1] == site]
    matrices = {
        parameter.name
        for model in history.info.models
        for parameter in model.parameters
        if len(parameter.shape) > 1
    }
    kinds = dict.fromkeys(kind for kind, _ in there)
    typical = [
        one
        for kind in kinds
        for one in [one for one in there if one[0] == kind and one[1] in matrices][:2]
    ]
    return list(dict.fromkeys([*named, *typical]))[:MOST_HISTOGRAMS]


def _packed(found: Answers) -> bytes:
    """A frame of answers: uint32 N, N bytes of JSON {question: [offset, length]}, the answers."""
    places: dict[str, list[int]] = {}
    pieces: list[bytes] = []
    offset = 0
    for question, body in found.items():
        places[question] = [offset, len(body.data)]
        padding = -len(body.data) % 8
        pieces += [body.data, bytes(padding)]
        offset += len(body.data) + padding
    head = json_bytes(places)
    head += b" " * (-(4 + len(head)) % 8)
    return b"".join([struct.pack("<I", len(head)), head, *pieces])


def _page(static: Path) -> tuple[str, str, bytes]:
    """Script, style and icon of the page."""
    index = static / "index.html"
    if not index.is_file():
        raise StoreError(
            "the page is not built, and a report is made of it. In a source checkout: make page. "
            "Packages that are installed with pip contain it."
        )
    text = index.read_text(encoding="utf-8")
    scripts = re.findall(r'<script[^>]+src="\./([^"]+)"', text)
    styles = re.findall(r'<link[^>]+rel="stylesheet"[^>]+href="\./([^"]+)"', text)
    script = "\n".join((static / name).read_text(encoding="utf-8") for name in scripts)
    style = "\n".join((static / name).read_text(encoding="utf-8") for name in styles)
    # Inside a page these would end the element they stand in.
    script = script.replace("</script", "<\\/script").replace("<!--", "<\\!--")
    return script, style.replace("</style", "<\\/style"), (static / "icon.svg").read_bytes()


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
