"""Rows in, columns out: one SQLite file a run. `RunWriter` writes, `open_run` reads. No torch."""

from torchvitals.store.attempts import Attempt
from torchvitals.store.connect import migrate
from torchvitals.store.history import History, open_run
from torchvitals.store.runs import Listed, list_runs
from torchvitals.store.verify import Report, verify
from torchvitals.store.writer import RunWriter

__all__ = [
    "Attempt",
    "History",
    "Listed",
    "Report",
    "RunWriter",
    "list_runs",
    "migrate",
    "open_run",
    "verify",
]
