"""Sick and healthy trainings to try diagnoses on: small, real, made from a seed.

    from torchvitals.testing import CASES, run_case
    outcome = run_case("01-lr-times-100-M", seed=0, folder="runs/sick")

`faults` holds what can be injected, `bases` what it is injected into, `healthy` trainings that look
odd and are well, `outcome` whether harm was done, `scoring` how well a diagnosis did.
"""

from torchvitals.testing.cases import CASES, Case, run_case
from torchvitals.testing.fault import Fault
from torchvitals.testing.faults import FAULTS
from torchvitals.testing.healthy import HEALTHY
from torchvitals.testing.outcome import Outcome, as_good, harm
from torchvitals.testing.settings import Settings

__all__ = [
    "CASES",
    "FAULTS",
    "HEALTHY",
    "Case",
    "Fault",
    "Outcome",
    "Settings",
    "as_good",
    "harm",
    "run_case",
]
