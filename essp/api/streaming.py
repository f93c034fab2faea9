"""`essp.stream`: the decoded frames of videos in order, in windows, without a catalog.

    for video, first_frame, frames in essp.stream(["a.mp4", "b.mp4"], frames=16, short_side=224):
        ...                                     # frames (16, H, W, 3) uint8, RGB

It uses the child processes of a decoder (`essp_engine/decoding/sandbox.py`). Each child decodes a run of groups of
pictures, so all children work on a long video. A video without usable keyframes, or with groups of pictures that do not
fit into memory, is decoded by one child from start to end. In both cases each frame is decoded once, and frames come in
order. At most `memory` bytes of frames are decoded ahead; then decoding waits for the caller.

Windows that overlap share their frames. `Stream.errors` has the videos that could not be read.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self, get_args

import numpy as np
from numpy.typing import NDArray

from essp.api.arguments import MOST_DECODERS, bytes_of, path_of, whole_number
from essp.api.clips import MOST_FRAMES, Interpolation, resize_to
from essp.api.contents import Contents, given_videos, is_contents, name_of_contents, written_to
from essp.api.prediction import find
from essp.catalog.build import file_row
from essp.uris import as_uri
from essp_common.catalog.notes import is_depth
from essp_common.catalog.rows import VideoRow
from essp_common.distribution import require
from essp_common.errors import BadVideo, ConfigError, EsspError, Unavailable, VideoFault
from essp_common.pb.v1.messages_pb2 import DecodeSeed, FrameCodec, Recipe, Resize, Seed, Seek, Video
from essp_common.quantities import size as in_words
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.retry import LONGEST_WAIT_S, Outage, wait_out
from essp_common.runtime.temporary import TemporaryFolder
from essp_common.runtime.unbroken import unbroken
from essp_common.wiring import Stores
from essp_engine.decoding.probing import Outcome, ProbeOptions, Prober
from essp_engine.decoding.sandbox import Sandbox
from essp_engine.decoding.settings import DecodingSettings
from essp_engine.planning.plan import seek_to
from essp_engine.video.codec import decode as frames_of
from essp_engine.video.codec import raw_bytes
from essp_engine.video.geometry import frame_shape

log = logging.getLogger(__name__)

Frames = NDArray[np.uint8]

_AHEAD = 2
"""Units for each child that are being decoded, or decoded and not yet cut into windows: one at work, one in reserve."""
_MOST_IN_A_WINDOW = 2**20


class Window(NamedTuple):
    """A window of frames of a video.

    video: path or URI as given; for a file of a folder, followed by the path below the folder; for a row of a catalog,
        its id; for an open file its name, and for bytes `bytes N`, if they are number N of the videos given, from 0.
    first_frame: from 0; for a labelled segment, from its first frame.
    frames: `(T, H, W, 3)` uint8, RGB.

    For example:

        video, first_frame, frames = next(essp.stream("talk.mp4", frames=16))
    """

    video: str
    first_frame: int
    frames: Frames


def stream(
    videos: str | Path | VideoRow | Contents | Sequence[str | Path | VideoRow | Contents],
    *,
    frames: int = 16,
    stride: int = 1,
    step: int | None = None,
    short_side: int | None = None,
    size: tuple[int, int] | None = None,
    interpolation: Interpolation = "area",
    drop_last: bool = False,
    decoders: int = 0,
    memory: int | str = "512MiB",
) -> Stream:
    """Decode all frames of videos of any length, in order, in windows of `frames` frames; each frame is decoded once.

    videos: files, folders (all videos in them), their URIs, rows of a catalog, or contents of files: `bytes`,
        `bytearray`, `memoryview`, or open binary files, which are copied to a temporary folder; one or several.
    frames, stride: frames of a window, at a distance of `stride` frames.
    step: frames from the start of one window to the start of the next; default: `frames * stride`, so that windows
        neither overlap nor leave gaps. A smaller step makes windows overlap, a larger one leaves frames out.
    short_side, size, interpolation: as for `essp.decode`.
    drop_last: leave out a window that reaches past the end of its video; otherwise the last frame is repeated in it.
    decoders: child processes that decode; 0: one per CPU.
    memory: bytes of frames that are decoded ahead.

        windows = essp.stream(["talk.mp4", "match.mkv"], frames=16, step=8, short_side=224)
        for video, first_frame, frames in windows:
            print(video, first_frame, frames.shape)  # talk.mp4 0 (16, 224, 398, 3)
        print(windows.errors)  # {"match.mkv": BadVideo("...")}

    A video that cannot be read, or not to its end, is reported in `errors` and in the log, and the stream continues
    with the next video. While a store does not answer, the stream waits and says so in the log, for up to
    ESSP_STORE_PATIENCE_S (default: 600 s) for a video. A child process checks files first, as `essp catalog build`
    does; rows of a catalog need no check. `break`, errors, Ctrl-C and `close()` end the processes.

    Raises `ConfigError` for invalid arguments, and at a video for which `memory` cannot hold a frame for each child.
    """
    require("essp.stream", "av")
    given = given_videos("videos", videos, VideoRow)
    rows = [video if isinstance(video, VideoRow) or is_contents(video) else path_of("videos", video) for video in given]
    frames = whole_number("frames", frames, 1, _MOST_IN_A_WINDOW)
    stride = whole_number("stride", stride, 1, MOST_FRAMES)
    step = frames * stride if step is None else whole_number("step", step, 1)
    windows = _Windows(frames, stride, step, bool(drop_last))
    resize = resize_to(short_side, size, interpolation)
    children = whole_number("decoders", decoders, 0, MOST_DECODERS) or cpu_count()
    return Stream(rows, windows, resize, children, bytes_of(memory))


class Stream:
    """The windows of `essp.stream`. It is iterated over once, by one thread.

    `errors`: each video that could not be read, or not to its end, with its `EsspError`; complete at the end of the
    iteration.

    For example:

        with essp.stream(["a.mp4", "b.mp4"], frames=16) as windows:
            first = next(windows)  # leaving the block ends the processes
    """

    def __init__(
        self, videos: Sequence[str | VideoRow | Contents], windows: _Windows, resize: Resize, decoders: int, memory: int
    ) -> None:
        self.errors: dict[str, EsspError] = {}
        self._unreadable: set[int] = set()
        """Places of the videos that cannot be read, in the list of all: several videos may have the same name."""
        self._videos = videos
        self._windows = windows
        self._resize = resize
        self._decoders = decoders
        self._unit_bytes = memory // (_AHEAD * decoders + 1)
        self._process: int | None = None
        """Id of the process that began the iteration; None: it has not begun."""
        self._iterator = self._run()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Window:
        if self._process not in (None, os.getpid()):
            raise ConfigError(
                "this stream was begun before a fork; open a new stream in each process", code="unsupported"
            )
        return next(self._iterator)

    def close(self) -> None:
        """End the processes. Idempotent."""
        if self._process in (None, os.getpid()):
            self._iterator.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> Generator[Window, None, None]:
        settings = DecodingSettings()
        self._process = os.getpid()
        with ExitStack() as stack:
            videos: list[str | VideoRow] = []
            folder: str | None = None
            for number, video in enumerate(self._videos):
                if isinstance(video, (str, VideoRow)):
                    videos.append(video)
                    continue
                folder = folder or stack.enter_context(TemporaryFolder("stream"))
                videos.append(_row_of_contents(folder, video, number))
            if folder is not None:
                settings = settings.model_copy(update={"stores": (*settings.stores, as_uri(folder))})
            rows = stack.enter_context(closing(_rows(videos, settings)))
            lanes = stack.enter_context(closing(_Lanes(settings, self._decoders)))
            lanes.start()
            units = self._units(rows, settings.decoder_clip_bytes)
            waiting: deque[_Unit] = deque()
            cutter: _Cutter | None = None
            while True:
                while len(waiting) < _AHEAD * self._decoders and (unit := next(units, None)) is not None:
                    lanes.add(unit)
                    waiting.append(unit)
                if not waiting:
                    return
                unit = waiting.popleft()
                unit.done.wait()
                if cutter is None or cutter.video != unit.video:
                    cutter = _Cutter(unit.video, unit.row, self._windows)
                if unit.video in self._unreadable:
                    continue  # an earlier unit of this video could not be read
                if unit.error is not None:
                    self._failed(unit.video, unit.row, unit.error)
                    continue
                yield from cutter.cut(unit)

    def _units(self, rows: Iterator[VideoRow], most_bytes: int) -> Iterator[_Unit]:
        """The units to decode, in order, each of at most `most_bytes` if it has several frames."""
        for video, row in enumerate(rows):
            if row.error is not None:
                kind, _, reason = row.error.partition(": ")
                fault = "vanished" if kind == "missing" else kind  # `BadVideo` has one word for both
                if fault in get_args(VideoFault):
                    error: EsspError = BadVideo(reason, fault)  # type: ignore[arg-type]
                else:
                    error = Unavailable(reason) if fault == Unavailable.kind else EsspError(row.error)
                self._failed(video, row, error)
                continue
            if is_depth(row.notes):
                how = "essp.decode(row, clip=essp.Clip(pixels='gray16')) reads them"
                self._failed(video, row, BadVideo(f"a depth camera has distances and no colours; {how}", "format"))
                continue
            frame_bytes = raw_bytes((1, *frame_shape(self._resize, row.height, row.width)), np.uint8)
            most = self._unit_bytes // frame_bytes
            if most < 1:
                raise ConfigError(
                    f"{in_words(self._unit_bytes)} for each of {_AHEAD * self._decoders + 1} units do not hold a frame "
                    f"of {row.id} ({in_words(frame_bytes)}); raise it, or give short_side",
                    field="memory",
                    code="range",
                )
            most = max(1, min(most, most_bytes // frame_bytes))
            for unit in _units_of(video, row, self._windows, most, self._resize):
                if video in self._unreadable:
                    break
                yield unit

    def _failed(self, video: int, row: VideoRow, error: EsspError) -> None:
        self._unreadable.add(video)
        self.errors[row.id] = error
        log.warning("%s cannot be read: %s", row.id, error)


@dataclass(frozen=True, slots=True)
class _Windows:
    """Which frames of a video form a window."""

    frames: int
    stride: int
    step: int
    drop_last: bool

    def starts(self, length: int) -> range:
        """The first frame of each window of a video of `length` frames."""
        span = (self.frames - 1) * self.stride + 1
        if self.drop_last:
            return range(0, max(0, length - span + 1), self.step)
        more = -(-max(0, length - span) // self.step)
        return range(0, min(length, more * self.step + 1), self.step)

    def wanted(self, start: int, length: int) -> list[int]:
        """The frames of a window; past the end, the last frame is repeated."""
        return [min(start + i * self.stride, length - 1) for i in range(self.frames)]


@dataclass(slots=True)
class _Unit:
    """Frames of a video that a child decodes in one call."""

    video: int
    """Its number among those of the stream, which may have the same row twice."""
    row: VideoRow
    frames: list[int]
    """Numbers from the start of the video or segment, ascending."""
    message: DecodeSeed
    chain: _Chain | None
    """The chain of the video's units, if one child must decode all of them in order."""
    parts: list[Frames] = field(default_factory=list)
    """The decoded frames, one array for each seed of `message`."""
    error: EsspError | None = None
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(slots=True)
class _Chain:
    """Units that one child decodes, since each begins where the one before ends."""

    lane: int | None = None
    """The number of the child's thread; None: no child has begun."""


def _units_of(video: int, row: VideoRow, windows: _Windows, most: int, resize: Resize) -> Iterator[_Unit]:
    """All frames that are in windows of a video, in units of at most `most` frames."""
    length = row.last_frame - row.first_frame + 1
    starts = windows.starts(length)
    keyframes = _keyframes(row)
    wanted = _wanted(windows, starts, length)
    groups = _by_keyframe(wanted, keyframes)
    chain = None if all(len(group) <= most for group in groups) else _Chain()
    pieces = _packed(groups, most) if chain is None else _pieces(wanted, most)
    for frames in pieces:
        yield _Unit(video, row, frames, _message(row, frames, resize, from_keyframes=chain is None), chain)


def _wanted(windows: _Windows, starts: range, length: int) -> list[int]:
    """The frames that are in any window, ascending."""
    found: set[int] = set()
    for start in starts:
        found.update(windows.wanted(start, length))
    return sorted(found)


def _keyframes(row: VideoRow) -> list[int]:
    """The frames at which decoding may begin, from the start of the segment; none if keyframes are unusable."""
    return [frame - row.first_frame for frame in row.keyframe_frame] if row.seekable else []


def _by_keyframe(frames: Sequence[int], keyframes: Sequence[int]) -> list[list[int]]:
    """The frames, divided by group of pictures."""
    places = np.searchsorted(np.asarray(keyframes, np.int64), np.asarray(frames, np.int64), side="right")
    groups: list[list[int]] = []
    known = -1
    for frame, place in zip(frames, places.tolist(), strict=True):
        if place != known:
            groups.append([])
            known = place
        groups[-1].append(frame)
    return groups


def _packed(groups: Sequence[list[int]], most: int) -> Iterator[list[int]]:
    """Consecutive groups of pictures, joined as far as `most` frames allow."""
    held: list[int] = []
    for group in groups:
        if held and len(held) + len(group) > most:
            yield held
            held = []
        held += group
    if held:
        yield held


def _pieces(frames: Sequence[int], most: int) -> Iterator[list[int]]:
    for begin in range(0, len(frames), most):
        yield list(frames[begin : begin + most])


def _message(row: VideoRow, frames: Sequence[int], resize: Resize, from_keyframes: bool) -> DecodeSeed:
    video = Video(
        id=row.id, uri=row.uri, size_bytes=row.size_bytes, etag=row.etag, frame_count=row.frame_count, width=row.width,
        height=row.height, seekable=row.seekable, lookahead=row.lookahead, sums=row.sums,
        unproven=bool(row.unproven),
    )  # fmt: skip
    unit = DecodeSeed(
        job="stream", video=video, recipe=Recipe(resize=resize, codec=FrameCodec(name="raw"), strict=True)
    )
    for run in _as_ranges(frames):
        first = row.first_frame + run.start
        seed = Seed(first_frame=first, frame_count=len(run), stride=run.step, last_frame=row.last_frame)
        seek = Seek()
        if from_keyframes and seek_to(row, first, seek):
            seed.seek.CopyFrom(seek)
        unit.seeds.append(seed)
    return unit


def _as_ranges(frames: Sequence[int]) -> list[range]:
    """The same numbers in few ranges, since a seed has one distance between its frames."""
    runs: list[range] = []
    for frame in frames:
        last = runs[-1] if runs else range(0)
        if len(last) == 1:
            runs[-1] = range(last[0], frame + 1, frame - last[0])
        elif last and frame == last[-1] + last.step:
            runs[-1] = range(last[0], frame + 1, last.step)
        else:
            runs.append(range(frame, frame + 1))
    return runs


class _Cutter:
    """Makes windows from the frames of a video, which arrive in order; keeps frames that later windows need."""

    def __init__(self, video: int, row: VideoRow, windows: _Windows) -> None:
        self.video = video
        self._id = row.id
        self._windows = windows
        self._length = row.last_frame - row.first_frame + 1
        self._left = deque(windows.starts(self._length))
        self._held: dict[int, Frames] = {}

    def cut(self, unit: _Unit) -> Iterator[Window]:
        """The windows that this unit completes."""
        for number, frame in zip(unit.frames, (frame for part in unit.parts for frame in part), strict=True):
            self._held[number] = frame
        reached = unit.frames[-1]
        while self._left and (wanted := self._windows.wanted(self._left[0], self._length))[-1] <= reached:
            start = self._left.popleft()
            frames = np.stack([self._held[number] for number in wanted])
            for number in range(start, self._left[0] if self._left else self._length):
                self._held.pop(number, None)
            yield Window(self._id, start, frames)


class _Lanes:
    """Threads that decode units, each with a child process. Every unit that was added is set `done`."""

    def __init__(self, settings: DecodingSettings, count: int) -> None:
        self._options = settings.sandbox()
        self._patience_s = settings.store_patience_s
        self._leaving = threading.Event()
        self._todo: deque[_Unit] = deque()
        self._changed = threading.Condition()
        self._threads = [
            threading.Thread(target=self._work, args=(lane,), name=f"essp-stream-{lane}", daemon=True)
            for lane in range(count)
        ]

    def start(self) -> None:
        """Decode units until `close`."""
        for thread in self._threads:
            thread.start()

    def add(self, unit: _Unit) -> None:
        with self._changed:
            self._todo.append(unit)
            self._changed.notify_all()

    def close(self) -> None:
        """Finish the current units, except those that wait for a store, and end all threads and processes."""
        caller = threading.current_thread()  # one of the threads, if the garbage collector closes a stream there
        unbroken(lambda: self._end([thread for thread in self._threads if thread is not caller and thread.ident]))

    def _end(self, threads: Sequence[threading.Thread]) -> None:
        with self._changed:
            self._leaving.set()
            self._changed.notify_all()
        for thread in threads:
            thread.join()

    def _work(self, lane: int) -> None:
        sandbox: Sandbox | None = None
        with ExitStack() as stack:
            while (unit := self._next(lane)) is not None:
                try:
                    sandbox = sandbox or stack.enter_context(closing(Sandbox(self._options)))
                    unit.parts = self._decoded(sandbox, unit.message)
                except EsspError as error:
                    unit.error = error
                except BaseException as error:
                    log.exception("unexpected error while decoding %s", unit.row.id)
                    unit.error = EsspError(f"{type(error).__name__}: {error}")  # the caller waits for this unit
                finally:
                    unit.done.set()

    def _next(self, lane: int) -> _Unit | None:
        """The first unit that this lane may decode; waits for it. None: it was closed."""
        with self._changed:
            while not self._leaving.is_set():
                for unit in self._todo:
                    if unit.chain is None or unit.chain.lane in (None, lane):
                        if unit.chain is not None:
                            unit.chain.lane = lane
                        self._todo.remove(unit)
                        return unit
                self._changed.wait()
        return None

    def _decoded(self, sandbox: Sandbox, message: DecodeSeed) -> list[Frames]:
        outage = Outage(f"decoding {message.video.id}", self._wait, LONGEST_WAIT_S, self._patience_s)
        parts: list[Frames] = []
        for outcome in wait_out(partial(sandbox.decode, message), outage):
            if isinstance(outcome, EsspError):
                raise outcome
            parts.append(frames_of(outcome))
        return parts

    def _wait(self, wait_s: float) -> None:
        if self._leaving.wait(wait_s):
            raise EsspError("the stream was closed")


def _row_of_contents(folder: str, contents: Contents, number: int) -> VideoRow:
    path = written_to(folder, "videos", contents, number)
    [row] = find([str(path)], Stores((as_uri(folder),)))
    return replace(row, id=name_of_contents(contents, number))


def _rows(videos: Sequence[str | VideoRow], settings: DecodingSettings) -> Generator[VideoRow, None, None]:
    """A row for each video, with the properties of its file or an error; one file is read ahead."""
    stores = Stores(settings.stores, settings.store_patience_s)
    found: list[VideoRow] = []
    for video in videos:
        try:
            found += [video] if isinstance(video, VideoRow) else find([video], stores)
        except Unavailable as error:
            found.append(VideoRow(str(video), as_uri(str(video)), "", "", 0, "", error=f"{error.kind}: {error}"))
    with Prober(settings.stores, ProbeOptions(store_patience_s=settings.store_patience_s)) as prober:
        unread = deque(row.uri for row in found if row.error is None and not row.frame_count)
        outcomes = prober.read(tuple(unread))
        for row in found:
            if row.error is not None or row.frame_count:
                yield row
                continue
            unread.popleft()
            try:
                outcome = next(outcomes)
            except Unavailable as error:
                outcome = Outcome(row.uri, {}, f"{error.kind}: {error}")
                outcomes = prober.read(tuple(unread))
            yield file_row(row, outcome)
