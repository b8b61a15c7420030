"""A sink of one's own: the newest values as a Markdown table, for a README or a chat.

Once installed: ``torchvitals.watch(…, sinks=["markdown:values.md"])``.
"""

from pathlib import Path

from torchvitals.record import Key, Row, RunInfo
from torchvitals.sinks import Sink


class MarkdownTable(Sink):
    """Rewrites the file about once a second."""

    name = "a Markdown table"

    def __init__(self, path: str = "values.md") -> None:
        self.path = Path(path)
        self._run = ""
        self._step = 0
        self._newest: dict[Key, float] = {}

    def open(self, info: RunInfo, folder: Path) -> None:
        """Learn the run's name."""
        self._run = info.name

    def write(self, row: Row) -> None:
        """Called once a step, on a thread of its own: it may take its time, and may fail."""
        self._step = row.step
        self._newest.update(zip(row.header, row.values.tolist(), strict=True))

    def flush(self) -> None:
        """Called about once a second."""
        lines = [f"| {key} | {value:.4g} |" for key, value in sorted(self._newest.items())]
        head = [f"### {self._run} at step {self._step}", "", "| column | value |", "|---|---|"]
        self.path.write_text("\n".join([*head, *lines, ""]), encoding="utf-8")

    def close(self, status: str) -> None:
        """Called at the end of the run."""
        self.flush()
