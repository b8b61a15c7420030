"""A device whose clock is turned by hand: it copies nothing before it is told to go on."""

import threading

import torch


class FakeMark:
    def __init__(self, device, place):
        self._device, self._place = device, place

    def passed(self):
        return self._device.done >= self._place

    def wait(self):
        assert threading.current_thread() is not threading.main_thread() or self.passed()
        with self._device.turned:
            assert self._device.turned.wait_for(self.passed, timeout=60)


class FakeDevice:
    """All tensors are its own. Work is done in order, as many pieces as `turn` allows."""

    def __init__(self, *, runs=False):
        self.runs = runs
        self.work = []
        self.done = 0
        self.turned = threading.Condition()
        self.buffers = []
        self.num_copies = 0

    def awake(self):
        return True

    def owns(self, tensor):
        return True

    def buffer(self, num_bytes):
        # What was never written shows: no measurement is 0xA5A5…
        self.buffers.append(torch.full((num_bytes,), 0xA5, dtype=torch.uint8))
        return self.buffers[-1]

    def copy(self, source, target):
        self.num_copies += 1
        self._queue(lambda: target.copy_(source))

    def mark(self, tensor):
        self._queue(lambda: None)
        return FakeMark(self, len(self.work))

    def _queue(self, action):
        self.work.append(action)
        if self.runs:
            self.turn()

    def turn(self, pieces=None):
        """Let the device do its work, all of it or some pieces."""
        end = len(self.work) if pieces is None else min(self.done + pieces, len(self.work))
        with self.turned:
            while self.done < end:
                self.work[self.done]()
                self.done += 1
            self.turned.notify_all()
