"""`Asked`: the arguments of a request, checked. What is wrong with one is said by its name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from torchvitals.record import ConfigError

MOST_POINTS: Final = 5000
LONGEST: Final = 2000
"""Characters of one argument."""


class Asked:
    """The query of a request, as pairs; `names` are the arguments its address knows."""

    def __init__(self, query: Iterable[tuple[str, str]], names: Sequence[str]) -> None:
        self._query: dict[str, list[str]] = {}
        for name, value in query:
            if name not in names:
                known = ", ".join(names) or "none"
                raise ConfigError(f"there is no argument {name[:80]!r} here; there are: {known}.")
            if len(value) > LONGEST:
                raise ConfigError(f"{name} is longer than {LONGEST} characters.")
            self._query.setdefault(name, []).append(value)

    def text(self, name: str) -> str:
        """One text that must be given."""
        value = self.maybe(name)
        if value is None:
            raise ConfigError(f"{name}= is missing.")
        return value

    def maybe(self, name: str) -> str | None:
        """One text, or None."""
        return self._query.get(name, [""])[-1] or None

    def several(self, name: str, most: int) -> list[str]:
        """All values of an argument that may be repeated, each once."""
        values = list(dict.fromkeys(self._query.get(name, ())))
        if len(values) > most:
            raise ConfigError(f"at most {most} {name}= at once, got {len(values)}.")
        return values

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """One of several words; the first one if it is not given."""
        value = self._query.get(name, [choices[0]])[-1]
        if value not in choices:
            raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value[:80]!r}.")
        return value

    def points(self, default: int) -> int:
        """How many buckets."""
        points = self.integer("points")
        if points is None:
            return default
        if not 1 <= points <= MOST_POINTS:
            raise ConfigError(f"points must be 1 … {MOST_POINTS}, got {points}.")
        return points

    def integer(self, name: str) -> int | None:
        """A whole number, or None when it is not given."""
        values = self.integers(name, 1)
        return values[0] if values else None

    def integers(self, name: str, most: int) -> list[int]:
        """Whole numbers that fit into the file's."""
        found = []
        for value in self.several(name, most):
            try:
                number = int(value)
            except ValueError:
                raise ConfigError(f"{name} must be a whole number, got {value[:80]!r}.") from None
            if abs(number) >= 1 << 62:
                raise ConfigError(f"{name} is too large: {value[:80]}.")
            found.append(number)
        return found

    @property
    def as_json(self) -> bool:
        """Whether ``format=json`` is asked for instead of a frame."""
        return self.choice("format", ("frame", "json")) == "json"
