"""`Reads`: where our code brings a tensor's value to the host on the training thread.

On a GPU each of these waits until the device has done everything asked of it before. Tensors of a
training on CPUs are made to look as if they were on a device: what is read there because it is on
the host anyway (a step counter, a scale) is treated as it would be on a GPU.
"""

import sys
import threading

import torch

WAYS = ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__")

EXCHANGE = ("monitor/ranks.py", "monitor/gathering.py", "monitor/lag.py", "monitor/replicas.py")
"""Files of ours that work, and let others work, on what has arrived on the host."""


class Reads:
    """Inside `with`: every read, as text of how and where."""

    def __init__(self):
        self.places = []

    def __enter__(self):
        self._thread = threading.get_ident()
        self._kept = {way: getattr(torch.Tensor, way) for way in WAYS}
        for way, function in self._kept.items():
            setattr(torch.Tensor, way, self._counted(way, function))
        torch.Tensor.is_cpu = property(self._is_cpu)
        return self

    def __exit__(self, *_):
        for way, function in self._kept.items():
            setattr(torch.Tensor, way, function)
        del torch.Tensor.is_cpu  # that of its base class shows again

    def _counted(self, way, function):
        def read(tensor, *args, **kwargs):
            if place := self._asked_by_us():
                self.places.append(f"{way} in {place}")
            return function(tensor, *args, **kwargs)

        return read

    def _is_cpu(self, tensor):
        return tensor.device.type == "cpu" and not self._asked_by_us()

    def _asked_by_us(self):
        """The line of ours that asks, if it is one."""
        if threading.get_ident() != self._thread or torch.compiler.is_compiling():
            return None
        code = sys._getframe(2).f_code
        if "/src/torchvitals/" not in code.co_filename or _may_read():
            return None
        return f"{code.co_filename}:{sys._getframe(2).f_lineno}"


def _may_read():
    """Whether the numbers are on the host, or the training pauses: a checkpoint, the end."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if code.co_name in {"state_dict", "load_state_dict", "close"}:
            return True
        if code.co_filename.endswith(EXCHANGE):
            return True
        frame = frame.f_back
    return False
