"""`Logbook`: what the user tells the monitor: numbers, evaluations, samples, epochs, events.

Everything here only hands over; reading devices and writing happen on the recorder's thread. With
several processes, evaluations and samples are summed over the ranks: those calls must be made by
every rank, in the same order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import Any

from torchvitals.alerts.urls import redacted
from torchvitals.monitor.categories import COUNT, NUM_NONFINITE, CategoryBook, CategorySums
from torchvitals.monitor.placing import Placing, under_way
from torchvitals.monitor.probe_set import Probes
from torchvitals.monitor.ranks import Ranks
from torchvitals.monitor.recorder import EpochEnd, Logged, Recorder
from torchvitals.monitor.scalars import NoValue, as_number, has_no_value
from torchvitals.monitor.steps import Steps
from torchvitals.record import ConfigError, Event, Key

log = logging.getLogger("torchvitals")

TRAIN = "train"
MAX_KEYS = 4096


class Logbook:
    """Turns the user's calls into items for the recorder."""

    def __init__(
        self,
        recorder: Recorder,
        steps: Steps,
        ranks: Ranks,
        *,
        samples_every: int,
        next_epoch: int = 1,
    ) -> None:
        self._recorder = recorder
        self._steps = steps
        self._ranks = ranks
        self._samples_every = samples_every
        self._reported_at = steps.done
        self._placing = Placing(steps)
        self._left_out: set[str] = set()
        self._keys: dict[str, Key] = {}
        """Of what was logged so far: made once a name."""
        self._books: dict[str, CategoryBook] = {}
        self._epoch: int | None = None
        self._next_epoch = next_epoch
        self._evaluated_at: int | None = None
        self._evaluated_every = 0
        self.secrets: tuple[str, ...] = ()
        """Texts that must not be stored."""
        self.by_hand: Probes | None = None
        """What sees a training without an optimizer, whose steps the user ends."""
        self._num_logged = 0

    def log(
        self, numbers: Mapping[str, Any], step: int | None, probes: Probes, *, midway: bool
    ) -> None:
        """Numbers of a step. `midway`: some of several optimizers have stepped in it already."""
        try:
            taken = {
                self._keys.get(name) or self._key(name): number
                if type(number) is float
                else as_number(name, number)
                for name, number in numbers.items()
            }
        except NoValue:
            rest = self._with_values(numbers)
            if rest:
                self.log(rest, step, probes, midway=midway)
            return
        if step is None:
            step = self._placing.step_of(numbers, probes, midway=midway)
            self._num_logged += 1
        self._recorder.put(Logged(step, time.time(), taken))

    def _with_values(self, numbers: Mapping[str, Any]) -> dict[str, Any]:
        """Without those that have none, which is told once a name."""
        rest = {name: number for name, number in numbers.items() if not has_no_value(number)}
        for name in numbers.keys() - rest.keys() - self._left_out:
            self._left_out.add(name)
            log.warning(
                "torchvitals: a value logged as %s is on the meta device, has no number, and is "
                "left out; log one that was computed.",
                name,
            )
        return rest

    def _key(self, name: str) -> Key:
        if len(self._keys) >= MAX_KEYS:
            self._keys.clear()
        return self._keys.setdefault(name, Key.scalar(name))

    @property
    def evaluation_due(self) -> bool:
        """Whether an evaluation comes now, if they go on as the last two did."""
        at, every = self._evaluated_at, self._evaluated_every
        return at is not None and every > 0 and self._steps.done == at + every

    def evaluate(
        self,
        split: str,
        numbers: Mapping[str, Any],
        num: float | None,
        train_mode: bool | None = None,
    ) -> None:
        """Results of an evaluation: of all ranks, each weighted by its number of samples.

        `train_mode`: whether the model was in training mode; None: nobody saw.
        """
        if not numbers:
            raise ConfigError("log_eval() needs at least one number, for instance loss=…")
        if num is not None and not num >= 0:
            raise ConfigError(f"count must be the number of samples evaluated, got {num!r}")
        taken = {name: as_number(name, number) for name, number in numbers.items()}
        if self._ranks.world_size > 1:
            weight = 1.0 if num is None else float(num)
            # An empty shard has no mean: 0 samples of NaN are still nothing.
            totals = {
                name: (float(number) * weight if weight else 0.0, weight)
                for name, number in taken.items()
            }
            # A rank with an empty shard has no samples, but must come to the report as well.
            totals[""] = (float(split in self._books), 1.0)
            found = self._ranks.sum_scalars(totals).value
            if found.pop("").sum and split not in self._books:
                self._books[split] = CategoryBook()
            taken = {name: total.mean for name, total in found.items()}
        keys = {Key("eval", split, name): number for name, number in taken.items()}
        if train_mode is not None:
            keys[Key("eval", split, "train_mode")] = float(train_mode)
        self._recorder.put(Logged(self._now(), time.time(), keys))
        if self._evaluated_at != self._steps.done:
            if self._evaluated_at is not None:
                self._evaluated_every = self._steps.done - self._evaluated_at
            self._evaluated_at = self._steps.done
        if split in self._books:
            self._report(split)

    def samples(self, split: str, losses: Any, category: Any, weight: Any) -> None:
        """Losses of single samples, by category."""
        if split not in self._books:
            self._books[split] = CategoryBook()
        self._books[split].add(losses, category, weight)

    def end_step(self) -> None:
        """A step ended: report the samples when it is time."""
        self._placing.end_step()
        if TRAIN in self._books and self._steps.done - self._reported_at >= self._samples_every:
            self._report(TRAIN)

    def close(self, *, failed: bool) -> None:
        """The run is over: store what is left. After a failure other ranks may not come here."""
        if self._ranks.world_size == 1 or not failed:
            self.end_epoch()
            self.report()
        if not failed and self.by_hand is not None and not self._steps.has_stepped:
            self._tell_no_step(self.by_hand)

    def _tell_no_step(self, probes: Probes) -> None:
        """Without an optimizer nothing ends a step by itself: all iterations became one."""
        if (self._num_logged > 1 or under_way({}, probes)) and self._ranks.is_writer:
            text = (
                "no step ever ended, so all iterations became one and what tensors were measured "
                "in it is not stored; pass the optimizer to watch(), or call monitor.step() at "
                "the end of each iteration"
            )
            log.warning("torchvitals: %s.", text)
            self.event("not_seen", text, {"probe": "steps"})

    def report(self) -> None:
        """Store what was gathered by category so far."""
        for split in sorted(self._books):
            self._report(split)

    def _report(self, split: str) -> None:
        if split == TRAIN:
            self._reported_at = self._steps.done
        step, now, book = self._now(), time.time(), self._books[split]
        if self._ranks.world_size == 1:
            sums = book.cut()
            self._recorder.put(Logged(step, now, lambda: category_keys(split, sums())))
            return
        # Ranks meet here, on the training thread: nowhere else are they at the same point.
        together = self._ranks.sum_labelled(book.take())
        if together is not None:
            keys = category_keys(split, together.value)
            self._recorder.put(Logged(step, now, keys))

    def epoch(self, number: int | None, total: int | None) -> None:
        """A new epoch begins; the one before, if any, ends."""
        if number is not None and (isinstance(number, bool) or not isinstance(number, int)):
            raise ConfigError(f"epoch must be a whole number, got {number!r}")
        if self._epoch is not None:
            self.end_epoch()
        self._epoch = number if number is not None else self._next_epoch
        self._next_epoch = self._epoch + 1
        of = f" of {total}" if total else ""
        data = {"epoch": self._epoch, **({"epochs": total} if total else {})}
        self.event("epoch", f"epoch {self._epoch}{of} begins", data)

    def end_epoch(self) -> None:
        """The epoch is over: its means are stored."""
        if self._epoch is None:
            return
        self._recorder.put(EpochEnd(self._now(), time.time(), self._epoch))
        if TRAIN in self._books:
            self._report(TRAIN)
        self._epoch = None

    def event(self, kind: str, text: str, data: Mapping[str, Any]) -> None:
        """Something happened."""
        if self.secrets:
            text, data = redacted((text, dict(data)), self.secrets)
        self._recorder.put(Event(self._steps.done, time.time(), kind, text, data))

    def _now(self) -> int:
        """The step that an evaluation or report speaks of: the last one done."""
        return max(self._steps.done, 1)


def category_keys(split: str, sums: CategorySums) -> dict[Key, float]:
    """Mean loss, number of samples and of non-finite ones of each category."""
    keys: dict[Key, float] = {}
    means = sums.means.tolist()
    for label, mean, line in zip(sums.labels, means, sums.values.tolist(), strict=True):
        site = label if split == TRAIN else f"{split}:{label}"
        keys[Key("category", site, "loss")] = mean
        keys[Key("category", site, "num_samples")] = line[COUNT]
        if line[NUM_NONFINITE]:
            keys[Key("category", site, "num_nonfinite")] = line[NUM_NONFINITE]
    return keys
