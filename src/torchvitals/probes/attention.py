"""Attention: what the heads look at, seen without a change to the model.

    attention/<module>.head_<i>/entropy       mean over batch and queries, nats
    attention/<module>.head_<i>/max_logit     after scale and mask, before the softmax
    attention/<module>.head_<i>/query_rms, key_rms, value_rms, output_rms

over all calls and micro-batches of a step, from sums that stay on the device until they are read.
`attention_calls` sees the calls; which module made one is told by the frames that are running: the
nearest known `self` or `module`. Where key heads are shared by a group of query heads, each of
these has their `key_rms` and `value_rms`. Positions with a NaN or Inf are left out of an rms.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from threading import get_ident
from time import perf_counter
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from torchvitals.probes import attention_calls as calls
from torchvitals.probes.attention_calls import AttentionCall
from torchvitals.probes.compiled import is_compiled
from torchvitals.probes.probe import Distributions, Notes, blank, to_float32
from torchvitals.record import Key
from torchvitals.stats.attention import LIMIT_ELEMENTS, attention_stats

STATS = ("entropy", "max_logit", "query_rms", "key_rms", "value_rms", "output_rms")

BUDGET = 1 << 22
"""Logits of a call looked at: all of 8 sequences of 256 tokens in 8 heads; of longer ones, evenly
spaced queries."""

_HEAD_COUNTS = ("num_heads", "n_heads", "n_head", "nhead", "heads", "num_attention_heads")
"""Attributes in which modules keep their number of heads."""


@dataclass(slots=True)
class AttentionRaw:
    """The sums of a step: lines, and their sums on each device."""

    parts: list[tuple[tuple[int, ...], Tensor]]
    num_lines: int


class Attention:
    """Measures the attention calls of the given modules while it is open."""

    name = "attention"

    def __init__(
        self,
        names: Mapping[nn.Module, str],
        *,
        on_error: Callable[[Exception], None],
        limit_elements: int = LIMIT_ELEMENTS,
        budget: int | None = BUDGET,
    ) -> None:
        # By id: a class of the user's may not be hashable.
        self._modules = {id(module): (module, name) for module, name in names.items()}
        self._on_error = on_error
        self._limit = limit_elements
        self._budget = budget
        self._thread = 0
        self._lines: dict[str, list[int]] = {}
        self._sites: list[str] = []
        self._held: dict[tuple[str, int, torch.device], Tensor] = {}
        self._spent = 0.0
        self.header: tuple[Key, ...] = ()

    def open(self) -> None:
        """Start seeing calls made on this thread. A compiled model is left alone."""
        modules = [module for module, _ in self._modules.values()]
        if modules and not any(map(is_compiled, modules)):
            self._thread = get_ident()
            calls.listen(self, {type(module) for module in modules})

    def close(self) -> None:
        """Stop seeing; the last one to close puts back what was there."""
        calls.leave(self)

    def _caller(self, frame: FrameType | None) -> tuple[nn.Module, str] | None:
        """The nearest known module whose code is running, if it is training."""
        if get_ident() != self._thread:
            return None
        while frame is not None:
            code = frame.f_code
            for local in ("self", "module"):
                # Asked before: locals as a dict are not for nothing.
                if local in code.co_varnames or local in code.co_freevars:
                    found = self._modules.get(id(frame.f_locals.get(local)))
                    if found is not None:
                        return found if found[0].training else None
            frame = frame.f_back
        return None

    def see(self, frame: FrameType, call: AttentionCall) -> None:
        """Measure a call, if it is one of ours. Never raises."""
        begun = perf_counter()
        try:
            found = self._caller(frame)
            if found is not None:
                self._add(*found, call)
        except Exception as error:  # nothing may reach the training from here
            self.fail(error)
        self._spent += perf_counter() - begun

    def fail(self, error: Exception) -> None:
        """Close, then tell."""
        self.close()
        self._on_error(error)

    def _add(self, module: nn.Module, name: str, call: AttentionCall) -> None:
        heads = _num_heads(module, call)
        stats = attention_stats(
            call.query,
            call.key,
            attn_mask=call.mask,
            is_causal=call.is_causal,
            scale=call.scale,
            enable_gqa=call.enable_gqa,
            num_heads=heads,
            limit_elements=self._limit,
            budget=self._budget,
        )
        with torch.no_grad():
            batch = None if heads is None else call.query.shape[0] // heads
            exact, num = stats.entropy_sum.dtype, len(stats.entropy_sum)
            tensors = (call.query, call.key, call.value, call.output)
            squares = [column for x in tensors for column in _squares(x, batch, num, exact)]
            sums = [stats.entropy_sum, stats.num_rows, *squares, stats.max_logit]
            found = torch.stack(sums, dim=1)
            place = (name, num, found.device)
            held = self._held.get(place)
            if held is not None:
                top = torch.maximum(held[:, -1:], found[:, -1:])
                found = torch.cat([held[:, :-1] + found[:, :-1], top], dim=1)
            self._held[place] = found

    def take(self) -> AttentionRaw:
        """What this step measured; the next one starts afresh."""
        held, self._held = self._held, {}
        parts = []
        for device in dict.fromkeys(device for _, _, device in held):
            here = {place: sums for place, sums in held.items() if place[2] == device}
            lines = [line for name, num, _ in here for line in self._lines_of(name, num)]
            # One tensor a device: one transfer when it is read.
            parts.append((tuple(lines), torch.cat(list(here.values()))))
        return AttentionRaw(parts, len(self._sites))

    def _lines_of(self, name: str, num: int) -> list[int]:
        lines = self._lines.setdefault(name, [])
        while len(lines) < num:
            self._sites.append(f"{name}.head_{len(lines)}")
            lines.append(len(self._sites) - 1)
        return lines[:num]

    def take_bins(self) -> Distributions:
        """None: it has no distributions."""
        return []

    def take_spent(self) -> float:
        """Seconds spent on calls since the last time this was asked."""
        spent, self._spent = self._spent, 0.0
        return spent

    def shape(self, raw: AttentionRaw) -> Hashable:
        """Which heads were seen, in which order."""
        return raw.num_lines, tuple(lines for lines, _ in raw.parts)

    def values(self, raws: Sequence[AttentionRaw], _notes: Notes) -> NDArray[np.float32]:
        """(steps, columns)."""
        num = raws[0].num_lines
        if num * len(STATS) != len(self.header):
            sites = self._sites[:num]
            self.header = tuple(Key("attention", site, stat) for site in sites for stat in STATS)
        table = blank((len(raws), num, len(STATS)))
        for rows, raw in zip(table, raws, strict=True):
            if not raw.parts:
                continue
            lines = np.concatenate([np.array(lines, dtype=np.intp) for lines, _ in raw.parts])
            found = np.concatenate([sums.cpu().double().numpy() for _, sums in raw.parts])
            sums, top = np.zeros((num, found.shape[1] - 1)), np.full(num, -np.inf)
            np.add.at(sums, lines, found[:, :-1])
            np.maximum.at(top, lines, found[:, -1])
            seen = np.unique(lines)
            with np.errstate(divide="ignore", invalid="ignore"):
                means = sums[seen, 0::2] / sums[seen, 1::2]
            rows[seen, 0] = to_float32(means[:, 0])
            rows[seen, 1] = to_float32(np.where(top == -np.inf, np.nan, top)[seen])
            rows[seen, 2:] = to_float32(np.sqrt(means[:, 1:]))
        return table.reshape(len(raws), -1)


def _num_heads(module: nn.Module, call: AttentionCall) -> int | None:
    """How many heads the first of three dimensions holds, beside the batch; None for others.

    Torch does not say which: a module that names no fitting number has one head.
    """
    if call.query.dim() != 3 or call.num_heads is not None:
        return call.num_heads
    for name in _HEAD_COUNTS:
        found = getattr(module, name, None)
        if isinstance(found, int) and found > 0 and call.query.shape[0] % found == 0:
            return found
    return 1


def _squares(x: Tensor, batch: int | None, heads: int, exact: torch.dtype) -> Iterator[Tensor]:
    """Σ x² / width of each query head and the number of positions, of those that are finite."""
    dtype = torch.promote_types(x.dtype, torch.float32)
    norms = torch.linalg.vector_norm(x.detach(), dim=-1, dtype=dtype)
    if batch is not None:
        norms = norms.reshape(batch, -1, norms.shape[-1])
    norms = norms.reshape(-1, *norms.shape[-2:]) if norms.dim() > 1 else norms[None, None]
    squares = norms.square_()
    there = squares < torch.inf
    squares.nan_to_num_(nan=0.0, posinf=0.0)
    for part, size in ((squares, x.shape[-1]), (there, 1)):
        column = part.sum(dim=(0, 2), dtype=exact)
        column = column / size if size > 1 else column
        yield column if len(column) == heads else column.repeat_interleave(heads // len(column))
