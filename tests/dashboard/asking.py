"""Asking the API as a script does, and reading its frames."""

from __future__ import annotations

import json
import struct
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

TOKEN = "a-token-of-the-tests"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


class Frame:
    """A frame, read as docs/api.md says."""

    def __init__(self, body: bytes) -> None:
        (length,) = struct.unpack_from("<I", body)
        begin = 4 + length
        assert begin % 8 == 0
        self.header: dict[str, Any] = json.loads(body[4:begin])
        self.arrays: dict[str, NDArray[Any]] = {}
        for name, told in self.header["arrays"].items():
            assert told["offset"] % 8 == 0
            count = int(np.prod(told["shape"]))
            dtype = np.dtype(told["dtype"]).newbyteorder("<")
            array = np.frombuffer(body, dtype, count, begin + told["offset"])
            self.arrays[name] = array.reshape(told["shape"])


class Api:
    """GETs with the token."""

    def __init__(self, client: httpx.Client) -> None:
        self.client = client

    def get(self, path: str, status: int = 200, **arguments: Any) -> httpx.Response:
        answer = self.client.get(f"/api/{path}", params=arguments, headers=BEARER)
        assert answer.status_code == status, answer.text
        return answer

    def json(self, path: str, **arguments: Any) -> Any:
        return self.get(path, **arguments).json()

    def frame(self, path: str, **arguments: Any) -> Frame:
        answer = self.get(path, **arguments)
        assert answer.headers["content-type"] == "application/octet-stream"
        return Frame(answer.content)

    def error(self, path: str, status: int, **arguments: Any) -> str:
        found = self.get(path, status, **arguments).json()
        assert found["status"] == status
        text: str = found["error"]
        return text

    def ids(self) -> dict[str, str]:
        """Name → id."""
        return {line["name"]: line["id"] for line in self.json("runs")["runs"]}

    def run(self, name: str = "gpt") -> str:
        """The path of a run."""
        return f"runs/{self.ids()[name]}"
