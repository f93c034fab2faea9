"""What extracting first would cost: `essp plan --against extract`.

The traditional way writes every frame of every video to disk as a JPEG file, and every flow field as two (TSN's tools,
Wang et al., 2016); loaders then read these files. Here a sample of a job's videos is extracted into memory, with the
job's own decoder and extractors: processor time and bytes of a frame come from it, and those of a whole data set from
its number of frames. What a job costs in each epoch, on the other side, `measuring.py` has measured.

Not included on either side: training itself, validation, and the transfer of files. On the side of extraction, also not
included: opening and reading files, which a disk makes dearer than processor time says.
"""

from __future__ import annotations

import math
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from essp.api.clips import decode
from essp.capacity.measuring import Costs, Tell
from essp.capacity.setups import BUSY, on_machine
from essp_common.catalog.rows import Rows, VideoRow
from essp_common.errors import BadVideo, ConfigError, EsspError
from essp_common.job.clip_spec import MOST_FRAMES, ClipSpec
from essp_common.job.spec import JobSpec
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.opencv import load_opencv
from essp_engine.features.port import Extractor

FRAMES = "frames"
"""The name under which decoded frames are listed, in addition to the features."""
_OF_FRAMES = frozenset(("rgb", "frame_stack"))
"""Features that loaders make from the frames on disk."""
_QUALITY = 95
"""Of the JPEG files, as OpenCV writes them if nothing else is asked for."""
_MOST_VIDEOS, _ENOUGH_FRAMES = 200, 96
"""Limits of a sample; of a long video, its first frames are enough."""
_HOUR_S = 3600.0

Array = NDArray[Any]


@dataclass(frozen=True)
class Extraction:
    """The cost of extracting one frame, and of reading back the files of one clip."""

    videos: int
    """In the sample."""
    frames: int
    seconds: dict[str, float]
    """Processor time of a frame: of `frames` (decoding, scaling, writing), and of each feature."""
    bytes: dict[str, float]
    """Bytes of a frame's files."""
    raw_bytes: dict[str, float]
    """The same without compression."""
    files: float
    """Files of a frame."""
    loading_s: float
    """Processor time to decompress the files of one clip, for all trainers."""
    left_out: tuple[str, ...] = ()
    """Features that need what only a decoder has, so that they are not extracted here."""


@dataclass(frozen=True, slots=True)
class DataSet:
    """How much video there is."""

    videos: int
    hours: float
    frames: float
    bytes: float

    @classmethod
    def of(cls, rows: Rows) -> DataSet:
        """Of a catalog's usable videos."""
        frames = rows.numbers("last_frame") - rows.numbers("first_frame") + 1.0
        whole = np.maximum(rows.numbers("frame_count"), 1)
        seconds = float((rows.numbers("duration_s") * frames / whole).sum())
        size = float((rows.numbers("size_bytes") * frames / whole).sum())
        return cls(len(rows), seconds / _HOUR_S, float(frames.sum()), size)

    def scaled(self, videos: int, hours: float) -> DataSet:
        """A larger or smaller set of such videos. 0: in proportion to the other of the two.

        Raises `ConfigError` for hours, if those of the present videos are unknown.
        """
        if hours and not self.hours:
            raise ConfigError(
                "the catalog does not say how long its videos are; give --videos", field="--hours", code="unsupported"
            )
        by_hours = hours / self.hours if hours else videos / self.videos if videos else 1.0
        number = videos or round(self.videos * by_hours)
        return DataSet(number, self.hours * by_hours, self.frames * by_hours, self.bytes * by_hours)


@dataclass(frozen=True, slots=True)
class Machines:
    """The machines to count, and the time in which all epochs have to be done."""

    within_hours: float
    cores: int
    """Of one machine."""

    def needed(self, core_hours: float) -> int:
        """The number of machines for so much work."""
        return max(1, math.ceil(core_hours / (BUSY * self.within_hours * self.cores)))


def check_extractable(spec: JobSpec) -> None:
    """Raises `ConfigError` for a job on records or on several views."""
    if spec.data.records or spec.clip.views:
        what = "records, which are extracted already" if spec.data.records else "several views of each event"
        raise ConfigError(f"the job is on {what}; leave --against out", field="--against", code="unsupported")


def sample(spec: JobSpec, rows: Rows, seconds: float, tell: Tell = lambda *_: None) -> Extraction:
    """Extract some of the videos into memory, evenly over the catalog, for about this number of seconds.

    Raises `EsspError` if no video can be decoded.
    """
    features = {
        name: registry.create(stream.feature, stream.params)
        for name, stream in spec.streams.items()
        if stream.feature not in _OF_FRAMES
    }
    coded = tuple(name for name in features if registry.needs_of(spec.streams[name].feature) == "motion")
    taking = _Sampling(spec, {name: feature for name, feature in features.items() if name not in coded})
    began_s = time.monotonic()
    for number in _spread(len(rows), _MOST_VIDEOS):
        elapsed_s = time.monotonic() - began_s
        if taking.frames and elapsed_s > seconds:
            break
        tell("extracting a sample", min(1.0, elapsed_s / seconds), max(0.0, seconds - elapsed_s))
        taking.take(rows[number])
    if not taking.frames:
        raise EsspError("no video of the sample could be decoded; `essp catalog check` says what is wrong with them")
    return replace(taking.result(), left_out=coded)


class _Sampling:
    """Extracts video after video, and adds up."""

    def __init__(self, spec: JobSpec, features: dict[str, Extractor]) -> None:
        self._spec = spec
        self._features = features
        self._cv2 = load_opencv()
        for feature in features.values():
            feature.setup()
        self.frames = 0
        self._videos = 0
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._bytes: Counter[str] = Counter()
        self._raw: Counter[str] = Counter()
        self._files: Counter[str] = Counter()
        self._covered: Counter[str] = Counter()
        """Frames that each kind was made for."""
        self._read_s: defaultdict[str, float] = defaultdict(float)
        """Of all files of a kind."""

    def take(self, row: VideoRow) -> None:
        """Extract one video, or its first frames; nothing of one that is damaged."""
        longest = max((feature.frames_needed() for feature in self._features.values()), default=1)
        stride = min(max(1, self._spec.clip.stride), (MOST_FRAMES - 1) // max(1, longest - 1))
        length = row.last_frame - row.first_frame + 1
        count = max(min(length, _ENOUGH_FRAMES), (longest - 1) * stride + 1)  # past the end, the last one is repeated
        if (resize := self._spec.clip.resize).mode == "bounded":
            count = min(MOST_FRAMES, -(-count // resize.temporal_multiple) * resize.temporal_multiple)
        began_s = time.process_time()
        try:
            frames = decode(row, clip=self._clip(count), strict=False)
        except BadVideo:
            return
        self._add(FRAMES, frames, count, began_s)
        self.frames += min(length, count)
        self._videos += 1
        shared: dict[tuple[int, int], Intermediates] = {}
        for name, feature in self._features.items():
            needed = feature.frames_needed()
            covered, reach = max(1, needed - 1), (needed - 1) * stride + 1
            for first in range(0, count - reach + 1, covered * stride):
                began_s = time.process_time()
                window = shared.setdefault((first, reach), Intermediates(frames[first : first + reach : stride]))
                self._add(name, extract_with(feature, window), covered, began_s)

    def _clip(self, count: int) -> ClipSpec:
        """`count` consecutive frames, scaled as the job's clips are."""
        resize = self._spec.clip.resize.model_dump()
        return ClipSpec.model_validate({"frames": count, "stride": 1, "resize": resize, "pixels": "rgb"})

    def _add(self, name: str, array: Array, covered: int, began_s: float) -> None:
        """Compress what `covered` frames gave; `began_s`: processor time when its making began."""
        files = [self._compressed(picture) for picture in _pictures(array)]
        self._seconds[name] += time.process_time() - began_s
        self._bytes[name] += sum(map(len, files)) if files else array.nbytes
        self._raw[name] += array.nbytes
        self._files[name] += max(1, len(files))
        self._covered[name] += covered
        began_s = time.process_time()
        for file in files:
            self._cv2.imdecode(np.frombuffer(file, np.uint8), self._cv2.IMREAD_UNCHANGED)
        self._read_s[name] += time.process_time() - began_s

    def _compressed(self, picture: Array) -> bytes:
        _, file = self._cv2.imencode(".jpg", picture, [self._cv2.IMWRITE_JPEG_QUALITY, _QUALITY])
        return bytes(file)

    def result(self) -> Extraction:
        """Means over everything that was taken."""

        def each(total: Mapping[str, float]) -> dict[str, float]:
            return {name: total[name] / self._covered[name] for name in self._covered}

        return Extraction(
            self._videos,
            self.frames,
            each(self._seconds),
            each(self._bytes),
            each(self._raw),
            sum(each(self._files).values()),
            sum(self._loading_s(trainer.stream) for trainer in self._spec.trainers.values()),
        )

    def _loading_s(self, stream: str) -> float:
        """To decompress what a trainer on a stream reads of one clip."""
        own = self._spec.streams[stream]
        if own.feature in _OF_FRAMES:
            frames = registry.create(own.feature, own.params).frames_needed()
            return self._read_s[FRAMES] / self._covered[FRAMES] * frames
        if not self._covered[stream]:
            return 0.0
        frames = max(1, self._features[stream].frames_needed() - 1)
        return self._read_s[stream] / self._covered[stream] * frames


def _pictures(array: Array) -> list[Array]:
    """The pictures of frames or of a feature, `(T, H, W, C)`: in colour if C is 3, otherwise one for each channel. Of
    other arrays none: they are stored as they are."""
    if array.ndim != 4 or array.dtype != np.uint8:
        return []
    if array.shape[-1] == 3:
        return [frame[..., ::-1] for frame in array]
    return [np.ascontiguousarray(frame[..., channel]) for frame in array for channel in range(array.shape[-1])]


def _spread(count: int, most: int) -> list[int]:
    """Indices evenly over `count`, in an order in which each beginning is spread, too: the sample may end early."""
    chosen = np.unique(np.linspace(0, count - 1, min(count, most)).astype(int)).tolist()
    step = next((s for s in range(int(0.618 * len(chosen)) or 1, len(chosen) + 1) if math.gcd(s, len(chosen)) == 1), 1)
    return [chosen[number * step % len(chosen)] for number in range(len(chosen))]


def comparison(
    spec: JobSpec, costs: Costs, found: Extraction, present: DataSet, asked: DataSet, machines: Machines
) -> dict[str, Any]:
    """Both sides in figures, for a data set `asked` of videos like those `present`.

    `pays_after_epochs`: the number of epochs from which extraction would have cost less processor time; null: never.
    """
    clips = costs.epoch_clips * (1.0 if spec.sampling.clips_per_epoch else asked.videos / max(1, present.videos))
    pools = on_machine(spec, costs, 1).pools
    streaming_s = clips * sum(pool.seconds for pool in pools)
    feeding_s = clips * sum(pool.seconds for pool in pools if pool.name.startswith("feed."))
    loading_s = clips * found.loading_s + feeding_s
    extracting_s = asked.frames * sum(found.seconds.values())
    kept = {name: asked.frames * count for name, count in found.bytes.items()}
    totals = {"extract": extracting_s + spec.epochs * loading_s, "essp": spec.epochs * streaming_s}
    return {
        "sample": {"videos": found.videos, "frames": found.frames, "left_out": list(found.left_out)},
        "data": {
            "videos": asked.videos,
            "hours": round(asked.hours, 3),
            "frames": round(asked.frames),
            "bytes": round(asked.bytes),
        },
        "extract": {
            "bytes": {name: round(count) for name, count in kept.items()},
            "raw_bytes": {name: round(asked.frames * count) for name, count in found.raw_bytes.items()},
            "times_videos": round(sum(kept.values()) / max(1.0, asked.bytes), 2),
            "files": round(asked.frames * found.files),
            "milliseconds_a_frame": {name: round(1e3 * seconds, 3) for name, seconds in found.seconds.items()},
            "core_hours": round(extracting_s / _HOUR_S, 4),
            "epoch_core_hours": round(loading_s / _HOUR_S, 5),
        },
        "essp": {"bytes": 0, "core_hours": 0.0, "epoch_core_hours": round(streaming_s / _HOUR_S, 5)},
        "epochs": spec.epochs,
        "epoch_clips": round(clips),
        "core_hours": {side: round(seconds / _HOUR_S, 4) for side, seconds in totals.items()},
        "pays_after_epochs": math.ceil(extracting_s / (streaming_s - loading_s)) if streaming_s > loading_s else None,
        "machines": {
            "within_hours": machines.within_hours,
            "cores": machines.cores,
            **{side: machines.needed(seconds / _HOUR_S) for side, seconds in totals.items()},
        },
    }
