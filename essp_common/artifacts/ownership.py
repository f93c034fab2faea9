"""Who may write a training's checkpoints, and which of them is the latest: one log with one writer at a time.

    trainers/<trainer>/latest/0000000001      incarnation 1 owns the training; no checkpoint yet
    trainers/<trainer>/latest/0000000002      incarnation 1: the latest checkpoint is 1000-1
    trainers/<trainer>/latest/0000000003      incarnation 3 owns the training; the latest is still 1000-1
    trainers/<trainer>/latest/0000000004      incarnation 3: the latest is 2000-3

Every process that trains is an incarnation of the trainer. It begins by writing an entry, whose number is its
name, and adds one for each checkpoint. It writes an entry directly after the last one it knows, and only if that number
does not exist yet (`objects/numbered_log.py`). So the writer of the last entry owns the training. Another process of
the same name (it was frozen and thawed, its node was lost and came back, it was started twice) finds an entry that is
not its own: it gets `Fenced`, and the latest checkpoint does not change. One comparison decides both questions, so a
process never owns a training without knowing its latest checkpoint. A process recognises its own entries by its random
name: numbers repeat if an output is removed and started again.

Only the last few entries are kept. A writer that was suspended while its number was written and removed can still write
that number. That has no effect, because only the highest number counts, and the writer checks again afterwards.
"""

from __future__ import annotations

import logging
import threading
import uuid
from typing import Annotated, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from essp_common.artifacts import layout
from essp_common.errors import Conflict, Fenced, NotFound, Unavailable
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectStore

log = logging.getLogger(__name__)

Number = Annotated[int, Field(ge=0, lt=2**64)]


class CheckpointName(NamedTuple):
    """Identifies a checkpoint of a trainer."""

    step: int
    incarnation: int
    """Incarnation of the trainer that wrote it: two incarnations never write to the same folder."""


class Entry(BaseModel):
    """One entry of the log."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    owner: Number
    """The incarnation that wrote it."""
    fence: Number = 0
    """Fencing number of the master's command that started this incarnation."""
    writer: str = ""
    """The process, for display."""
    process: str = ""
    """A random name of that incarnation, because numbers repeat if an output is removed and started again."""
    step: Number | None
    """The latest checkpoint; null if there is none. An entry without this field is damaged."""
    incarnation: Number = 0
    """The incarnation that wrote that checkpoint."""

    @property
    def checkpoint(self) -> CheckpointName | None:
        """The latest checkpoint, if there is one."""
        return None if self.step is None else CheckpointName(self.step, self.incarnation)


class LastEntry(NamedTuple):
    """The end of the log."""

    number: int
    """0 if the log is empty."""
    entry: Entry | None
    """None if there is no entry or it cannot be read."""


class LatestLog:
    """The log of one trainer, for reading."""

    def __init__(self, store: ObjectStore, trainer: str) -> None:
        self.store = store
        self.trainer = trainer
        self.entries = NumberedLog(store, layout.latest(trainer))

    @property
    def uri(self) -> str:
        """The location of the log."""
        return self.store.uri(layout.latest(self.trainer).rstrip("/"))

    def last(self) -> LastEntry:
        """The end of the log."""
        while number := self.entries.newest():
            try:
                return LastEntry(number, Entry.model_validate_json(self.entries.read(number)))
            except NotFound:  # removed since the listing, so there is a newer one, or the log is gone
                continue
            except ValidationError as error:
                reason = error.errors()[0]["msg"]
                log.warning("%s is damaged: %s", self.store.uri(self.entries.key(number)), reason)
                return LastEntry(number, None)
        return LastEntry(0, None)


class Ownership:
    """The right to write the checkpoints of one training. Thread-safe."""

    def __init__(self, latest: LatestLog, number: int, entry: Entry) -> None:
        """`number`, `entry`: just written by this process."""
        self._latest = latest
        self._number = number
        self._entry = entry
        self._lock = threading.Lock()

    @classmethod
    def take(
        cls,
        latest: LatestLog,
        after: LastEntry,
        resumed: CheckpointName | None,
        fence: int,
        writer: str,
        newer: CheckpointName | None = None,
    ) -> Ownership | None:
        """Become the owner. Returns None if another process has written since `after` was read; then nothing was
        written.

        The caller must check that it still `is_last`; if not, another process has taken over from this entry.
        `resumed`: the checkpoint to resume from; it becomes the latest if the log does not name one. `newer`: a
        checkpoint that its writer had no time to point to; it becomes the latest. Raises `Fenced` if the present owner
        belongs to a later run of the job.
        """
        present = after.entry
        if present is not None and present.fence > fence:
            raise Fenced(
                f"trainer {latest.trainer} already trains in a later run of the job (fence {present.fence}, this one "
                f"has {fence}), in {present.writer or 'another process'}; this one leaves",
                present.fence,
            )
        number = after.number + 1
        pointed = newer or (resumed if present is None else present.checkpoint)
        entry = _entry(pointed, owner=number, fence=fence, writer=writer, process=uuid.uuid4().hex)
        try:
            latest.entries.write(number, entry.model_dump_json().encode())
        except Conflict:
            return None
        return cls(latest, number, entry)

    @property
    def incarnation(self) -> int:
        """The number that names this owner."""
        return self._entry.owner

    @property
    def process(self) -> str:
        """The random name of this owner."""
        return self._entry.process

    @property
    def pointed(self) -> CheckpointName | None:
        """The latest checkpoint."""
        return self._entry.checkpoint

    @property
    def is_last(self) -> bool:
        """Whether no other process has written an entry since."""
        return self._latest.entries.newest() == self._number

    def check(self) -> None:
        """Raises `Fenced` if another process owns the training now."""
        with self._lock:
            self._check()

    def point(self, checkpoint: CheckpointName) -> None:
        """Make a checkpoint the latest. Raises `Fenced` if another process owns the training; then its checkpoint is
        the latest. Also raises what the store raises; then the checkpoint may or may not be the latest."""
        with self._lock:
            self._check()
            own = self._entry
            entry = _entry(checkpoint, owner=own.owner, fence=own.fence, writer=own.writer, process=own.process)
            number = self._number + 1
            try:
                self._latest.entries.write(number, entry.model_dump_json().encode())
            except Conflict as error:
                self._check()
                if checkpoint != self.pointed:  # the store's listing lags behind its writes
                    raise Unavailable(f"{self._latest.uri}: entry {number} was there already; try again") from error
            else:
                self._number, self._entry = number, entry
                self._check()

    def tidy(self) -> None:
        """Remove old entries."""
        self._latest.entries.prune(self._number)

    def _check(self) -> None:
        last = self._latest.last()
        # numbers restart with the output, random names do not
        if last.entry is not None and last.entry.process == self.process:
            self._number, self._entry = last.number, last.entry  # possibly a later entry of ours whose answer was lost
            return
        if last.entry is None and last.number == self._number:  # our entry is damaged, but still the last
            return
        if last.number == 0 and self._restored():
            return
        other = last.entry
        who = "" if other is None else f" ({other.writer or 'unnamed'}, incarnation {other.owner}, fence {other.fence})"
        raise Fenced(
            f"another process{who} has taken trainer {self._latest.trainer} over from this one (incarnation "
            f"{self.incarnation}): that one continues, and this one leaves without saving",
            0 if other is None else other.fence,
        )

    def _restored(self) -> bool:
        """Write the last entry again, if all entries are gone but the checkpoint that it names exists.

        Without that checkpoint the job was started from scratch, and this process belongs to the removed output.
        """
        pointed = self.pointed
        if pointed is None:
            return False
        try:
            self._latest.store.head(layout.checkpoint(self._latest.trainer, *pointed) + layout.CHECKPOINT_MANIFEST)
            self._latest.entries.write(self._number, self._entry.model_dump_json().encode())
        except (NotFound, Conflict):
            return False
        log.warning("%s was lost; it is written again", self._latest.uri)
        return self._latest.entries.newest() == self._number


def _entry(checkpoint: CheckpointName | None, *, owner: int, fence: int, writer: str, process: str) -> Entry:
    step, incarnation = (None, 0) if checkpoint is None else checkpoint
    return Entry(owner=owner, fence=fence, writer=writer, process=process, step=step, incarnation=incarnation)
