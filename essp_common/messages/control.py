"""Gives every process the master's commands for each job: the latest one in `essp.control` counts.

Each process reads the whole topic from its beginning, without a group, so a process that starts late knows as much as
one that was there from the start. The topic is small. Every command carries the job's snapshot, so only the latest
command of a job matters. Of two masters, the one with the higher fence wins: a command with a lower fence than the
latest one of its job is ignored. If the bus does not answer, the feed keeps its state and polls again until `close`.
Thousands of jobs may have ended, and a parsed message takes many times its size, so commands that ended a job are kept
packed.

A message without a job names the pools that are paused: their workers finish what they have and take nothing new.
"""

from __future__ import annotations

import logging
import threading
import zlib
from collections.abc import Callable, Collection, Sequence
from typing import TypeAlias

from essp_common import topics
from essp_common.bus.port import Bus, Record
from essp_common.bus.reading import batches
from essp_common.messages.parsing import BadMessage, parsed, refuse
from essp_common.pb.v1.messages_pb2 import Control, JobSnapshot
from essp_common.runtime.threads import lasting

log = logging.getLogger(__name__)

Command: TypeAlias = Control.Command
Listener = Callable[[Control], None]

ENDED = frozenset({Control.STOP, Control.COMPLETE, Control.FAIL})
"""Commands after which work of the job is useless. A STOP may be followed by a START that resumes the job."""

_POLL_S = 0.2
_POLL_RECORDS = 1000


def run_of(control: Control) -> int:
    """The run of the job that a command belongs to: the fence with which the run began."""
    return control.since or control.fence


def ends_for_next(control: Control) -> bool:
    """Whether the command ends the run because the job gets more epochs or trainers: the present trainers save, and
    wait for the next run."""
    return bool(control.next_spec_json) and control.command not in ENDED


class ControlFeed:
    """Knows the latest command of every job. Thread-safe."""

    def __init__(self, bus: Bus) -> None:
        """Follow the topic in its own thread, until `close`."""
        self._latest: dict[str, Control] = {}
        self._ended: dict[str, bytes] = {}
        self._paused: frozenset[str] = frozenset()
        self._listeners: list[Listener] = []
        self._changed = threading.Condition()
        self._dispatch = threading.RLock()  # serialises calls of the listeners, so that each gets the commands in order
        self._closing = threading.Event()
        self._subscription = bus.subscribe([topics.CONTROL], group=None)
        self._thread = lasting("essp-control", self._follow, self._closing)
        self._thread.start()

    def latest(self, job: str) -> Control | None:
        """The last command of a job, or None if no command is known yet."""
        with self._changed:
            return self._known(job)

    def state(self, job: str) -> Command:
        """The last command of a job; `COMMAND_UNSPECIFIED` if no command is known yet."""
        control = self.latest(job)
        return Control.COMMAND_UNSPECIFIED if control is None else control.command

    def ended(self, job: str, fence: int = 0) -> bool:
        """Whether the job was stopped, is complete or has failed: its queued work may be dropped.

        `fence`: of the work in question. Work with a higher fence belongs to a later start of the job, whose command
        has not arrived here yet.
        """
        control = self.latest(job)
        return control is not None and control.command in ENDED and fence <= control.fence

    def outdated(self, job: str, fence: int) -> bool:
        """Whether work issued with this fence is obsolete, because another master has taken over the job and issues its
        own."""
        control = self.latest(job)
        return control is not None and fence < control.fence

    def of_earlier_run(self, job: str, fence: int) -> bool:
        """Whether a message with this fence (0: none) belongs to an earlier run of the job than the present one."""
        control = self.latest(job)
        return control is not None and 0 < fence < run_of(control)

    def run_of(self, job: str, fence: int) -> int | None:
        """The current run of the job, by the fence with which it began. A message with this fence may belong to an
        earlier run. None: no command with at least this fence has arrived yet."""
        control = self.latest(job)
        return run_of(control) if control is not None and fence <= control.fence else None

    def snapshot(self, job: str) -> JobSnapshot | None:
        """The snapshot of the job, or None if no command is known yet."""
        control = self.latest(job)
        return None if control is None else control.snapshot

    def is_paused(self, pool: str) -> bool:
        """Whether the workers of a pool may take nothing new."""
        return pool in self._paused

    def jobs(self) -> dict[str, Control]:
        """The last command of every job."""
        with self._changed:
            return self._latest | {job: _unpacked(packed) for job, packed in self._ended.items()}

    def wait(self, job: str, timeout_s: float, commands: Collection[Command] = ()) -> Control | None:
        """Wait until the job's last command is one of `commands` (empty: any). Returns None on timeout or when the feed
        is closed."""

        def arrived() -> bool:
            control = self._known(job)
            return self._closing.is_set() or (control is not None and (not commands or control.command in commands))

        with self._changed:
            if not self._changed.wait_for(arrived, timeout_s) or self._closing.is_set():
                return None
            return self._known(job)

    def on_change(self, listener: Listener) -> None:
        """Call `listener` with the last known command of every job, then with each new one.

        Calls do not overlap. A listener must be fast and must not call `close`. Exceptions that it raises are logged.
        """
        with self._dispatch:
            # Under the lock, so that no command is missed or delivered twice between the replay and the registration.
            for control in self.jobs().values():
                self._notify(listener, control)
            self._listeners.append(listener)

    def forget(self, listener: Listener) -> None:
        """Stop calling a listener of `on_change`."""
        with self._dispatch:
            if listener in self._listeners:
                self._listeners.remove(listener)

    def close(self) -> None:
        """Stop following the topic. Idempotent."""
        self._closing.set()
        with self._changed:
            self._changed.notify_all()
        self._thread.join()
        self._subscription.close()

    def _follow(self) -> None:
        for records in batches(self._subscription, self._closing, "control", _POLL_RECORDS, _POLL_S):
            self._accept(records)

    def _accept(self, records: Sequence[Record]) -> None:
        """Apply all records of a poll before notifying, so that a late process does not act on a superseded command."""
        with self._dispatch:
            with self._changed:
                news = [control for record in records if (control := self._news(record)) is not None]
                self._changed.notify_all()
            for control in news:
                for listener in list(self._listeners):
                    self._notify(listener, control)

    def _news(self, record: Record) -> Control | None:
        """The command of a record, if it is now the last one of its job; otherwise None."""
        try:
            control = parsed(Control, record)
        except BadMessage as error:
            refuse("control", record, error)
            return None
        if control.HasField("pools"):
            self._paused = frozenset(control.pools.names)
            return None
        known = self._known(control.job)
        if known is not None and control.fence < known.fence and not known.removed:
            return None
        if control.command in ENDED:
            self._ended[control.job] = zlib.compress(record.value)
            self._latest.pop(control.job, None)
        else:
            self._latest[control.job] = control
            self._ended.pop(control.job, None)
        return control

    def _known(self, job: str) -> Control | None:
        if (control := self._latest.get(job)) is None and (packed := self._ended.get(job)) is not None:
            return _unpacked(packed)
        return control

    def _notify(self, listener: Listener, control: Control) -> None:
        try:
            listener(control)
        except Exception:  # a listener must not cut the others off from the master
            log.exception("control: a listener failed on %s", control.job)


def _unpacked(packed: bytes) -> Control:
    return Control.FromString(zlib.decompress(packed))
