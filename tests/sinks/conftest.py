"""Settings for the tests of sinks."""

import pytest

from torchvitals.sinks import MLflow, Sink, Trackio


@pytest.fixture(autouse=True, scope="session")
def _patient() -> None:
    """Importing a tracker takes long on a busy machine, and these trainings are over at once."""
    for kind in (Sink, MLflow, Trackio):
        kind.patience_s = 50.0
