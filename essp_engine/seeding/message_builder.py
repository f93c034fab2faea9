"""Turns the ledger's instructions into messages: work units for decoders, and skipped indices for consumers.

Information about a video or a record comes from the columns of the catalog (`video_messages.py`, `record_messages.py`).
A `VideoRow` is created only for long videos, whose units are divided into messages by their keyframes
(`planning/work_units.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from essp_common import topics
from essp_common.cache.port import clip_key, stream_key
from essp_common.catalog.label_sets import labels_at, labels_of
from essp_common.catalog.timed import Offsets
from essp_common.job.spec import JobSpec
from essp_common.messages.recipe import recipe_of
from essp_common.pb.v1.messages_pb2 import ClipReady, ClipRef, DecodeSeed, FeatureReady, Recipe, Seed, Snippet
from essp_engine.planning.phases import Phases
from essp_engine.planning.planned_clip import PlannedClip
from essp_engine.planning.work_units import LEAST_SKIPPED, pieces, widest_step
from essp_engine.seeding.instructions import IssueUnits, PublishSkip, ReleaseClip
from essp_engine.seeding.record_messages import RecordMessages
from essp_engine.seeding.video_messages import Told, VideoMessages


class _Sheet:
    """A unit of one seed that is overwritten for each clip, because creating messages is expensive."""

    def __init__(self, clip: Seed) -> None:
        self.unit = DecodeSeed(seeds=[clip])
        self.seed = self.unit.seeds[0]
        self.seek = self.seed.seek


class MessageBuilder:
    """Writes the messages of one job. Not thread-safe."""

    def __init__(self, spec: JobSpec, phases: Phases, fence: int, labels: tuple[str, ...] | None = None) -> None:
        """`labels`: the names of the labels that the job learns, by number; None: it learns classes."""
        self._job = spec.name
        self._features = {name: stream.feature for name, stream in spec.streams.items()}
        self._consumers = spec.readers()
        self._phases = phases
        self._fence = fence
        self._whole = recipe_of(spec)
        self._head = lru_cache(maxsize=64)(self._head_of)
        videos = {
            purpose: VideoMessages(view, labels, spec.data.targets) if view.file is None else RecordMessages(view)
            for purpose, view in phases.views
        }
        self._videos = [videos[purpose] for purpose, _ in phases.order]
        """By phase."""
        self._frames, self._stride = spec.clip.frames, spec.clip.stride
        clip = Seed(frame_count=spec.clip.frames, stride=0 if spec.clip.by_time else spec.clip.stride)
        self._from_keyframe, self._from_start = _Sheet(clip), _Sheet(clip)

    def units(self, instruction: IssueUnits) -> list[tuple[bytes, bytes]]:
        """Keys and messages (`DecodeSeed`) of work units: one message each, or several for a long video.

        The clips of a unit are from one video, or are records of one file.

        Concatenated protobuf messages are one message with the fields of all. So fields shared by several units, or by
        several clips of a video, are serialized once.
        """
        phase_index, units, consumers = instruction
        videos = self._videos[phase_index]
        head = self._head(phase_index, consumers)
        if isinstance(videos, RecordMessages):
            return [videos.unit(head, clips) for clips in units]
        messages = []
        for clips in units:
            told = videos.told(clips[0].video)
            if told.row is None:
                messages.append((told.key, self._message(head, videos, told, clips)))
                continue
            for number, piece in pieces(told.row, clips):
                messages.append((b"%s#%d" % (told.key, number), self._message(head, videos, told, piece)))
        return messages

    def skips(self, instruction: PublishSkip) -> Iterator[tuple[str, ClipReady | FeatureReady]]:
        """Topic and message for each stream that has no clip at an index."""
        clip = self._ref(instruction.phase_index, instruction.clip)
        if any(self._features[stream] == "rgb" for stream in instruction.streams):
            yield topics.CLIPS, ClipReady(clip=clip, skipped=instruction.reason, fence=self._fence)
        for stream in instruction.streams:
            feature = self._features[stream]
            if feature != "rgb":
                skip = FeatureReady(clip=clip, stream=stream, skipped=instruction.reason, fence=self._fence)
                yield topics.features(feature), skip

    def releases(self, instruction: ReleaseClip) -> Iterator[tuple[str, str]]:
        """Cache key and consumer of each acknowledgement that frees a clip."""
        ref = self._ref(instruction.phase_index, instruction.clip)
        clip = clip_key(ref.job, ref.purpose, ref.epoch, ref.index, ref.attempt)
        for consumer in instruction.consumers:
            stream = self._consumers[consumer]
            yield clip if self._features[stream] == "rgb" else stream_key(clip, stream), consumer

    def let_go(self) -> None:
        """Release the data about videos when no more messages about them will be written."""
        self._videos = []
        self._head.cache_clear()

    def _ref(self, phase_index: int, clip: PlannedClip) -> ClipRef:
        purpose, epoch = self._phases.order[phase_index]
        return ClipRef(
            job=self._job,
            purpose=purpose,
            epoch=epoch,
            index=clip.index,
            attempt=clip.attempt,
            class_id=clip.class_id,
            video_id=self._phases.view(phase_index).rows.text("id", clip.video),
            first_frame=clip.first_frame,
        )

    def _head_of(self, phase_index: int, consumers: tuple[str, ...]) -> bytes:
        purpose, epoch = self._phases.order[phase_index]
        recipe = self._recipe_for(consumers)
        return DecodeSeed(
            job=self._job, purpose=purpose, epoch=epoch, fence=self._fence, recipe=recipe
        ).SerializeToString()

    def _message(self, head: bytes, videos: VideoMessages, told: Told, clips: Iterable[PlannedClip]) -> bytes:
        """The message with this beginning, for these clips of a video."""
        parts = [head, told.message]
        for index, attempt, class_id, _, first_frame, _, _, later, offsets in clips:
            sheet = self._from_keyframe
            if not videos.seek_to(told, first_frame, sheet.seek):
                sheet = self._from_start
            seed = sheet.seed
            seed.index = index
            seed.attempt = attempt
            seed.class_id = class_id
            seed.first_frame = first_frame
            seed.last_frame = told.last_frame
            if told.spans is not None:
                del seed.labels[:]
                if offsets:
                    shown = labels_of(told.spans, _frames_of(first_frame, offsets[0], told.last_frame))
                else:
                    shown = labels_at(told.spans, first_frame, self._frames, self._stride, told.last_frame)
                seed.labels.extend(shown)
            if offsets:
                self._choose(videos, told, seed, (first_frame, *later), offsets)
            elif later:
                del seed.later[:]
                for place in later:
                    videos.seek_to(told, place, seed.later.add(first_frame=place).seek)
            parts.append(sheet.unit.SerializeToString())
        return b"".join(parts)

    @staticmethod
    def _choose(
        videos: VideoMessages, told: Told, seed: Seed, begins: Sequence[int], offsets: Sequence[Offsets]
    ) -> None:
        """Write the frames of a clip that are chosen by time. `begins`, `offsets`: of each snippet."""
        del seed.offsets[:]
        del seed.later[:]
        if len(offsets) == 1 and widest_step(offsets[0]) <= LEAST_SKIPPED:
            seed.offsets.extend(offsets[0])
            return
        for begin, chosen in zip(begins, offsets, strict=True):
            for frames in videos.parts_of(told, _frames_of(begin, chosen, told.last_frame)):
                first = frames[0]
                part: Seed | Snippet = seed.later.add(first_frame=first) if seed.offsets else seed
                if part is not seed:
                    videos.seek_to(told, first, part.seek)
                part.offsets.extend([frame - first for frame in frames])

    def _recipe_for(self, consumers: tuple[str, ...]) -> Recipe:
        """The job's recipe, restricted to these consumers."""
        recipe = Recipe()
        recipe.CopyFrom(self._whole)
        del recipe.streams[:]
        for stream in self._whole.streams:
            wanted = [name for name in stream.consumers if name in consumers]
            if wanted:
                recipe.streams.add().CopyFrom(stream)
                del recipe.streams[-1].consumers[:]
                recipe.streams[-1].consumers.extend(wanted)
        return recipe


def _frames_of(first_frame: int, offsets: Offsets, last_frame: int) -> list[int]:
    return [min(first_frame + offset, last_frame) for offset in offsets]
