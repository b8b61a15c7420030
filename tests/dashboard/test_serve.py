"""What the server's log leaves out."""

from __future__ import annotations

import asyncio
import logging
import sys

import pytest

from torchvitals.dashboard.serve import is_worth_saying


@pytest.mark.parametrize(
    ("message", "error", "said"),
    [
        ("Cancel %s running task(s), timeout graceful shutdown exceeded", None, False),
        ("Exception in ASGI application\n", asyncio.CancelledError(), False),
        ("Exception in ASGI application\n", ValueError("a bug"), True),
        ("Invalid HTTP request received.", None, True),
    ],
)
def test_what_was_given_up_at_the_end(
    message: str, error: BaseException | None, *, said: bool
) -> None:
    about = None
    if error is not None:
        try:
            raise error
        except BaseException:
            about = sys.exc_info()
    record = logging.LogRecord("uvicorn.error", logging.ERROR, "", 0, message, (2,), about)
    assert is_worth_saying(record) is said
