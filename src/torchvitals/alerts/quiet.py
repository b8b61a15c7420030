"""`quiet`: what libraries log while a message is sent stays unsaid: they log whole addresses."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

LOGGERS = (
    "apprise", "asyncio", "httpcore.connection", "httpcore.http11", "httpcore.http2", "httpx",
    "paho", "requests", "requests_oauthlib.oauth1_session", "requests_oauthlib.oauth2_session",
    "slixmpp", "urllib3.connection", "urllib3.connectionpool", "urllib3.util.retry",
)  # fmt: skip

_sending: ContextVar[bool] = ContextVar("torchvitals_sending", default=False)
"""True in the thread that sends, and in those apprise starts for it."""


class _Quiet(logging.Filter):
    """Drops what is logged by whoever sends."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not _sending.get()


@contextmanager
def quiet() -> Iterator[None]:
    """For this context, and only for it."""
    unsaid = _Quiet()
    token = _sending.set(True)
    for name in LOGGERS:
        logging.getLogger(name).addFilter(unsaid)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(unsaid)
        _sending.reset(token)
