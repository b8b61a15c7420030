"""Bars of blocks: how far a run is, and where the time of a step goes.

Phases differ by texture first and by colour second; the legend repeats each texture beside its
word, so that the bar reads the same on paper.
"""

from __future__ import annotations

from collections.abc import Mapping

from rich.text import Text

from torchvitals.views import words

FULL, EMPTY = "█", "░"
TEXTURES = {
    "data": ("░", "yellow"),
    "forward": ("▒", "blue"),
    "backward": ("▓", "magenta"),
    "optimizer": ("█", "green"),
    "other": ("╌", "dim"),
    "monitor": ("▚", "cyan"),
}
VISIBLE = 0.005
"""Shares from here on get a block of their own, however short the bar; smaller ones only words."""


def progress_bar(frac: float, width: int) -> Text:
    """Full only when all is done, and never empty once something is."""
    done = int(frac * width)
    if frac > 0:
        done = max(done, 1)
    return Text.assemble((FULL * done, "cyan"), (EMPTY * (width - done), "dim"))


def time_bar(shares: Mapping[str, float], width: int) -> Text:
    """The phases side by side; exactly `width` blocks."""
    bar = Text()
    for phase, num in blocks(shares, width).items():
        texture, style = TEXTURES[phase]
        bar.append(texture * num, style)
    return bar


def time_legend(shares: Mapping[str, float]) -> list[Text]:
    """``▒ forward 31 %`` of each phase that took any time."""
    return [
        Text.assemble(TEXTURES[phase], f" {phase} {words.percent(share)}")
        for phase, share in shares.items()
        if share > 0
    ]


def blocks(shares: Mapping[str, float], width: int) -> dict[str, int]:
    """How many of `width` blocks each phase gets: the largest remainders are rounded up."""
    exact = {phase: share * width for phase, share in shares.items()}
    found = {phase: max(int(size), int(shares[phase] >= VISIBLE)) for phase, size in exact.items()}
    while (off := width - sum(found.values())) and found:
        if off > 0:
            phase = max(found, key=lambda one: exact[one] - found[one])
            found[phase] += 1
        else:
            phase = max(found, key=lambda one: found[one])
            found[phase] -= 1
    return found
