"""From the ledger's instructions to messages: work units for decoders, and skipped indices for consumers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache

from essp_common import topics
from essp_common.cache.port import clip_key, stream_key
from essp_common.catalog.table import VideoRow
from essp_common.job.spec import JobSpec
from essp_common.messages.recipe import recipe_of
from essp_common.pb.v1.messages_pb2 import ClipReady, ClipRef, DecodeSeed, FeatureReady, Recipe, Seed, Video
from essp_common.planning.phases import Phases
from essp_common.planning.plan import seek_to
from essp_common.planning.planned_clip import PlannedClip
from essp_common.planning.work_units import is_divisible, pieces
from essp_master.ledger.instructions import IssueUnit, PublishSkip, ReleaseClip

_VIDEOS = 2**17
"""Videos whose serialized part of a message is cached: some 40 MB at most."""


class _Sheet:
    """A unit of one seed that is overwritten for each clip: creating messages costs most."""

    def __init__(self, clip: Seed) -> None:
        self.unit = DecodeSeed(seeds=[clip])
        self.seed = self.unit.seeds[0]
        self.seek = self.seed.seek


class MessageBuilder:
    """Writes the messages of one job. Not thread-safe."""

    def __init__(self, spec: JobSpec, phases: Phases, fence: int) -> None:
        self._job = spec.name
        self._features = {name: stream.feature for name, stream in spec.streams.items()}
        self._consumers = spec.readers()
        self._phases = phases
        self._fence = fence
        self._whole = recipe_of(spec)
        self._head = lru_cache(maxsize=64)(self._head_of)
        self._video = lru_cache(maxsize=_VIDEOS)(self._video_of)
        clip = Seed(frame_count=spec.clip.frames, stride=spec.clip.stride)
        self._from_keyframe, self._from_start = _Sheet(clip), _Sheet(clip)

    def unit(self, instruction: IssueUnit) -> list[tuple[bytes, bytes]]:
        """Keys and messages (`DecodeSeed`) of a work unit: one message, or several of a long video.

        Concatenated protobuf messages are one message with the fields of all. So what is the same for several units, or
        for several clips of a video, is serialized once.
        """
        phase_index, clips, consumers = instruction.phase_index, instruction.clips, instruction.consumers
        row, key, video, divisible = self._video(phase_index, clips[0].video)
        head = self._head(phase_index, consumers) + video
        if not divisible:
            return [(key, self._message(head, row, clips))]
        return [(b"%s#%d" % (key, number), self._message(head, row, piece)) for number, piece in pieces(row, clips)]

    def _message(self, head: bytes, row: VideoRow, clips: Iterable[PlannedClip]) -> bytes:
        message = head
        for clip in clips:
            message += self._seed(row, clip)
        return message

    def skips(self, instruction: PublishSkip) -> Iterator[tuple[str, ClipReady | FeatureReady]]:
        """Topic and message for each stream that has nothing at an index."""
        clip = self._ref(instruction.phase_index, instruction.clip)
        if any(self._features[stream] == "rgb" for stream in instruction.streams):
            yield topics.CLIPS, ClipReady(clip=clip, skipped=instruction.reason)
        for stream in instruction.streams:
            feature = self._features[stream]
            if feature != "rgb":
                yield topics.features(feature), FeatureReady(clip=clip, stream=stream, skipped=instruction.reason)

    def releases(self, instruction: ReleaseClip) -> Iterator[tuple[str, str]]:
        """Cache key and consumer of each ack that frees a clip."""
        ref = self._ref(instruction.phase_index, instruction.clip)
        clip = clip_key(ref.job, ref.purpose, ref.epoch, ref.index, ref.attempt)
        for consumer in instruction.consumers:
            stream = self._consumers[consumer]
            yield clip if self._features[stream] == "rgb" else stream_key(clip, stream), consumer

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

    def _video_of(self, phase_index: int, video: int) -> tuple[VideoRow, bytes, bytes, bool]:
        row = self._phases.view(phase_index).rows[video]
        message = Video(
            id=row.id,
            uri=row.uri,
            size_bytes=row.size_bytes,
            etag=row.etag,
            frame_count=row.frame_count,
            width=row.width,
            height=row.height,
            seekable=row.seekable,
            lookahead=row.lookahead,
        )
        return row, row.uri.encode(), DecodeSeed(video=message).SerializeToString(), is_divisible(row)

    def _seed(self, row: VideoRow, clip: PlannedClip) -> bytes:
        """The part of a message that is about one clip."""
        sheet = self._from_keyframe
        if not seek_to(row, clip.first_frame, sheet.seek):
            sheet = self._from_start
        seed = sheet.seed
        seed.index = clip.index
        seed.attempt = clip.attempt
        seed.class_id = clip.class_id
        seed.first_frame = clip.first_frame
        seed.last_frame = row.last_frame
        return sheet.unit.SerializeToString()

    def _recipe_for(self, consumers: tuple[str, ...]) -> Recipe:
        """The job's recipe, for these consumers alone."""
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
