"""Dead letters in a form for people: the failure, and the affected clip."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from google.protobuf.message import DecodeError

from essp_common import topics
from essp_common.failures import kind_word
from essp_common.pb.v1.messages_pb2 import ClipReady, ClipRef, DeadLetter, DecodeSeed, Purpose

ClipKey = tuple[str, int, int, int]
"""Job, purpose, epoch and index of a clip, for all its attempts."""


@dataclass(frozen=True, slots=True)
class Seed:
    """The clip that could not be made. Empty if the original message cannot be read."""

    job: str = ""
    purpose: str = ""
    epoch: int = 0
    index: int = 0
    attempt: int = 0
    video: str = ""
    uri: str = ""
    first_frame: int = 0
    class_id: int = 0


@dataclass(frozen=True, slots=True)
class Entry:
    """One dead letter."""

    id: str
    """Identifies the entry in its store. `show`, `replay` and `purge` accept it."""
    time: str
    """ISO 8601, UTC."""
    kind: str
    """damaged, truncated, vanished, crashed, ...: `services/essp_decoder/README.md` lists all kinds."""
    reason: str
    topic: str
    """The topic of the original message."""
    attempts: int
    """How often the worker tried before it gave up."""
    worker: str
    seed: Seed

    def document(self) -> dict[str, Any]:
        """The entry as a JSON document."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Filter:
    """Selects entries. An empty field selects all."""

    ids: tuple[str, ...] = ()
    job: str = ""
    kind: str = ""
    video: str = ""
    """Part of the video's id or URI."""

    def matches(self, entry: Entry) -> bool:
        """Whether the filter selects the entry."""
        seed = entry.seed
        return (
            (not self.ids or entry.id in self.ids)
            and self.job in ("", seed.job)
            and self.kind in ("", entry.kind)
            and (self.video in seed.video or self.video in seed.uri)
        )


def entry_of(identity: str, message: DeadLetter) -> Entry:
    """The entry for a message of `essp.deadletter`."""
    return Entry(
        id=identity,
        time=_time(message.time_ms),
        kind=kind_word(message.kind),
        reason=message.reason,
        topic=message.topic,
        attempts=message.attempts,
        worker=message.worker,
        seed=_seed(message),
    )


def clip_key_of(message: DeadLetter) -> ClipKey | None:
    """The clip of the original message; None if that message cannot be read."""
    original = original_of(message)
    if isinstance(original, DecodeSeed):
        return original.job, original.purpose, original.epoch, original.seeds[0].index
    if isinstance(original, ClipReady):
        clip = original.clip
        return clip.job, clip.purpose, clip.epoch, clip.index
    return None


def original_of(message: DeadLetter) -> DecodeSeed | ClipReady | None:
    """The message that the worker gave up; None if it is unreadable or incomplete."""
    if message.cut_bytes:
        return None
    try:
        if message.topic == topics.SEEDS:
            unit = DecodeSeed.FromString(message.message)
            return unit if unit.job and unit.seeds else None
        ready = ClipReady.FromString(message.message)
        return ready if ready.clip.job else None
    except DecodeError:
        return None


def _seed(message: DeadLetter) -> Seed:
    original = original_of(message)
    if isinstance(original, DecodeSeed):
        seed, video = original.seeds[0], original.video
        clip = ClipRef(
            job=original.job,
            purpose=original.purpose,
            epoch=original.epoch,
            index=seed.index,
            attempt=seed.attempt,
            class_id=seed.class_id,
            video_id=seed.record.id or video.id,
            first_frame=seed.first_frame,
        )
        return _described(clip, video.uri)
    return _described(original.clip, "") if isinstance(original, ClipReady) else Seed()


def _described(clip: ClipRef, uri: str) -> Seed:
    return Seed(
        job=clip.job,
        purpose=Purpose.Name(clip.purpose).lower() if clip.purpose in Purpose.values() else str(clip.purpose),
        epoch=clip.epoch,
        index=clip.index,
        attempt=clip.attempt,
        video=clip.video_id,
        uri=uri,
        first_frame=clip.first_frame,
        class_id=clip.class_id,
    )


def _time(time_ms: int) -> str:
    """The time in ISO 8601, or the number itself if it is not a valid time."""
    try:
        return datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"{time_ms} ms"
