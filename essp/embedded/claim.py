"""One process at a time runs a job in an output: `essp run` twice on the same one would train everything twice.

The holder is an object `locks/<number>` that says which process it is. Like fences they are numbered, and each number
can be written once, so of two that find a stale one only one takes the next. A listing is no snapshot: during one, the
next may have been written and the stale one deleted, and neither is in it. So whoever has written a number looks
again, before it deletes any other, and gives way to one that is there.

A process of this machine that is gone (killed, or the machine went down) leaves a stale one, which is replaced without
asking. Whether a process of another machine lives cannot be known: then the message names the object that a person
may delete.
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel, Field, ValidationError

from essp_common.artifacts import layout
from essp_common.errors import Conflict, NotFound
from essp_common.objects.numbered_log import NumberedLog
from essp_common.wiring import Stores


class _Holder(BaseModel):
    """The process that holds an output."""

    host: str
    pid: int = Field(gt=0, lt=2**31)
    began: str
    """See `_began`."""
    since: str
    """For people."""


class Claim:
    """The right to run in an output, for the time of a `with` block. Raises `Conflict`, naming who has it."""

    def __init__(self, uri: str, stores: Stores) -> None:
        """`uri`: a job's output."""
        self._uri = uri
        self._output = stores.under(uri)
        self._locks = NumberedLog(self._output, layout.LOCKS)
        self._number = 0

    def __enter__(self) -> Self:
        while not self._number:
            held = self._locks.numbers()
            self._refuse_if_alive(held)
            number = 1 + max(held, default=0)
            try:
                self._locks.write(number, _this_process().model_dump_json().encode())
                self._number = number
            except Conflict:
                if self._locks.numbers() == held:  # nobody was first: something else is in the way
                    raise
        others = [number for number in self._locks.numbers() if number != self._number]
        try:
            self._refuse_if_alive(others)
        except Conflict:
            self._locks.delete(self._number)
            raise
        for stale in others:
            self._locks.delete(stale)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._locks.delete(self._number)
        self._number = 0

    def _refuse_if_alive(self, numbers: list[int]) -> None:
        for number in numbers:
            try:
                holder = _Holder.model_validate_json(self._locks.read(number))
            except (NotFound, ValidationError):
                continue
            here = holder.host == socket.gethostname()
            if here and not _alive(holder.pid, holder.began):
                continue
            remedy = (
                f"wait for it, or end it with: kill {holder.pid}"
                if here
                else f"wait for it, or, if it is gone, delete {self._output.uri(self._locks.key(number))}"
            )
            raise Conflict(
                f"{self._uri} is in use: process {holder.pid} on {holder.host} has been "
                f"running a job in it since {holder.since}; {remedy}"
            )


def _this_process() -> _Holder:
    since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return _Holder(host=socket.gethostname(), pid=os.getpid(), began=_began(os.getpid()), since=since)


def _alive(pid: int, began: str) -> bool:
    """Whether it is there, and the same one: numbers of processes are used again."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's process
    return _began(pid) == began


def _began(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty for one that has ended, and where there is no /proc."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]
