"""The clips of a job that the frame cache got last, so that people can view them.

Only a few of each stream are remembered, and only the cache knows whether one is still there: most are freed soon.
Pure; not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import islice, repeat

from essp_common.cache.port import clip_key, stream_key
from essp_common.job.spec import JobSpec
from essp_common.job.status import PURPOSES
from essp_common.pb.v1.messages_pb2 import Made, Purpose
from essp_engine.planning.phases import Phases

MOST = 8
"""Clips of each stream."""
_Told = tuple[Purpose, int, int, int, int]
"""Purpose, epoch, index, attempt, bytes."""


@dataclass(frozen=True, slots=True)
class StoredClip:
    """A clip that is or was in a stream."""

    key: str
    """In the frame cache."""
    size_bytes: int
    purpose: Purpose
    epoch: int
    index: int
    video: str
    class_name: str
    """Empty: the video has no label."""
    first_frame: int


class StoredClips:
    """The newest clips of each stream of one job."""

    def __init__(self, spec: JobSpec, phases: Phases) -> None:
        self._job = spec.name
        self._phases = phases
        self._source = {name: "" if stream.feature == "rgb" else name for name, stream in spec.streams.items()}
        """Stream -> its name among the workers that make it; all streams of frames as decoded share one."""
        self._newest: Mapping[str, deque[Made]] = {source: deque(maxlen=MOST) for source in self._source.values()}
        """The last reports, each about one or more clips, the newest last."""

    def note(self, stream: str, made: Made) -> None:
        """Clips were made: of this stream, as workers call it."""
        if (newest := self._newest.get(stream)) is not None:
            newest.append(made)

    def of(self, stream: str) -> list[StoredClip]:
        """The newest first; empty for a stream that the job does not have."""
        if stream not in self._source:
            return []
        told = (each for made in reversed(self._newest[self._source[stream]]) for each in reversed(_clips(made)))
        return [clip for each in islice(told, MOST) if (clip := self._stored(stream, each)) is not None]

    def _stored(self, stream: str, told: _Told) -> StoredClip | None:
        """The clip that a worker reported; None if the job does not have it."""
        purpose, epoch, index, attempt, size_bytes = told
        if (purpose, epoch) not in self._phases.order or purpose not in PURPOSES:
            return None
        number = self._phases.order.index((purpose, epoch))
        try:
            clip = self._phases.plan(number).clip(index, attempt)
        except LookupError:
            return None
        view, key = self._phases.view(number), clip_key(self._job, purpose, epoch, index, attempt)
        return StoredClip(
            key=stream_key(key, stream) if self._source[stream] else key,
            size_bytes=size_bytes,
            purpose=purpose,
            epoch=epoch,
            index=index,
            video=view.rows.text("id", clip.video),
            class_name=view.classes[clip.class_id] if 0 <= clip.class_id < len(view.classes) else "",
            first_frame=clip.first_frame,
        )


def _clips(made: Made) -> list[_Told]:
    """The last clips that a message reports."""
    attempts: Iterable[int] = made.attempts[-MOST:] or repeat(0)
    told = zip(made.indices[-MOST:], attempts, made.bytes[-MOST:], strict=False)
    return [(made.purpose, made.epoch, *each) for each in told]
