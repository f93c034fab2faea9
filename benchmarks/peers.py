"""What a user would write instead: loops around PyAV, OpenCV, decord and torchcodec, and a DataLoader around PyAV.

All are given the same clips as ESSP, and make the same frames of them: same size, RGB. PyAV also scales the same way,
so that its frames are equal bit for bit; the others scale in their own ways.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import av
import numpy as np
from av.container import InputContainer
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

Clip = tuple[str, int, int]
"""Path, first frame, frame count."""

Frames = NDArray[np.uint8]
"""(T, size, size, 3), RGB."""

ReadClip = Callable[[Clip, int], Frames]


class PyAv:
    """Seek to the keyframe before, decode up to the clip, convert and scale in one step, in one thread."""

    def __init__(self, keep_open: int = 0) -> None:
        """`keep_open`: so many files stay open, the latest used; 0: each clip opens its file."""
        self._keep_open = keep_open
        self._open: OrderedDict[str, InputContainer] = OrderedDict()
        self._reformatter = VideoReformatter()

    def __call__(self, clip: Clip, size: int) -> Frames:
        """The frames of a clip."""
        if not self._keep_open:
            with _opened(clip[0]) as container:
                return self._read(container, clip, size)
        container = self._open.pop(clip[0]) if clip[0] in self._open else _opened(clip[0])
        self._open[clip[0]] = container
        if len(self._open) > self._keep_open:
            self._open.popitem(last=False)[1].close()
        return self._read(container, clip, size)

    def _read(self, container: InputContainer, clip: Clip, size: int) -> Frames:
        _, first, count = clip
        frames = np.empty((count, size, size, 3), np.uint8)
        stream = container.streams.video[0]
        if stream.average_rate is None or stream.time_base is None:
            raise RuntimeError(f"{clip[0]} does not say how long its frames are")
        interval = 1 / (stream.average_rate * stream.time_base)
        wanted = int((stream.start_time or 0) + first * interval)
        container.seek(wanted, stream=stream, backward=True)
        filled = 0
        for frame in container.decode(stream):
            if frame.pts is not None and frame.pts + interval / 2 < wanted:
                continue
            scaled = self._reformatter.reformat(frame, size, size, "rgb24", interpolation="BILINEAR", threads=1)
            frames[filled] = scaled.to_ndarray()
            filled += 1
            if filled == count:
                break
        frames[filled:] = frames[filled - 1]
        return frames


def _opened(path: str) -> InputContainer:
    container = av.open(path)
    container.streams.video[0].thread_count = 1
    return container


def with_opencv(clip: Clip, size: int) -> Frames:
    """As the tutorials have it."""
    os.environ["OPENCV_FFMPEG_CAPTURE_OPTIONS"] = "threads;1"
    import cv2

    cv2.setNumThreads(1)
    path, first, count = clip
    frames = np.empty((count, size, size, 3), np.uint8)
    capture = cv2.VideoCapture(path, cv2.CAP_FFMPEG)
    try:
        capture.set(cv2.CAP_PROP_POS_FRAMES, first)
        for slot in range(count):
            read, frame = capture.read()
            if not read:
                raise RuntimeError(f"OpenCV finds no frame {first + slot} in {path}")
            scaled = cv2.resize(frame, (size, size), interpolation=cv2.INTER_LINEAR)
            cv2.cvtColor(scaled, cv2.COLOR_BGR2RGB, frames[slot])
    finally:
        capture.release()
    return frames


def with_decord(clip: Clip, size: int) -> Frames:
    """As its documentation has it."""
    decord: Any = import_module("decord")

    path, first, count = clip
    reader = decord.VideoReader(path, width=size, height=size, num_threads=1)
    frames: Frames = reader.get_batch(range(first, first + count)).asnumpy()
    return frames


def with_torchcodec(clip: Clip, size: int) -> Frames:
    """As its documentation has it. It does not scale; OpenCV does."""
    import cv2

    decoders: Any = import_module("torchcodec.decoders")
    path, first, count = clip
    decoder = decoders.VideoDecoder(path, dimension_order="NHWC", num_ffmpeg_threads=1, seek_mode="approximate")
    shown = decoder.get_frames_in_range(first, first + count).data.numpy()
    frames = np.empty((count, size, size, 3), np.uint8)
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
    """Read so many clips, one after the other."""
    read = readers()[reader]()
    for i in range(count):
        read(clips[i % len(clips)], size)


def data_loaders(clips: Sequence[Clip], size: int, features: Sequence[str], workers: int, count: int) -> None:
    """One DataLoader per feature, all at once, as separate training scripts would have them."""
    from torch.utils.data import DataLoader

    loaders: list[DataLoader[Any]] = [
        DataLoader(_ClipDataset(clips, size, feature, count), batch_size=8, num_workers=workers)  # type: ignore[arg-type]
        for feature in features
    ]
    for batches in zip(*loaders, strict=True):
        del batches


class _ClipDataset:
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
    from essp_common.features import registry

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
