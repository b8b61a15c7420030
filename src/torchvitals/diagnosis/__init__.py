"""Diagnosis: runs the rules, groups symptoms under their cause, ranks.

diagnose         a stored run, afterwards or while it runs
Diagnostician    beside the training, within a budget
"""

from torchvitals.diagnosis.diagnose import Diagnosis, Unchecked, diagnose
from torchvitals.diagnosis.live import Diagnostician

__all__ = ["Diagnosis", "Diagnostician", "Unchecked", "diagnose"]
