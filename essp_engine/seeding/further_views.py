"""What the messages to decoders say about the further views of events: their videos, and for each clip the frames that
each of them shows meanwhile."""

from __future__ import annotations

from collections.abc import Iterator

from essp_common.catalog.view import CatalogView
from essp_common.job.clip_spec import ClipSpec
from essp_common.pb.v1.messages_pb2 import Seed, Seek
from essp_engine.planning.moments import Moments
from essp_engine.seeding.video_messages import VideoMessages


class FurtherViews:
    """The further views of the videos of one `CatalogView`. Not thread-safe."""

    def __init__(self, view: CatalogView, clip: ClipSpec) -> None:
        self._views = [VideoMessages(view.further[name], further=True) for name in clip.further]
        self._moments = Moments(view, clip)

    def messages(self, video: int) -> list[bytes]:
        """The part of a `DecodeSeed` about each further view of a video."""
        return [view.told(video).message for view in self._views]

    def seeds(self, video: int, first_frame: int) -> Iterator[Seed]:
        """For each further view, its frames during the clip that begins at this frame of the first view."""
        for view, frames in zip(self._views, self._moments.frames(video, first_frame), strict=True):
            told = view.told(video)
            first = frames[0]
            seed = Seed(
                first_frame=first,
                frame_count=len(frames),
                last_frame=told.last_frame,
                offsets=[frame - first for frame in frames],
            )
            seek = Seek()
            if view.seek_to(told, first, seek):
                seed.seek.CopyFrom(seek)
            yield seed
