"""The process that packs checkpoints: `python -m essp_trainer.checkpoints.packing_child CONNECTION DELTA EXACT_EVERY
STATE OUTPUT...`, started by `packing_process.py`.

    to it      {"checkpoint", "packings", "alone", "size", "places"}    pack the state that is in the memory STATE
    from it    {"files": [[size, SHA-256, base], ...]}                  they are in the files OUTPUT..., one in each
               {"error", "transient"}                                   or not
    to it      {"completed"}                                            whether they became a checkpoint; no answer

STATE and OUTPUT are file descriptors of the parent's memory. The child has no credentials, uses no store, and imports
only NumPy and zstandard. It ends at once when its parent is gone, even during a request.
"""

from __future__ import annotations

import json
import mmap
import os
import sys
from typing import Any

from essp_common.errors import PermanentError
from essp_common.runtime.child_process import requests, to_parent
from essp_common.tensors.packed import Packing
from essp_common.tensors.places import Place, arrays_at
from essp_trainer.checkpoints.delta_packer import Packer

_NICE = 10
"""The training has priority on the cores."""


class Child:
    """Answers requests."""

    def __init__(self, state: int, outputs: list[int], packer: Packer) -> None:
        self._state = state
        self._outputs = outputs
        self._packer = packer
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._size = 0

    def answer(self, request: dict[str, Any]) -> dict[str, Any] | None:
        """Return the answer, or None if the request has no answer."""
        if "completed" in request:
            self._packer.settle(request["completed"])
            return None
        try:
            return {"files": self._pack(request)}
        except PermanentError as error:
            return {"error": str(error), "transient": False}
        except (MemoryError, OSError) as error:
            return {"error": f"packing a checkpoint failed: {error or 'no memory'}", "transient": True}

    def _pack(self, request: dict[str, Any]) -> list[tuple[int, str, tuple[str, int, str] | None]]:
        if request["size"] != self._size:
            self._size = request["size"]
            self._memory = mmap.mmap(self._state, self._size, prot=mmap.PROT_READ)
        packings = {name: Packing(**packing) for name, packing in request["packings"].items()}
        arrays = arrays_at(self._memory, [Place(*place) for place in request["places"]])
        packed = self._packer.pack(request["checkpoint"], arrays, packings, request["alone"])
        for output, file in zip(self._outputs, packed, strict=False):
            _write(output, file.data)
        return [(len(file.data), file.sha256, file.base) for file in packed]


def main() -> None:
    """Answer requests until the parent is gone."""
    parent = to_parent(sys.argv[1])
    os.nice(_NICE)
    delta, exact_every, state, *outputs = map(int, sys.argv[2:])
    child = Child(state, outputs, Packer(bool(delta), exact_every))
    asked = requests(parent)
    while True:
        if (answer := child.answer(json.loads(asked.get()))) is not None:
            parent.send(json.dumps(answer).encode())


def _write(output: int, data: bytes) -> None:
    os.ftruncate(output, 0)
    written = 0
    while written < len(data):
        written += os.pwrite(output, memoryview(data)[written:], written)


if __name__ == "__main__":
    main()
