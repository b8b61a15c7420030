"""`Key`: the name of one column, e.g. ``gradient/blocks.3.attn.weight/rms``."""

from __future__ import annotations

from typing import NamedTuple

ROOT = "[root module]"
"""The site of the whole model: overall norms live there."""

SCALAR = "scalar"
"""The kind of what users log themselves; its stat is always ``value``."""


class Key(NamedTuple):
    """What was measured (`kind`), where (`site`), and which number of it (`stat`)."""

    kind: str
    site: str
    stat: str

    def __str__(self) -> str:
        return self.site if self.kind == SCALAR else f"{self.kind}/{self.site}/{self.stat}"

    @classmethod
    def scalar(cls, name: str) -> Key:
        """The column of a number the user logs, e.g. ``loss``."""
        return cls(SCALAR, name, "value")

    @classmethod
    def parse(cls, text: str) -> Key:
        """Read `str(key)` back. ``loss`` is a scalar, ``gradient/fc.weight/rms`` a tensor's column.

        A scalar's name may hold slashes (``val/accuracy``): only texts whose first part is a kind
        of tensor column are split.
        """
        kind, _, rest = text.partition("/")
        site, _, stat = rest.rpartition("/")
        if kind in KINDS and site and stat:
            return cls(kind, site, stat)
        return cls.scalar(text)


TENSOR_KINDS = frozenset({"gradient", "parameter", "update", "activation", "optimizer", "summary"})
"""What is measured of the model and its optimizer."""

SIGN_KINDS = frozenset(
    {
        "activation_difference",
        "amp",
        "attention",
        "category",
        "clock",
        "criterion",
        "epoch",
        "eval",
        "gradient_before_clip",
        "input",
        "machine",
        "noise",
        "output",
        "parameter_difference",
        "probe",
        "rank",
        "speed",
    }
)
"""What is measured beside it."""

KINDS = TENSOR_KINDS | SIGN_KINDS
"""Kinds whose texts read ``kind/site/stat``."""
