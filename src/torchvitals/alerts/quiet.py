"""`Quiet`: what libraries log while a message is sent stays unsaid: they log whole addresses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

LOGGERS = (
    "apprise", "asyncio", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpx",
    "paho", "requests", "requests_oauthlib.oauth1_session", "requests_oauthlib.oauth2_session",
    "slixmpp", "urllib3.connection", "urllib3.connectionpool", "urllib3.util.retry",
)  # fmt: skip


class Quiet(logging.Filter):
    """Drops what one thread logs."""

    def __init__(self) -> None:
        super().__init__()
        self._thread = threading.get_ident()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether it may be said."""
        return record.thread != self._thread


@contextmanager
def quiet() -> Iterator[None]:
    """For this thread, and only for it."""
    filters = Quiet()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(filters)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(filters)
