"""`Handing`: what was measured in a step goes to the recorder, with what other ranks measured."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from torchvitals.monitor.gathering import Gathering, without_shards
from torchvitals.monitor.lag import Contribution, Lag
from torchvitals.monitor.noting import Noting
from torchvitals.monitor.plugged import Plugged, ask
from torchvitals.monitor.recorder import Columns, Histograms, Logged, Packet
from torchvitals.monitor.replicas import Drift, Replicas, drifts
from torchvitals.probes.probe import Distributions, Probe
from torchvitals.probes.updates import Updates
from torchvitals.record import Event, Finding, Key

if TYPE_CHECKING:
    from torchvitals.monitor.looking import Looking
    from torchvitals.monitor.ranks import Ranks
    from torchvitals.probes.machine import MachineSampler
    from torchvitals.probes.stepping import Roster

log = logging.getLogger("torchvitals")

HISTOGRAMS_S = 1.0
"""Histograms of monitored steps closer together than this are added up and stored as one."""


class Handing(Noting):
    """The part of a monitor that brings a step's measurements together."""

    overhead_s: float
    _columns: Columns
    _gathering: Gathering | None
    _histograms_at: float
    _lag: Lag
    _looking: Looking
    _machine: MachineSampler | None
    _plugged: Plugged
    _ranks: Ranks
    _replicas: Replicas
    _rosters: list[Roster]
    _spent: float

    @property
    def _stop_reason(self) -> Finding | None:
        """The finding that shall end the training."""
        raise NotImplementedError

    def _packet(self, begun: float, *, again: bool) -> Packet:
        """What the probes measured in this step."""
        parts: list[tuple[str, Probe, Any]] = []
        for name, probe in self._probes.in_order:
            if self._wall.up(name):
                with self._wall.around(name):
                    if isinstance(probe, Updates):
                        probe.at_end()
                    raw = probe.take()
                    if raw is not None:
                        parts.append((name, probe, raw))
        for roster in self._rosters:
            roster.rest()
        if self._metrics:
            self._hand_over_metrics()
        if self._plugged.probes:
            self._hand_over_plugged()
        inside = sum(seer.take_spent() for seer in self._probes.seers)
        spent = self._spent + inside + time.perf_counter() - begun
        self.overhead_s += spent
        self._spent = 0.0
        if self._pace is not None:
            self._pace.end_step(inside=inside, again=again)
            parts += [part for part in self._pace.parts() if self._wall.up(part[0])]
        return Packet(self._steps.current, time.time(), parts, spent)

    def _gather(self, gathering: Gathering, packet: Packet | None) -> Packet | None:
        """Bring what all ranks measured together; None on those that don't write."""
        now, step = time.time(), self._steps.current
        bins = None
        if gathering.wants_bins:
            bins, self._histograms_at = self._take_bins(), now
        mine = Contribution(step, now, packet, self._rank_numbers(), bins, self._replicas.due(step))
        due = self._lag.pass_on(mine)
        return None if due is None else self._exchange(gathering, due)

    def _exchange(self, gathering: Gathering, mine: Contribution) -> Packet | None:
        """One monitored step of all ranks. A collective."""
        checks = mine.checks
        found = gathering.exchange(
            mine.parts,
            mine.numbers,
            mine.bins,
            bins_next=time.time() - self._histograms_at >= HISTOGRAMS_S,
            stop=self._stop_reason is not None,
            checks=None if checks is None else checks.read(),
        )
        if not self._ranks.is_writer:
            return None
        step, now = mine.step, mine.time
        if checks is not None and found.complete:
            self._note_replicas(step, found.drifted)
        if mine.bins and found.complete:
            self._recorder.put(Histograms(step, now, mine.bins))
        keys = {
            Key("rank", str(rank), stat): number
            for rank, numbers in enumerate(found.numbers)
            for stat, number in numbers.items()
        }
        if keys:
            self._recorder.put(Logged(step, now, keys))
        if mine.packet is not None:
            mine.packet.parts = found.parts
        return mine.packet

    def _close_lag(self, gathering: Gathering, *, together: bool) -> None:
        """What is still under way at the end; alone if the others don't come here."""
        for mine in self._lag.rest():
            packet = mine.packet
            if together:
                packet = self._exchange(gathering, mine)
            elif packet is not None:
                packet.parts = without_shards(packet.parts)
            if packet is not None and self._ranks.is_writer:
                self._recorder.put(packet)

    def _hand_over_metrics(self) -> None:
        with self._wall.around("metrics"):
            self._looking.at_parameters()
            found = self._last_metrics = self._looking.finish()
            if found:
                self._recorder.put(self._columns.row(self._steps.current, found))

    def _hand_over_plugged(self) -> None:
        for name, probe in self._plugged.probes.items():
            if self._wall.up(name):
                with self._wall.around(name):
                    found = ask(name, probe, self._steps.current)
                    self._recorder.put(Logged(self._steps.current, time.time(), found))

    def _hand_over_histograms(self, now: float) -> None:
        parts = self._take_bins()
        self._histograms_at = now
        if parts:
            self._recorder.put(Histograms(self._last_measured, now, parts))

    def _take_bins(self) -> Distributions:
        parts: Distributions = []
        for name, probe in self._probes.in_order:
            if self._wall.up(name):
                with self._wall.around(name):
                    parts += probe.take_bins()
        return parts

    def _close_histograms(self, status: str) -> None:
        """Hand over the last ones; with several ranks together, if all come here."""
        gathering = self._gathering
        if gathering is None:
            self._hand_over_histograms(time.time())
            return
        together = status == "finished" and self._ranks.complete
        self._close_lag(gathering, together=together)
        if together:
            bins = self._take_bins()
            parts = [(name, probe, probe.take()) for name, probe in self._probes.in_order]
            found = gathering.exchange(parts, {}, bins)
            if bins and found.complete and self._ranks.is_writer:
                self._recorder.put(Histograms(self._last_measured, time.time(), bins))

    def check_replicas(self) -> list[Drift]:
        """Compare the ranks' copies of all watched parameters now; all ranks must call it.

        Gives the ranks whose copies are not the others', and notes them in the run. Nothing to
        compare in one process.
        """
        together = self._ranks.gather(self._replicas.checksums())
        found = drifts(together.value)
        if together.complete and self._ranks.is_writer and self._ranks.world_size > 1:
            self._note_replicas(self._steps.done, found)
        return found

    def _note_replicas(self, step: int, found: list[Drift]) -> None:
        """Store how many parameters of each rank drifted, and say which."""
        numbers = dict.fromkeys(range(self._ranks.world_size), 0)
        for drift in found:
            numbers[drift.rank] = len(drift.parameters)
            text = f"parameters differ from those of the other ranks: {drift}"
            log.warning("torchvitals: %s", text)
            data = {"rank": drift.rank, "parameters": list(drift.parameters[:100])}
            self._recorder.put(Event(step, time.time(), "replica_drift", text, data))
        keys = {Key("rank", str(rank), "num_drifted"): float(n) for rank, n in numbers.items()}
        self._recorder.put(Logged(step, time.time(), keys))

    def _rank_numbers(self) -> dict[str, float]:
        """This rank's step time, data wait and memory: beside the others' a straggler shows."""
        numbers = {} if self._pace is None else self._pace.recent()
        if self._machine is not None:
            numbers["rss_bytes"] = self._machine.latest.get("process_rss_bytes", float("nan"))
        return numbers

    def _sampled(self, readings: dict[str, float]) -> None:
        """A sample of the machine; on its sampler's thread."""
        if not self._steps.has_stepped:
            return  # there is no step to put it to; the first one's end asks for it
        keys = {}
        for name, value in readings.items():
            site, _, stat = name.partition("_")
            keys[Key("machine", site, stat)] = value
        # Of the last step done: one that is under way may never be, and a resumed run counts on.
        self._recorder.put(Logged(self._steps.done, time.time(), keys))
