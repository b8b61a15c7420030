"""`Gathering`: what all ranks measured in a step becomes the writer's, in one exchange.

Each rank packs the sums of what it shares: its pieces of sharded parameters, the activations of its
own batches, its clocks. The writer merges them into its own measurements; what is derived from them
then (norms, ratios, percentiles) is that of the whole training. Nothing is gathered that every rank
holds alike: the gradients and parameters of DDP are measured by the writer alone.

Histograms are big and added up over steps; they travel when the writer says so, one exchange ahead,
so that all ranks send them in the same step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, from_numpy, nn

from torchvitals.monitor.ranks import Ranks, packed, unpacked
from torchvitals.monitor.replicas import Checksums, Drift, drifts
from torchvitals.probes.activations import ActivationRaw, Activations
from torchvitals.probes.gradients import Gradients
from torchvitals.probes.pieces import WIDTH, Block, Piece, absorb, twins
from torchvitals.probes.probe import Distributions
from torchvitals.probes.shards import splits_features
from torchvitals.probes.units import UnitSnapshot
from torchvitals.probes.updates import Updates
from torchvitals.record.bins import NUM_BINS
from torchvitals.stats.backend import Bins

Part = tuple[str, Any, Any]
"""(name, probe, raw) of a packet."""

SHARES = (Gradients, Updates, Activations)
"""Probes of which ranks hold different parts."""


class Gathering:
    """Talks to the other ranks once a monitored step."""

    def __init__(
        self, ranks: Ranks, parameters: Iterable[Tensor], modules: Iterable[nn.Module]
    ) -> None:
        self._ranks = ranks
        self._once = splits_features(list(parameters), list(modules))
        """Layers are split over ranks, which see the same batch: one tensor may come twice."""
        self._twins: list[set[str]] = [set() for _ in range(ranks.world_size)]
        """Outputs of which each rank holds what another has counted already."""
        self._sites: list[list[str]] = [[] for _ in range(ranks.world_size)]
        self.wants_bins = False
        """Whether all ranks send their histograms in the next exchange."""
        self.stops = False
        """Whether the writer asked all ranks to end the training."""

    def exchange(
        self,
        parts: Sequence[Part],
        numbers: Mapping[str, float],
        bins: Distributions | None,
        *,
        bins_next: bool = False,
        stop: bool = False,
        checks: Checksums | None = None,
    ) -> Exchanged:
        """Merge the other ranks' share into `parts` and `bins` (on the writer).

        A collective. `bins_next`: the writer wants histograms the next time; `stop`: it ends the
        training. `checks`: checksums of the parameters, when the replicas are to be compared.
        """
        # Asked for once: samples are blown up to their tensors' sizes by it.
        pieces = {
            name: probe.pieces(raw) for name, probe, raw in parts if isinstance(probe, SHARES)
        }
        payload = self._pack(parts, pieces, numbers, bins, checks or {})
        received, said = self._ranks.gather_step(payload, flags=bins_next + 2 * stop)
        self.wants_bins, self.stops = bool(said & 1), bool(said & 2)
        if not self._ranks.is_writer:
            return Exchanged(complete=received is not None)
        if received is None:
            return Exchanged(complete=False, parts=without_shards(parts))
        others = [Share(data) for data in received]
        for rank, share in enumerate(others):
            if share.sites is not None:
                self._sites[rank] = share.sites
        mine, rest = self._ranks.rank, [k for k in range(len(others)) if k != self._ranks.rank]
        kept = [
            part
            for part in parts
            if not _lacks(part, pieces.get(part[0], {}), [others[k] for k in rest])
        ]
        for name, probe, raw in kept:
            if isinstance(probe, Activations):
                self._merge_outputs((name, probe, raw), pieces[name], others)
            elif isinstance(probe, SHARES):
                for field, found in pieces[name].items():
                    for share in (others[k] for k in rest):
                        if (name, field) in share.blocks:
                            absorb(found, share.blocks[name, field])
        if bins is not None:
            for rank in rest:
                add_bins(bins, others[rank].bins, skip=self._twins[rank])
        others[mine].numbers = dict(numbers)
        return Exchanged(
            complete=True,
            parts=kept,
            numbers=[share.numbers for share in others],
            drifted=drifts([share.checks for share in others]),
        )

    def _pack(
        self,
        parts: Sequence[Part],
        pieces: Mapping[str, dict[str, list[Piece]]],
        numbers: Mapping[str, float],
        bins: Distributions | None,
        checks: Checksums,
    ) -> bytes:
        writer = self._ranks.is_writer
        head: dict[str, Any] = {
            "numbers": dict(numbers), "blocks": [], "units": [], "bins": [], "checks": checks,
        }  # fmt: skip
        body: list[bytes] = []
        for name, probe, raw in () if writer else parts:
            if not isinstance(probe, SHARES):
                continue
            keep = None if isinstance(probe, Activations) else probe.shards.counted
            for field, found in pieces[name].items():
                block = Block.of(found, keep)
                head["blocks"].append([name, field, len(block.lines)])
                body += [block.lines.tobytes(), block.table.tobytes()]
            if isinstance(probe, Activations):
                names = probe.names(raw.num_sites)
                if names != self._sites[self._ranks.rank]:
                    self._sites[self._ranks.rank] = head["sites"] = names
                if raw.units is not None and not self._once:
                    counts = raw.units.counts.cpu().numpy().astype(np.int64)
                    head["units"] = [len(raw.units.lines), len(counts)]
                    body += [
                        raw.units.lines.astype(np.int64).tobytes(),
                        raw.units.starts.astype(np.int64).tobytes(),
                        raw.units.rows.tobytes(),
                        counts.tobytes(),
                        raw.units.totals.cpu().numpy().astype(np.float64).tobytes(),
                    ]
        if bins is not None and not writer:
            for sites, counts in self._shared(parts, bins):
                head["bins"].append(list(sites))
                body.append(np.ascontiguousarray(counts, dtype=np.uint32).tobytes())
        return packed(head, b"".join(body))

    def _shared(
        self, parts: Sequence[Part], bins: Distributions
    ) -> list[tuple[tuple[tuple[str, str], ...], NDArray[np.uint32]]]:
        """Histograms of what this rank adds to: its activations and its counted pieces."""
        counted: set[tuple[str, str]] = set()
        for _, probe, _ in parts:
            if isinstance(probe, Gradients | Updates):
                counted |= probe.counted_sites()
        out = []
        for sites, found in bins:
            keep = [k for k, site in enumerate(sites) if site[0] == "activation" or site in counted]
            if keep:
                out.append((tuple(sites[k] for k in keep), found.host()[keep]))
        return out

    def _merge_outputs(
        self, part: Part, pieces: Mapping[str, list[Piece]], others: Sequence[Share]
    ) -> None:
        name, probe, raw = part
        for field, found in pieces.items():
            counted = [Block.of(found)] if self._once else []
            for rank, share in enumerate(others):
                block = share.blocks.get((name, field))
                if block is None:
                    continue
                line_of = self._lines(probe, raw, rank)
                block = block.renamed(line_of)
                if self._once:
                    again = twins(block, counted)
                    names = probe.names(raw.num_sites)
                    if len(block.lines):  # at the end histograms come without a step
                        self._twins[rank] = {names[line] for line in block.lines[again]}
                    block = block.without(again)
                    counted.append(block)
                absorb(found, block)
                _add_units(raw, share.units, line_of)

    def _lines(self, probe: Activations, raw: ActivationRaw, rank: int) -> NDArray[np.int64]:
        """The writer's line of each line of another rank; −1 for what the writer never saw."""
        own = {site: line for line, site in enumerate(probe.names(raw.num_sites))}
        found = [own.get(site, -1) for site in self._sites[rank]]
        return np.array(found, dtype=np.int64)


class Exchanged:
    """What came of an exchange, on the writer; the others only know whether it worked."""

    def __init__(
        self,
        *,
        complete: bool,
        parts: list[Part] | None = None,
        numbers: list[dict[str, float]] | None = None,
        drifted: list[Drift] | None = None,
    ) -> None:
        self.complete = complete
        self.parts = parts or []
        self.numbers = numbers or []
        self.drifted = drifted or []


class Share:
    """One rank's payload, unpacked."""

    def __init__(self, payload: bytes) -> None:
        head, body = unpacked(payload)
        self.numbers: dict[str, float] = head["numbers"]
        self.checks: Checksums = head["checks"]
        self.sites: list[str] | None = head.get("sites")
        self.blocks: dict[tuple[str, str], Block] = {}
        self.units: UnitSnapshot | None = None
        self.bins: list[tuple[list[list[str]], NDArray[np.uint32]]] = []
        reader = Reader(body)
        for name, field, num in head["blocks"]:
            lines = reader.array(np.int64, num)
            table = reader.array(np.float64, num * WIDTH).reshape(num, WIDTH)
            self.blocks[name, field] = Block(lines, table)
        if head["units"]:
            layers, units = head["units"]
            lines, starts = reader.array(np.int64, layers), reader.array(np.int64, layers)
            rows, counts = reader.array(np.float64, layers), reader.array(np.int64, units)
            totals = reader.array(np.float64, units)
            self.units = UnitSnapshot(
                from_numpy(counts.copy()), from_numpy(totals.copy()), starts, lines, rows
            )
        for sites in head["bins"]:
            counted = reader.array(np.uint32, len(sites) * NUM_BINS)
            self.bins.append((sites, counted.reshape(len(sites), NUM_BINS)))


class Reader:
    """Arrays one after the other out of bytes."""

    def __init__(self, body: bytes) -> None:
        self._body, self._at = body, 0

    def array(self, dtype: type[np.generic], num: int) -> NDArray[Any]:
        """The next `num` numbers."""
        found = np.frombuffer(self._body, dtype, num, self._at)
        self._at += found.nbytes
        return found


def add_bins(
    bins: Distributions,
    theirs: Sequence[tuple[Sequence[Sequence[str]], NDArray[np.uint32]]],
    *,
    skip: Set[str],
) -> None:
    """Add another rank's histograms to the writer's; sites the writer lacks join.

    `skip`: outputs that are counted already.
    """
    for sites, counts in theirs:
        left: dict[tuple[str, str], NDArray[np.uint32]] = {}
        for (kind, site), line in zip(sites, counts, strict=True):
            if kind == "activation" and site in skip:
                continue
            # A module called in several micro-batches stands in a list several times.
            known = left.get((kind, site))
            left[kind, site] = line if known is None else known + line
        for own, found in bins:
            rows = [(k, left.pop(site)) for k, site in enumerate(own) if site in left]
            for row, line in rows:
                found.host()[row] += line
        if left:
            more = Bins(1)
            more.counts = np.stack(list(left.values()))
            bins.append((tuple(left), more))


def _add_units(raw: ActivationRaw, theirs: UnitSnapshot | None, line_of: NDArray[np.int64]) -> None:
    """Count the rows in which the other ranks saw units fire."""
    if raw.units is None or theirs is None:
        return
    own = raw.units
    own.counts, own.totals = own.counts.cpu(), own.totals.cpu()
    sizes = np.diff(own.starts, append=len(own.counts))
    their_sizes = np.diff(theirs.starts, append=len(theirs.counts))
    place = {int(line): k for k, line in enumerate(own.lines)}
    for k, line in enumerate(line_of[theirs.lines].tolist()):
        here = place.get(line)
        if here is None or sizes[here] != their_sizes[k]:
            continue
        start, begin, num = own.starts[here], theirs.starts[k], sizes[here]
        units, theirs_ = slice(start, start + num), slice(begin, begin + num)
        own.counts[units] += theirs.counts[theirs_].to(own.counts.dtype)
        own.totals[units] += theirs.totals[theirs_].to(own.totals.dtype)
        own.rows[here] += theirs.rows[k]


def _lacks(part: Part, fields: Iterable[str], others: Sequence[Share]) -> bool:
    """Whether a rank did not send its pieces: then the sums are not those of the whole."""
    name, probe, _ = part
    if not isinstance(probe, Gradients | Updates) or not probe.shards.sharded.any():
        return False
    return any((name, field) not in share.blocks for field in fields for share in others)


def without_shards(parts: Sequence[Part]) -> list[Part]:
    """What this rank can tell alone: pieces of sharded parameters are not among it."""
    return [
        part
        for part in parts
        if not (isinstance(part[1], Gradients | Updates) and part[1].shards.sharded.any())
    ]
