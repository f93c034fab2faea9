"""What a user would write instead: loops around PyAV, OpenCV, decord and torchcodec, and a DataLoader around PyAV.

All are given the same clips as ESSP, and make the same frames of them: same size, RGB. PyAV also scales the same way,
so that its frames are equal bit for bit; the others scale in their own ways.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NamedTuple

import av
import numpy as np
from av.container import InputContainer
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray


class Clip(NamedTuple):
    """What a peer is asked for."""

    path: str
    first_frame: int
    frame_count: int
    stride: int

    @property
    def frames(self) -> range:
        """The frames of the file that are wanted."""
        return range(self.first_frame, self.first_frame + self.frame_count * self.stride, self.stride)


Frames = NDArray[np.uint8]
"""(T, size, size, 3), RGB."""

ReadClip = Callable[[Clip, int], Frames]


class PyAv:
    """Seek to the keyframe before, decode up to the clip, convert and scale in one step, in one thread."""

    def __init__(self, keep_open: int = 0) -> None:
        """`keep_open`: how many files stay open, the most recently used ones; 0: each clip opens its file."""
        self._keep_open = keep_open
        self._open: OrderedDict[str, InputContainer] = OrderedDict()
        self._reformatter = VideoReformatter()

    def __call__(self, clip: Clip, size: int) -> Frames:
        """The frames of a clip."""
        if not self._keep_open:
            with _opened(clip.path) as container:
                return self._read(container, clip, size)
        container = self._open.pop(clip.path) if clip.path in self._open else _opened(clip.path)
        self._open[clip.path] = container
        if len(self._open) > self._keep_open:
            self._open.popitem(last=False)[1].close()
        return self._read(container, clip, size)

    def _read(self, container: InputContainer, clip: Clip, size: int) -> Frames:
        frames = np.empty((clip.frame_count, size, size, 3), np.uint8)
        filled = 0
        for ahead, frame in enumerate(_frames_from(container, clip.first_frame)):
            if ahead % clip.stride == 0:
                frames[filled] = _scaled(self._reformatter, frame, size)
                filled += 1
            if filled == clip.frame_count:
                break
        frames[filled:] = frames[filled - 1]
        return frames


def _frames_from(container: InputContainer, first: int) -> Iterator[av.VideoFrame]:
    """The frames of a file from this one on."""
    stream = container.streams.video[0]
    if stream.average_rate is None or stream.time_base is None:
        raise RuntimeError(f"{container.name} does not say how long its frames are")
    interval = 1 / (stream.average_rate * stream.time_base)
    wanted = int((stream.start_time or 0) + first * interval)
    container.seek(wanted, stream=stream, backward=True)
    for frame in container.decode(stream):
        if frame.pts is None or frame.pts + interval / 2 >= wanted:
            yield frame


def _scaled(reformatter: VideoReformatter, frame: av.VideoFrame, size: int) -> Frames:
    scaled = reformatter.reformat(frame, size, size, "rgb24", interpolation="BILINEAR", threads=1)
    return np.asarray(scaled.to_ndarray(), np.uint8)


def _opened(path: str) -> InputContainer:
    container = av.open(path)
    container.streams.video[0].thread_count = 1
    return container


def with_opencv(clip: Clip, size: int) -> Frames:
    """As the tutorials have it."""
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "threads;1"
    import cv2

    cv2.setNumThreads(1)
    frames = np.empty((clip.frame_count, size, size, 3), np.uint8)
    capture = cv2.VideoCapture(clip.path, cv2.CAP_FFMPEG)
    try:
        capture.set(cv2.CAP_PROP_POS_FRAMES, clip.first_frame)
        for slot, wanted in enumerate(clip.frames):
            for _ in range(clip.stride - 1 if slot else 0):
                capture.grab()  # decoded, and neither converted nor copied
            read, frame = capture.read()
            if not read:
                raise RuntimeError(f"OpenCV finds no frame {wanted} in {clip.path}")
            scaled = cv2.resize(frame, (size, size), interpolation=cv2.INTER_LINEAR)
            cv2.cvtColor(scaled, cv2.COLOR_BGR2RGB, frames[slot])
    finally:
        capture.release()
    return frames


def with_decord(clip: Clip, size: int) -> Frames:
    """As its documentation has it."""
    decord: Any = import_module("decord")

    reader = decord.VideoReader(clip.path, width=size, height=size, num_threads=1)
    frames: Frames = reader.get_batch(clip.frames).asnumpy()
    return frames


def with_torchcodec(clip: Clip, size: int) -> Frames:
    """As its documentation has it. It does not scale; OpenCV does."""
    import cv2

    decoders: Any = import_module("torchcodec.decoders")
    decoder = decoders.VideoDecoder(clip.path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate")
    shown = decoder.get_frames_at(list(clip.frames)).data.numpy()
    frames = np.empty((clip.frame_count, size, size, 3), np.uint8)
    for slot, frame in enumerate(shown):
        cv2.resize(frame, (size, size), frames[slot], interpolation=cv2.INTER_LINEAR)
    return frames


@cache
def readers() -> dict[str, Callable[[], ReadClip]]:
    """Those that can be had here: decord has few wheels, and torchcodec needs the torch that it was made for."""
    found: dict[str, Callable[[], ReadClip]] = {"pyav": PyAv, "pyav_open": _pyav_open, "opencv": _opencv}
    for module, name, read in (("decord", "decord", _decord), ("torchcodec.decoders", "torchcodec", _torchcodec)):
        try:
            import_module(module)
        except (ImportError, OSError, RuntimeError):
            continue
        found[name] = read
    return found


def loop(reader: str, clips: Sequence[Clip], size: int, count: int) -> None:
    """Read `count` clips, one after the other."""
    read = readers()[reader]()
    for i in range(count):
        read(clips[i % len(clips)], size)


def one_pass(paths: Sequence[str], size: int, frame_count: int, count: int) -> None:
    """So many times `frame_count` frames, from the beginning of each file to its end."""
    reformatter = VideoReformatter()
    left = count * frame_count
    while left > 0:
        for path in paths:
            with _opened(path) as container:
                for frame in container.decode(video=0):
                    _scaled(reformatter, frame, size)
                    left -= 1
                    if left <= 0:
                        return


def limit(units: Sequence[Sequence[Clip]], size: int, count: int) -> None:
    """Read `count` clips at the least possible cost: decode each group of pictures once for all clips of a video
    that are wanted together, scale each wanted frame once. `units`: such clips."""
    reformatter = VideoReformatter()
    for unit in units:
        if count <= 0:
            break
        count -= len(unit)
        decoded_once(unit, size, reformatter)


def decoded_once(unit: Sequence[Clip], size: int, reformatter: VideoReformatter) -> list[Frames]:
    """The clips of one video, from one pass over it."""
    made = [np.empty((clip.frame_count, size, size, 3), np.uint8) for clip in unit]
    places: dict[int, list[tuple[int, int]]] = {}
    for number, clip in enumerate(unit):
        for slot, wanted in enumerate(clip.frames):
            places.setdefault(wanted, []).append((number, slot))
    last = max(places)
    with _opened(unit[0].path) as container:
        first = min(places)
        for place, frame in enumerate(_frames_from(container, first), first):
            if place in places:
                picture = _scaled(reformatter, frame, size)
                for number, slot in places[place]:
                    made[number][slot] = picture
            if place == last:
                break
    return made


def data_loaders(clips: Sequence[Clip], size: int, features: Sequence[str], workers: int, count: int) -> None:
    """One DataLoader per feature, all at once, as separate training scripts would have them."""
    from torch.utils.data import DataLoader

    loaders: list[DataLoader[Any]] = [
        DataLoader(ClipDataset(clips, size, feature, count), batch_size=8, num_workers=workers)  # type: ignore[arg-type]
        for feature in features
    ]
    for batches in zip(*loaders, strict=True):
        del batches


class ClipDataset:
    """One feature of each clip; every training decodes for itself."""

    def __init__(self, clips: Sequence[Clip], size: int, feature: str, count: int) -> None:
        self._clips, self._size, self._feature, self._count = clips, size, feature, count
        self._made: tuple[ReadClip, Callable[[Frames], NDArray[Any]]] | None = None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> NDArray[Any]:
        if self._made is None:
            self._made = PyAv(), _extract(self._feature)
        read, extract = self._made
        return extract(read(self._clips[index % len(self._clips)], self._size))


def _extract(feature: str) -> Callable[[Frames], NDArray[Any]]:
    """ESSP's own extractor: what is compared is how clips get to it, and how often they are decoded."""
    from essp_engine.features import registry

    extractor = registry.create(feature, {})
    extractor.setup()
    return extractor.extract


def _pyav_open() -> ReadClip:
    return PyAv(keep_open=16)


def _opencv() -> ReadClip:
    return with_opencv


def _decord() -> ReadClip:
    return with_decord


def _torchcodec() -> ReadClip:
    return with_torchcodec
