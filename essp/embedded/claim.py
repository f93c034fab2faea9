"""Ensures that one process at a time runs a job in an output: two `essp run` on the same one would train everything
twice.

    locks/0000000007      says which process holds the output; the holder writes the next number every few seconds

Each number can be written once (`objects/numbered_log.py`), and the highest number counts. If a holder renews its claim
while another process takes it over, exactly one of them writes the next number, and the other one learns that it was
late.

**Whether a holder is alive** is known exactly if it runs on this kernel and in this process namespace: its pid and
start time tell. Nothing is assumed about any other holder (on another machine, or in another container, which may have
the same host name and the same pids): it counts as gone once no new number has appeared for `LEASE_S`. The waiting
process counts this time by its own pauses: clocks of two machines are never compared, and time during which the store
did not answer is not counted. A lock file that names no holder this release can read is waited for in the same way.

**A holder that was wrongly considered gone**, because it was frozen or cut off from the store for too long, finds a
number that it did not write: `check` raises `Fenced`. Until it notices, the job's fences keep it from writing anything
that counts.

A listing is not a snapshot: while it is made, a number may be written and an older one deleted, and the listing may
contain neither. So a process that has written its first number lists again before it deletes any other, and gives way
to a holder it finds.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import BaseModel, Field, ValidationError

from essp_common.artifacts import layout
from essp_common.artifacts.removal import folder_uri
from essp_common.errors import Conflict, EsspError, Fenced, NotFound
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectStore
from essp_common.runtime.threads import lasting

log = logging.getLogger(__name__)

RENEW_S = 10.0
LEASE_S = 120.0
"""Longer than an NFS client may show a stale listing (`acdirmax`, a minute), and longer than several retries of a
request."""
_LOOK_S = 2.0
_KEPT = 4
"""Numbers of a holder that are kept, so that a listing contains at least one of them."""


class _Holder(BaseModel):
    """The process that holds an output."""

    token: str
    """A random name of this claim."""
    host: str
    """For display: two machines or containers may have the same name."""
    pid: int = Field(gt=0, lt=2**31)
    began: str
    """See `_began`."""
    kernel: str
    """See `_kernel`."""
    since: str
    """For display."""

    @classmethod
    def this_process(cls) -> _Holder:
        return cls(
            token=uuid.uuid4().hex,
            host=socket.gethostname(),
            pid=os.getpid(),
            began=_began(os.getpid()) or "",
            kernel=_kernel(),
            since=datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}, which has been running a job in it since {self.since}"

    def is_near(self) -> bool:
        """Whether its process id is in this process's namespace."""
        return self.kernel != "" and self.kernel == _kernel()

    def lives(self) -> bool | None:
        """Whether it is alive; None if that cannot be determined from here."""
        if not self.is_near():
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's process
        began = _began(self.pid)
        return None if began is None else began == self.began  # pids are reused


class Claim:
    """The right to run in an output, during a `with` block. Raises `Conflict`, naming the holder."""

    def __init__(
        self,
        output: ObjectStore,
        say: Callable[[str], None] = log.warning,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        """`say`: reports why the block does not begin at once. `pause`: waits for a number of seconds."""
        self.waited = False
        """Whether it had to wait; then the output may have changed since it was last read."""
        self._uri = folder_uri(output)
        self._locks = NumberedLog(output, layout.LOCKS)
        self._say = say
        self._pause = pause
        self._mine: list[int] = []
        """Numbers that this claim has written and not deleted, ascending."""
        self._holder = _Holder.this_process()
        self._lost: Fenced | None = None
        self._left = threading.Event()
        self._renewing = lasting("essp-claim", self._renew_on, self._left)

    def __enter__(self) -> Self:
        while not self._mine:
            gone = self._wait_for_holders()
            number = 1 + max(gone, default=0)
            try:
                self._write(number)
            except Conflict:
                if self._look() == gone:  # no other process was first: something else is in the way
                    raise
        try:
            # List again: a holder that the first listing missed (see the module) has priority over this one.
            for other, data in self._look().items():
                if other not in self._mine and gone.get(other) != data and _fate(data) is not False:
                    raise self._in_use(data)
            for other in gone:
                self._locks.delete(other)
        except BaseException:
            self._delete_mine()
            raise
        self._renewing.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._left.set()
        self._renewing.join()
        if self._lost is None:
            self._delete_mine()

    def check(self) -> None:
        """Raises `Fenced` if another process has taken the output over."""
        if self._lost is not None:
            raise self._lost

    def renew(self) -> None:
        """Show that this process is alive; its thread calls this every `RENEW_S`. Raises what the store raises."""
        newest = self._locks.newest() or self._mine[-1]
        if newest != self._mine[-1]:
            try:
                other = _holder(self._locks.read(newest))
            except NotFound:  # a newer one has replaced it since the listing: the next renewal sees it
                return
            if other is None or other.token != self._holder.token:
                self._lose(other)
                return
            # written earlier, but the answer was lost
            self._mine = [*(number for number in self._mine if number < newest), newest]
        with suppress(Conflict):  # written by another process: the next renewal finds out which
            self._write(self._mine[-1] + 1)
        while len(self._mine) > _KEPT:
            self._locks.delete(self._mine[0])
            del self._mine[0]

    def _renew_on(self) -> None:
        while self._lost is None and not self._left.wait(RENEW_S):
            try:
                self.renew()
            except EsspError as error:
                log.warning("%s: the claim of this process was not renewed, which is tried again: %s", self._uri, error)

    def _lose(self, other: _Holder | None) -> None:
        self._lost = Fenced(
            f"{self._uri} was taken over by {other or 'another process'}, as this one had given no sign of life for "
            f"{LEASE_S:g} s: that one continues, and this one leaves"
        )

    def _wait_for_holders(self) -> dict[int, bytes]:
        """Wait until the remaining holders are gone, and return their numbers. Raises `Conflict` if one is alive."""
        seen: dict[int, bytes] = {}
        waited_s = 0.0
        while True:
            found = self._look()
            fates = {number: _fate(data) for number, data in found.items()}
            if alive := [number for number, fate in fates.items() if fate]:
                raise self._in_use(found[max(alive)])
            silent = {number: found[number] for number, fate in fates.items() if fate is None}
            if seen and not silent.items() <= seen.items():
                raise self._in_use(found[max(silent)])
            if not silent or waited_s >= LEASE_S:
                return found
            if not seen:
                seen, self.waited = silent, True
                who = _holder(silent[max(silent)]) or f"what {self._locks.uri(max(silent))} names, which cannot be read"
                self._say(
                    f"{self._uri} is held by {who}; waiting for up to {LEASE_S:g} s to see whether it still lives ..."
                )
            self._pause(_LOOK_S)
            waited_s += _LOOK_S

    def _look(self) -> dict[int, bytes]:
        found = {}
        for number in self._locks.numbers():
            with suppress(NotFound):  # deleted meanwhile
                found[number] = self._locks.read(number)
        return found

    def _in_use(self, data: bytes) -> Conflict:
        holder = _holder(data)
        if holder is None:
            return Conflict(f"{self._uri} is in use by a process of another release of ESSP; wait for it, or end it")
        remedy = f"end it with: kill {holder.pid}" if holder.is_near() else f"end it on {holder.host}"
        return Conflict(f"{self._uri} is in use by {holder}; wait for it, or {remedy}")

    def _write(self, number: int) -> None:
        self._locks.write(number, self._holder.model_dump_json().encode())
        self._mine.append(number)

    def _delete_mine(self) -> None:
        try:
            while self._mine:
                self._locks.delete(self._mine[0])
                del self._mine[0]
        except EsspError as error:  # the work in the output is done in any case
            log.warning("%s: the claim of this process stays behind, and counts as gone: %s", self._uri, error)


def _holder(data: bytes) -> _Holder | None:
    try:
        return _Holder.model_validate_json(data)
    except ValidationError:
        return None


def _fate(data: bytes) -> bool | None:
    """Whether the holder that wrote this is alive; None if that cannot be determined from here."""
    holder = _holder(data)
    return None if holder is None else holder.lives()


def _kernel() -> str:
    """Identifies the running kernel and the process namespace: pids are only comparable within the same ones.

    Empty without /proc. The number of a namespace is reused, but only after all its processes have ended.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _began(pid: int) -> str | None:
    """When a process began, in kernel ticks; empty for a zombie, which has ended but was not reaped.

    None if that cannot be read: there is no /proc, it hides other users' processes (`hidepid`), or the process has just
    ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]
