"""Diagnosis: runs the rules, groups symptoms under their cause, ranks.

diagnose         a stored run, afterwards or while it runs
Diagnostician    beside the training, within a budget
Watchdog         from another process, while the training runs
pulse            whether the run goes on at all
"""

from torchvitals.diagnosis.diagnose import Diagnosis, Unchecked, diagnose
from torchvitals.diagnosis.live import Diagnostician
from torchvitals.diagnosis.pulse import pulse
from torchvitals.diagnosis.watchdog import Watchdog

__all__ = ["Diagnosis", "Diagnostician", "Unchecked", "Watchdog", "diagnose", "pulse"]
