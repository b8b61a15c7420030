"""The words everybody shares: keys, rows, bins, events, findings, run info, errors. No torch."""

from torchvitals.record.errors import (
    ConfigError,
    CorruptRun,
    GuardStop,
    MissingExtra,
    NewerRun,
    RollbackFailed,
    RunExists,
    RunLocked,
    RunNotFound,
    StopTraining,
    StoreError,
    UnknownKey,
    UnsupportedTensor,
    VitalsError,
)
from torchvitals.record.event import Event
from torchvitals.record.finding import Cause, Evidence, Finding, Severity
from torchvitals.record.key import KINDS, ROOT, SCALAR, SIGN_KINDS, TENSOR_KINDS, Key
from torchvitals.record.row import MISSING, Counts, Floats, HistogramRow, Row, is_missing
from torchvitals.record.run_info import GroupInfo, ModelInfo, ModuleInfo, ParameterInfo, RunInfo

__all__ = [
    "KINDS",
    "MISSING",
    "ROOT",
    "SCALAR",
    "SIGN_KINDS",
    "TENSOR_KINDS",
    "Cause",
    "ConfigError",
    "CorruptRun",
    "Counts",
    "Event",
    "Evidence",
    "Finding",
    "Floats",
    "GroupInfo",
    "GuardStop",
    "HistogramRow",
    "Key",
    "MissingExtra",
    "ModelInfo",
    "ModuleInfo",
    "NewerRun",
    "ParameterInfo",
    "RollbackFailed",
    "Row",
    "RunExists",
    "RunInfo",
    "RunLocked",
    "RunNotFound",
    "Severity",
    "StopTraining",
    "StoreError",
    "UnknownKey",
    "UnsupportedTensor",
    "VitalsError",
    "is_missing",
]
