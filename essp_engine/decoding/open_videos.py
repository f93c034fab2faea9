"""The videos that a child has open: resolved by URI, checked against the catalog; the most recently used ones stay
open.

A video on a local disk is opened by its path; any other is read in ranges through the object store, and compared with
the checksums of the catalog. Both the number of open videos and an estimate of their memory are limited.

For a video on a local disk, only the first bytes are compared, which detects another file of the same size and time.
FFmpeg reads such a file itself, and disks and file systems have their own checksums.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from essp_common.errors import BadVideo, NotFound, PermanentError
from essp_common.objects.block_sums import BlockSums
from essp_common.objects.port import ObjectInfo
from essp_common.objects.ranged import BLOCK_BYTES, CACHED_BLOCKS, SharedBlocks, forget, share, verify
from essp_common.pb.v1.messages_pb2 import Video
from essp_common.wiring import Stores
from essp_engine.video.container import Limits, VideoFile
from essp_engine.video.reader import Reader

_PICTURES = 20
"""Maximum number of pictures that a decoder keeps: 16 reference pictures, and some in progress."""
_SAMPLES = 1.5
"""Bytes per pixel in 4:2:0."""


@dataclass(frozen=True, slots=True)
class _Open:
    reader: Reader
    source: VideoFile
    info: ObjectInfo
    motion: bool
    held_bytes: int

    def close(self) -> None:
        self.reader.close()
        _close(self.source)


class OpenVideos:
    """At most `capacity` open videos with about `capacity_bytes` of memory; the latest one is always kept."""

    def __init__(
        self, stores: Stores, limits: Limits, capacity: int, capacity_bytes: int, shared: SharedBlocks | None = None
    ) -> None:
        """`shared`: an additional cache for data read in ranges."""
        self._stores = stores
        self._limits = limits
        self._capacity = capacity
        self._capacity_bytes = capacity_bytes
        self._shared = shared
        self._open: OrderedDict[str, _Open] = OrderedDict()

    def reader(self, video: Video, *, motion: bool = False) -> Reader:
        """A reader of the video as described in the catalog; with `motion`, one that reads motion vectors.

        Raises `BadVideo` (`vanished`, `changed`, or the fault of the file) and `Unavailable`.
        """
        store, key = self._stores.resolve(video.uri, video=True)
        try:
            info = store.head(key)
            _check_unchanged(video, info)
            held = self._open.get(video.uri)
            if held is not None and held.info == info and held.motion == motion:
                self._open.move_to_end(video.uri)
                return held.reader
            self.drop(video)
            sums = _sums(video)
            path = store.local_path(key)
            source = path if path is not None else store.open(key)
        except NotFound as error:
            raise BadVideo(f"{video.uri} is not there", "vanished") from error
        if isinstance(source, str):
            _check_head(video, source, sums)
        else:
            if self._shared is not None:
                share(source, self._shared)
            if sums is not None:
                verify(source, sums)
        try:
            declared = (video.width, video.height) if video.unproven else None
            reader = Reader(source, self._limits, lookahead=video.lookahead, declared=declared, motion=motion)
        except BaseException as error:
            if isinstance(error, PermanentError):
                _forget(source)
            _close(source)
            raise
        self._open[video.uri] = _Open(reader, source, info, motion, _held_bytes(video, source))
        while len(self._open) > 1 and self._over():
            self._open.popitem(last=False)[1].close()
        return reader

    def drop(self, video: Video, *, damaged: bool = False) -> None:
        """Close a video, if it is open. `damaged`: also drop its data from the shared cache."""
        held = self._open.pop(video.uri, None)
        if held is not None:
            if damaged:
                _forget(held.source)
            held.close()

    def _over(self) -> bool:
        held_bytes = sum(held.held_bytes for held in self._open.values())
        return len(self._open) > self._capacity or held_bytes > self._capacity_bytes


def _held_bytes(video: Video, source: VideoFile) -> int:
    pictures = int(_PICTURES * _SAMPLES * video.width * video.height)
    return pictures if isinstance(source, str) else pictures + CACHED_BLOCKS * BLOCK_BYTES


def _forget(source: VideoFile) -> None:
    if not isinstance(source, str):
        forget(source)


def _close(source: VideoFile) -> None:
    if not isinstance(source, str):
        source.close()


def _check_unchanged(video: Video, info: ObjectInfo) -> None:
    """Raises `BadVideo` if the file changed: another file has other frames, and must never be decoded instead."""
    if video.size_bytes and video.size_bytes != info.size_bytes:
        raise BadVideo(f"{video.uri} is not the file that the catalog was built from; build it again", "changed")
    if video.etag and video.etag != info.etag:
        raise BadVideo(
            f"{video.uri} is not the file that the catalog was built from, or a copy of it; build the catalog again, "
            "or for copies run `essp catalog relocate CATALOG`",
            "changed",
        )


def _sums(video: Video) -> BlockSums | None:
    try:
        return BlockSums.unpacked(video.sums)
    except ValueError as error:
        raise PermanentError(f"{video.uri}: {error}; build the catalog again") from error


def _check_head(video: Video, path: str, sums: BlockSums | None) -> None:
    """Compare the beginning of the file: equal size and time do not prove that it is the same file."""
    if sums is None:
        return
    with suppress(OSError), open(path, "rb", buffering=0) as file:  # the reader reports what is wrong with the file
        if not sums.fit(0, file.read(sums.block_bytes)):
            raise BadVideo(
                f"{video.uri} has the size and the time of the file that the catalog was built from, and is another "
                "one; build a new catalog",
                "changed",
            )
