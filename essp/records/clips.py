"""Frames of the videos of a catalog as records.

From each usable row of one split, it takes a number of evenly spaced frames: the middle frames of equal parts. They are
the frames that a plain decode of the file shows at these positions. A video is decoded in one pass, in a child process
that may crash (`essp_engine/decoding/sandbox.py`): a damaged frame, or a video that kills the process, is named and
left out.

Videos are decoded ahead of the one being written, as many at a time as there are cores.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np

from essp.records.items import Item, Source
from essp_common.catalog.file import read_catalog
from essp_common.catalog.notes import is_depth
from essp_common.catalog.rows import VideoRow
from essp_common.distribution import require
from essp_common.errors import BadFrames, ConfigError, EsspError, TransientError
from essp_common.pb.v1.messages_pb2 import DecodeSeed, FrameCodec, Recipe, Resize, Seed, Seek, Video
from essp_common.records.chunk import Record
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.retry import LONGEST_WAIT_S, Outage, wait_out
from essp_common.wiring import Stores
from essp_engine.decoding.sandbox import Sandbox
from essp_engine.decoding.settings import DecodingSettings
from essp_engine.planning.plan import seek_to
from essp_engine.video.codec import decode as frames_of

_DEPTH = "format: a depth camera has distances and no colours"


def clips(uri: str, stores: Stores, split: str, frames: int, opened: ExitStack) -> Source:
    """`frames` frames of each video of a split of the catalog at `uri`; the child processes run until `opened` closes.

    Raises `ConfigError` for an unknown split, and if there are several splits and none is named.
    """
    require("a catalog as a source of records", "av")  # the child processes load it, and would be the ones to fail
    catalog = read_catalog(*stores.resolve(uri))
    splits = [name for name in catalog.splits if name]
    if split and split not in splits:
        raise ConfigError(
            f"{split}: {uri} has the splits {', '.join(splits) or '(none)'}", field="--within", code="unknown"
        )
    if not split and len(splits) > 1:
        raise ConfigError(
            f"{uri} holds {' and '.join(splits)}; say which one to read, as in --within {splits[-1]}",
            field="--within",
            code="missing",
        )
    rows = [row for row in catalog.rows if not split or row.split == split]
    problems = {row.id: row.error for row in rows if row.error is not None}
    problems |= {row.id: _DEPTH for row in rows if is_depth(row.notes) and row.id not in problems}
    usable = [row for row in rows if row.id not in problems]
    decoder = opened.enter_context(_Decoder([(row, places(row, frames)) for row in usable]))
    items = [
        Item(f"{row.id} frame {place}", row.class_name, partial(decoder.read, number, index))
        for number, row in enumerate(usable)
        for index, place in enumerate(places(row, frames))
    ]
    what = f"split {split!r} of a catalog" if split else "a catalog"
    return Source(
        f"{what}: {len(usable):,} videos, of each {frames} frames or what it has",
        tuple(items),
        classes=tuple(name for name in catalog.classes if name),
        problems=problems,
        unit="frame",
        cut=True,
    )


def places(row: VideoRow, frames: int) -> list[int]:
    """The frames to take, counted from the first one of the video or segment; each frame of a short one at most
    once."""
    length = row.last_frame - row.first_frame + 1
    return np.unique((2 * np.arange(frames) + 1) * length // (2 * frames)).tolist()  # type: ignore[no-any-return]


class _Decoder:
    """Decodes videos ahead of the reader. Read from one thread, in order."""

    def __init__(self, videos: Sequence[tuple[VideoRow, list[int]]]) -> None:
        self._videos = videos
        self._workers = cpu_count()
        self._begun: dict[int, Future[list[Record | str]]] = {}
        settings = DecodingSettings()
        self._options, self._patience_s = settings.sandbox(), settings.store_patience_s
        self._leaving = threading.Event()
        self._of_thread = threading.local()
        self._sandboxes: list[Sandbox] = []
        self._pool = ThreadPoolExecutor(self._workers, "essp-records-decode")

    def read(self, number: int, index: int) -> Record:
        """A frame of a video. Raises `BadFrames` if it cannot be decoded."""
        for done in [one for one in self._begun if one < number]:
            del self._begun[done]
        for ahead in range(number, min(number + 2 * self._workers, len(self._videos))):
            if ahead not in self._begun:
                self._begun[ahead] = self._pool.submit(self._decode, *self._videos[ahead])
        frame = self._begun[number].result()[index]
        if isinstance(frame, str):
            raise BadFrames(frame)
        return frame

    def _decode(self, row: VideoRow, wanted: list[int]) -> list[Record | str]:
        """Runs in a pool thread: each frame, or the reason why it is missing."""
        outage = Outage(f"decoding {row.id}", self._wait, LONGEST_WAIT_S, self._patience_s)
        try:
            outcomes = wait_out(partial(self._sandbox().decode, _message(row, wanted)), outage)
            return [
                str(one) if isinstance(one, EsspError) else Record.of_image(np.ascontiguousarray(frames_of(one)[0]), -1)
                for one in outcomes
            ]
        except TransientError:
            raise  # a problem of the store, not of the video
        except EsspError as error:
            return [str(error)] * len(wanted)

    def _wait(self, wait_s: float) -> None:
        if self._leaving.wait(wait_s):
            raise EsspError("the build has ended")

    def _sandbox(self) -> Sandbox:
        if not hasattr(self._of_thread, "sandbox"):
            self._of_thread.sandbox = Sandbox(self._options)
            self._sandboxes.append(self._of_thread.sandbox)
        sandbox: Sandbox = self._of_thread.sandbox
        return sandbox

    def __enter__(self) -> _Decoder:
        return self

    def __exit__(self, *_: object) -> None:
        """End the child processes, each after its current video unless its store does not answer."""
        self._leaving.set()
        self._pool.shutdown(cancel_futures=True)
        for sandbox in self._sandboxes:
            sandbox.close()


def _message(row: VideoRow, wanted: list[int]) -> DecodeSeed:
    """One seed for each frame, so that a damaged one does not affect the others; all are decoded in one pass."""
    video = Video(
        id=row.id, uri=row.uri, size_bytes=row.size_bytes, etag=row.etag, frame_count=row.frame_count, width=row.width,
        height=row.height, seekable=row.seekable, lookahead=row.lookahead, sums=row.sums,
        unproven=bool(row.unproven),
    )  # fmt: skip
    recipe = Recipe(resize=Resize(mode=Resize.NONE), codec=FrameCodec(name="raw"), strict=True)
    unit = DecodeSeed(job="records", video=video, recipe=recipe)
    for place in wanted:
        first = row.first_frame + place
        seed = Seed(first_frame=first, frame_count=1, stride=1, last_frame=row.last_frame)
        seek = Seek()
        if seek_to(row, first, seek):
            seed.seek.CopyFrom(seek)
        unit.seeds.append(seed)
    return unit
