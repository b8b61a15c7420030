"""`TensorBoard`: event files, written with the `tensorboard` package alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from torchvitals.record import Event, HistogramRow, Row, RunInfo
from torchvitals.sinks.buckets import Buckets, buckets
from torchvitals.sinks.layout import histogram_tag, shown, tag
from torchvitals.sinks.sink import Sink, need

EXTRA = "tensorboard"


class TensorBoard(Sink):
    """One event a step, in a folder; by default ``tensorboard`` in the run's own."""

    name: ClassVar[str] = "TensorBoard"

    def __init__(self, folder: str | Path | None = None, *, series: str | None = None) -> None:
        self.folder = Path(folder) if folder is not None else None
        self.series = series
        self._writer: Any = None
        self._protos: Any = None
        self._summaries: Any = None

    def open(self, info: RunInfo, folder: Path) -> None:
        """Begin an event file."""
        files = need("tensorboard.summary.writer.event_file_writer", extra=EXTRA)
        self._protos = need("tensorboard.compat.proto.event_pb2", extra=EXTRA)
        self._summaries = need("tensorboard.compat.proto.summary_pb2", extra=EXTRA)
        target = self.folder if self.folder is not None else folder / "tensorboard"
        self._writer = files.EventFileWriter(str(target))

    def write(self, row: Row) -> None:
        """One step."""
        summary = self._summaries.Summary()
        for key, value in zip(row.header, row.values.tolist(), strict=True):
            summary.value.add(tag=tag(key), simple_value=shown(key, value))
        self._add(row.step, row.time, summary)

    def histograms(self, row: HistogramRow) -> None:
        """Distributions, bucket for bucket."""
        summary = self._summaries.Summary()
        for (kind, site), counts in zip(row.sites, row.counts, strict=True):
            found = buckets(counts)
            if found is not None:
                summary.value.add(tag=histogram_tag(kind, site), histo=self._histogram(found))
        self._add(row.step, row.time, summary)

    def event(self, event: Event) -> None:
        """In the tab "Text"."""
        tensors = need("tensorboard.compat.proto.tensor_pb2", extra=EXTRA)
        shapes = need("tensorboard.compat.proto.tensor_shape_pb2", extra=EXTRA)
        metadata = need("tensorboard.plugins.text.metadata", extra=EXTRA)
        text = f"**{event.kind}** {event.text}"
        shape = shapes.TensorShapeProto(dim=[shapes.TensorShapeProto.Dim(size=1)])
        tensor = tensors.TensorProto(
            dtype="DT_STRING", tensor_shape=shape, string_val=[text.encode()]
        )
        summary = self._summaries.Summary()
        summary.value.add(
            tag=f"Events/{event.kind}",
            metadata=metadata.create_summary_metadata("", ""),
            tensor=tensor,
        )
        self._add(event.step, event.time, summary)

    def flush(self) -> None:
        """To the disk."""
        self._writer.flush()

    def close(self, status: str) -> None:
        """End the file."""
        self._writer.close()

    def _add(self, step: int, time: float, summary: Any) -> None:
        self._writer.add_event(self._protos.Event(wall_time=time, step=step, summary=summary))

    def _histogram(self, found: Buckets) -> Any:
        middles, counts = found.middles, found.counts
        return self._summaries.HistogramProto(
            min=float(found.edges[0]),
            max=float(found.edges[-1]),
            num=float(counts.sum()),
            sum=float(np.dot(middles, counts)),
            sum_squares=float(np.dot(middles * middles, counts)),
            bucket_limit=found.edges[1:].tolist(),
            bucket=counts.tolist(),
        )
