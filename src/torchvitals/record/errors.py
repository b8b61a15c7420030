"""Every exception torchvitals raises on purpose.

VitalsError
├── ConfigError          an argument is wrong; raised when attaching   (ValueError)
├── StoreError           a run file can't be written or read
│   ├── RunNotFound      there is no run at that path                  (FileNotFoundError)
│   ├── RunExists        it is there already, resume was not asked for (FileExistsError)
│   ├── RunLocked        another process is writing this run
│   ├── CorruptRun       the file is damaged, or not a run file at all
│   └── NewerRun         the file was written by a newer torchvitals
├── GuardStop            the guard ended the training, as it was told to
│   └── RollbackFailed   going back did not help, or there is nothing to go back to
├── UnknownKey           no such column in this run                    (KeyError)
├── StopTraining         a finding ended the training: watch(stop_on=…)
├── UnsupportedTensor    its values can't be read (meta, quantized)    (TypeError)
└── MissingExtra         an optional dependency is absent              (ImportError)
"""


class VitalsError(Exception):
    """Base of all torchvitals exceptions."""


class ConfigError(VitalsError, ValueError):
    """An argument is wrong: what was given, and what to give instead."""


class StoreError(VitalsError):
    """A run file can't be written or read."""


class RunNotFound(StoreError, FileNotFoundError):
    """There is no run at that path."""


class RunExists(StoreError, FileExistsError):
    """The run is there already and resuming was not asked for."""


class RunLocked(StoreError):
    """Another process is writing this run."""


class CorruptRun(StoreError):
    """The file is damaged, or is not a run file at all."""


class NewerRun(StoreError):
    """The file was written by a newer torchvitals than this one."""


class GuardStop(VitalsError):
    """The guard ended the training before a bad step reached the weights, as it was told to."""


class RollbackFailed(GuardStop):
    """Going back to an earlier state did not help as often as allowed, or there is none."""


class UnknownKey(VitalsError, KeyError):
    """No such column in this run."""

    def __str__(self) -> str:
        # KeyError shows the repr of its argument; a message should read as a sentence.
        return str(self.args[0]) if self.args else ""


class StopTraining(VitalsError):
    """A finding ended the training, as `watch(stop_on=…)` asked; `finding` is what was found."""

    def __init__(self, text: str, finding: object = None) -> None:
        super().__init__(text)
        self.finding = finding


class UnsupportedTensor(VitalsError, TypeError):
    """A tensor whose values can't be read (meta, quantized …)."""


class MissingExtra(VitalsError, ImportError):
    """An optional dependency is absent; the text has the pip line."""
