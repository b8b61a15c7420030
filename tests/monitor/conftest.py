"""No test may leave a monitor open: its hooks would see the next test's models."""

import pytest

from torchvitals.monitor import monitor as monitors


@pytest.fixture(autouse=True)
def close_monitors():
    yield
    for monitor in list(monitors._open_monitors):
        monitor.close("failed")
