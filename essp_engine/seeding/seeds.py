"""Builds the seed of a single clip from the row of its video, without a plan."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.timed import offsets_of
from essp_common.job.clip_spec import ClipSpec
from essp_common.pb.v1.messages_pb2 import Seed, Seek, Snippet
from essp_engine.planning.plan import seek_to
from essp_engine.planning.work_units import parts_of


def clip_seed(row: VideoRow, clip: ClipSpec, first_frame: int, later: Sequence[int] = ()) -> Seed:
    """The seed of a clip of a file. `first_frame`: of its first snippet; `later`: of the others, if they are wanted.

    Raises `ConfigError` if frames are chosen by time, and the file does not give the times of its frames.
    """
    begins = (first_frame, *later)
    seed = Seed(first_frame=first_frame, frame_count=clip.snippet_frames * len(begins), last_frame=row.last_frame)
    if not clip.by_time:
        seed.stride = clip.stride
    for number, (first, offsets) in enumerate(_parts(row, clip, begins)):
        part: Seed | Snippet = seed.later.add(first_frame=first) if number else seed
        part.offsets.extend(offsets)
        seek = Seek()
        if seek_to(row, first, seek):
            part.seek.CopyFrom(seek)
    return seed


def _parts(row: VideoRow, clip: ClipSpec, begins: Sequence[int]) -> Iterator[tuple[int, list[int]]]:
    """The first frame of each part that is decoded from a keyframe, and its frames, if they are chosen by time."""
    keyframes = len(row.keyframe_frame) if row.seekable else 0
    for begin in begins:
        if not clip.by_time:
            yield begin, []
            continue
        frames = [min(begin + offset, row.last_frame) for offset in offsets_of(row, clip, begin)]
        for part in parts_of(frames, row.keyframe_frame, 0, keyframes):
            yield part[0], [frame - part[0] for frame in part]
