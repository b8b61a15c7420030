"""A run's pace in words: speed, step time, where the time goes, memory, ranks, noise scale."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from torchvitals.views import words
from torchvitals.views.bars import progress_bar, time_bar, time_legend
from torchvitals.views.grids import Fact, room, spread
from torchvitals.views.memory import GpuMemory, Memory
from torchvitals.views.pace import Pace
from torchvitals.views.progress import Progress
from torchvitals.views.stragglers import SlowestRank

SHORTEST_BAR, LONGEST_BAR = 10, 60
LONG_WAIT = 0.1
"""A share of the time spent waiting for data that is worth a word of its own."""
NEAR = 0.05
"""Ranks closer together than this are called even."""
SMALL, LARGE = 0.5, 2.0
"""Batch size over noise scale: below, larger batches still pay; above, they hardly do."""


def progress_facts(progress: Progress, width: int, *, total: bool = True) -> list[Fact]:
    """A bar and what is left, or only the epoch where the number of steps is not known.

    `total=False` leaves the number of steps out, for where it is said already.
    """
    epoch = epoch_words(progress)
    if progress.frac is None or progress.total_steps is None:
        return [("progress", epoch)] if epoch else []
    # Rounded down: 100 % is all of it.
    of = f" of {words.plural(progress.total_steps, 'step')}" if total else ""
    left = "" if progress.eta_s is None else f"{words.duration(progress.eta_s)} left"
    parts = [part for part in (f"{int(100 * progress.frac)} %{of}", epoch, left) if part]
    said = " · ".join(parts)
    size = min(LONGEST_BAR, room(width) - len(said) - 2)
    if size < SHORTEST_BAR:  # a bar of its own, and the words under it
        bar = progress_bar(progress.frac, min(LONGEST_BAR, room(width)))
        return [("progress", bar), *spread("", parts, width)]
    return [("progress", Text.assemble(progress_bar(progress.frac, size), "  ", said))]


def epoch_facts(progress: Progress) -> list[Fact]:
    """The epochs of a run that has no progress any more."""
    epoch = epoch_words(progress).removeprefix("epoch ")
    if not epoch:
        return []
    each = progress.steps_per_epoch
    return [("epoch", epoch + ("" if each is None else f" · {words.short(each)} steps each"))]


def epoch_words(progress: Progress) -> str:
    """``epoch 3 of 10``; empty where there are none."""
    if progress.epoch is None:
        return ""
    of = "" if progress.num_epochs is None else f" of {words.count(progress.num_epochs)}"
    return f"epoch {words.count(progress.epoch)}{of}"


def pace_facts(pace: Pace, width: int, *, every: int | None = None) -> Iterator[Fact]:
    """Everything that was measured, a line each."""
    yield from spread("speed", list(_speed(pace)), width)
    yield from spread("step time", list(_step_time(pace)), width)
    yield from time_facts(pace, width, every=every)
    if pace.memory is not None:
        yield from spread("memory", list(_memory(pace.memory)), width)
    if pace.slowest_rank is not None:
        yield from spread("ranks", list(_ranks(pace.slowest_rank)), width)
    if pace.noise_scale is not None and pace.noise_scale > 0:
        yield from spread("noise scale", list(_noise(pace.noise_scale, pace.batch_size)), width)


def outlook_facts(pace: Pace, width: int) -> Iterator[Fact]:
    """Where the loss is heading, and what the learning rate does."""
    parts = []
    if pace.outlook is not None:
        change = pace.outlook.change_per_1000
        if change is not None and pace.outlook.word in ("falling", "rising"):
            way = "lower" if change < 0 else "higher"
            parts.append(f"{words.share(abs(change))} {way} in 1,000 steps")
        if pace.outlook.at is not None:
            low, value, high = map(
                words.number, (pace.outlook.low, pace.outlook.value, pace.outlook.high)
            )
            at = words.count(pace.outlook.at)
            parts.append(f"about {value} at step {at} ({low} … {high})")
    yield from spread("outlook", parts, width)
    if pace.schedule:
        yield from spread("schedule", pace.schedule.split(" "), width, between=" ")


def time_facts(pace: Pace, width: int, *, every: int | None = None) -> Iterator[Fact]:
    """The bar of a step's phases, and its legend."""
    if not pace.shares:
        return
    yield "time", time_bar(pace.shares, min(LONGEST_BAR, room(width)))
    legend: list[str | Text] = list(time_legend(pace.shares))
    if every is not None and every > 1:
        # In between, the monitor does next to nothing: its share of the whole is lower.
        legend.append("of measured steps")
    yield from spread("", legend, width)


def _speed(pace: Pace) -> Iterator[str]:
    for value, unit in (
        (pace.steps_per_s, "steps/s"),
        (pace.samples_per_s, "samples/s"),
        (pace.tokens_per_s, "tokens/s"),
    ):
        if value is not None:
            yield f"{words.short(value)} {unit}"
    if pace.flops_per_s is not None:
        yield words.scaled(pace.flops_per_s, "FLOP/s")
    if pace.mfu is not None:
        yield f"{words.share(pace.mfu)} MFU"


def _step_time(pace: Pace) -> Iterator[str]:
    if pace.step_s is not None:
        yield f"{words.seconds(pace.step_s)} median"
    if pace.step_p95_s is not None:
        yield f"{words.seconds(pace.step_p95_s)} at p95"
    if pace.data_frac is not None and pace.data_frac >= LONG_WAIT:
        yield f"{words.percent(pace.data_frac)} waiting for data"


def _memory(memory: Memory) -> Iterator[str]:
    if memory.process_bytes is not None:
        peak = memory.process_peak_bytes
        of = "" if peak is None else f" (peak {words.size(peak)})"
        yield f"process {words.size(memory.process_bytes)}{of}"
    if memory.system_frac is not None:
        total = memory.system_total_bytes
        of = "" if total is None else f" of {words.size(total)}"
        yield f"system {words.percent(memory.system_frac)}{of}"
    yield from map(_gpu, memory.gpus)


def _gpu(gpu: GpuMemory) -> str:
    used = gpu.used_bytes if gpu.used_bytes is not None else gpu.reserved_bytes
    used = used if used is not None else gpu.allocated_bytes
    text = f"gpu{gpu.index}"
    if used is not None:
        of = "" if gpu.total_bytes is None else f" of {words.size(gpu.total_bytes)}"
        text += f" {words.size(used)}{of}"
    return text + ("" if gpu.peak_bytes is None else f" (peak {words.size(gpu.peak_bytes)})")


def _ranks(slowest: SlowestRank) -> Iterator[str]:
    longer = words.percent(slowest.slower_frac)
    if slowest.slower_frac > NEAR:
        took = words.seconds(slowest.step_s)
        yield f"rank {slowest.rank} is the slowest of {slowest.num_ranks}"
        yield f"{took} a step, {longer} above the median"
    else:
        yield f"{slowest.num_ranks}, steps within {words.percent(NEAR)} of the median"
    if slowest.data_s is None or slowest.median_data_s is None:
        return
    if slowest.data_s - slowest.median_data_s > NEAR * slowest.step_s:
        yield (
            f"rank {slowest.data_rank} waits {words.seconds(slowest.data_s)} for data, "
            f"the median {words.seconds(slowest.median_data_s)}"
        )


def _noise(scale: float, batch: float | None) -> Iterator[str]:
    if not batch:
        yield words.short(scale)
        return
    yield f"{words.short(scale)}, batch {words.short(batch)}"
    if batch < SMALL * scale:
        yield "larger batches still pay"
    elif batch > LARGE * scale:
        yield "larger batches hardly pay"
    else:
        yield "about the same"
