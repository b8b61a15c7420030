"""Telling a finding in the trainer's console, through `logging`, without breaking progress bars."""

from __future__ import annotations

import logging
import sys
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torchvitals.record import ROOT, Finding, Severity

log = logging.getLogger("torchvitals")

LEVELS = {
    Severity.ERROR: logging.ERROR,
    Severity.WARNING: logging.WARNING,
    Severity.INFO: logging.INFO,
}


def one_line(one: Finding) -> str:
    """``lr_too_high in the whole model since step 1: lower lr from 0.1 to 3e-4``."""
    where = "the whole model" if one.sites[:1] in ((), (ROOT,)) else one.sites[0]
    more = f" and {len(one.sites) - 1} more" if len(one.sites) > 1 else ""
    return f"{one.name} in {where}{more} since step {one.first_step}: {one.fix}"


def message(one: Finding) -> str:
    """Two lines for a person."""
    where = "" if one.sites[:1] in ((), (ROOT,)) else f" in {one.sites[0]}"
    return (
        f"torchvitals: {one.severity.value}: {one.name}{where}, since step {one.first_step}. "
        f"{one.explanation}\n  → {one.fix}"
    )


def tell(one: Finding) -> None:
    """Log it at its level."""
    with beside_bars():
        log.log(LEVELS[one.severity], "%s", message(one))


def beside_bars() -> AbstractContextManager[Any]:
    """While this is entered, tqdm's bars are out of the way; they come back afterwards."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    if tqdm is None or not getattr(tqdm, "_instances", None):
        return nullcontext()
    context: AbstractContextManager[Any] = tqdm.external_write_mode(file=sys.stderr)
    return context
