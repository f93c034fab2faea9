"""The messages to decoders about records, built directly from the columns of the catalog.

The records of a work unit are from one file, which takes the role of the video in its message. Each seed contains the
location and the format of its record, so decoders do not read a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from essp_common.catalog.view import CatalogView
from essp_common.pb.v1.messages_pb2 import DecodeSeed, Seed, Video
from essp_common.records.rows import RecordUris
from essp_engine.planning.planned_clip import PlannedClip


class RecordMessages:
    """The records of one view. Not thread-safe."""

    def __init__(self, view: CatalogView) -> None:
        self._rows = view.rows
        columns = view.rows.columns
        uris: Any = columns["uri"]
        if not isinstance(uris, RecordUris):
            raise TypeError("these are not records")
        self._uris = uris.files
        self._table: Any = columns["record"]
        self._file: Any = columns["file"]
        self._places: Any = view.rows.places
        self._video = lru_cache(maxsize=1024)(self._video_of)
        self._sheet = DecodeSeed(seeds=[Seed(frame_count=1, stride=1)])

    def unit(self, head: bytes, clips: Sequence[PlannedClip]) -> tuple[bytes, bytes]:
        """Key and message of a work unit, with this beginning."""
        place = int(self._places[clips[0].video])
        file = int(self._file[place])
        parts = [head, self._video(file)]
        sheet = self._sheet
        seed = sheet.seeds[0]
        record = seed.record
        for clip in clips:
            place = self._places[clip.video]
            _, offset, length, crc, _, height, width, channels, encoding, _ = self._table[place].item()
            seed.index, seed.attempt, seed.class_id = clip.index, clip.attempt, clip.class_id
            record.id = self._rows.text("id", clip.video)
            record.offset, record.length, record.crc = offset, length, crc
            record.height, record.width, record.channels = height, width, 0 if encoding else channels
            parts.append(sheet.SerializeToString())
        # Spread the units of one file over all decoders, because they read different parts of it.
        return b"%s#%d" % (self._uris[file].encode(), clips[0].index), b"".join(parts)

    def _video_of(self, file: int) -> bytes:
        uri = self._uris[file]
        return DecodeSeed(video=Video(id=uri.rpartition("/")[2], uri=uri, frame_count=1)).SerializeToString()
