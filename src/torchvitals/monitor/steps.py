"""Which step it is, and whether it is measured.

A step is one optimizer step, whatever happens inside (micro-batches, closures). With several
optimizers (a GAN) a step is a round: it ends when all of them have stepped, or when one is about to
step a second time. Steps count from 1; a resumed run goes on where the last one ended.
"""

from __future__ import annotations

from torchvitals.record import ConfigError

EXACT_EVERY = 10
"""Between two steps whose outputs are read whole, as far as they are monitored."""


class Steps:
    """Counts steps and decides which are monitored: the first one, and every `every`-th.

    Of these, one in `exact_every` steps is exact.
    """

    def __init__(
        self, every: int, num_optimizers: int, last: int = 0, *, exact_every: int = EXACT_EVERY
    ) -> None:
        _check("every", every, "measure each step")
        _check("exact_every", exact_every, "read outputs whole each time")
        self._every = every
        self._exact_every = exact_every
        self._num_optimizers = num_optimizers
        self._first = last + 1
        self._extra = last + 1
        """Measured whatever its number is: something is seen at once."""
        self._stepped: set[int] = set()
        self.current = last + 1
        """The step under way."""

    def resume(self, done: int) -> None:
        """Go on after that step as if nothing had been interrupted: no step is measured extra."""
        self.current = self._first = done + 1
        self._extra = 1
        self._stepped.clear()

    @property
    def done(self) -> int:
        """The last finished step."""
        return self.current - 1

    @property
    def has_stepped(self) -> bool:
        """Whether any step ended since the monitor was attached."""
        return self.current > self._first

    def monitored(self, step: int) -> bool:
        """Whether that step is measured. By its number alone, so that all ranks agree."""
        return step % self._every == 0 or step == self._extra

    def exact(self, step: int) -> bool:
        """Whether that step, if it is monitored, is the first such one of its `exact_every`."""
        return step % self._exact_every < self._every or step == self._extra

    def again(self, optimizer: int) -> bool:
        """Whether this optimizer has stepped in the current step already."""
        return optimizer in self._stepped

    def stepped(self, optimizer: int) -> bool:
        """Note that this optimizer has stepped; True when that ends the step."""
        self._stepped.add(optimizer)
        return len(self._stepped) >= self._num_optimizers

    def advance(self) -> int:
        """End the current step; returns the next one."""
        self._stepped.clear()
        self.current += 1
        return self.current


def _check(name: str, steps: int, one: str) -> None:
    if isinstance(steps, bool) or not isinstance(steps, int):
        raise ConfigError(f"{name} must be a whole number of steps, got {steps!r}")
    if steps < 1:
        raise ConfigError(f"{name} must be at least 1, got {steps}; use {name}=1 to {one}")
