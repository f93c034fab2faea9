"""What frames cost on their way to the loop in RGB, and in the YUV 4:2:0 of their video (`clip.pixels`).

`pixels_cpu` compares what a decoder does with decoded frames: scaling, conversion, and the copy into the value for the
cache. Decoding itself is the same for both and is left out: the frames are decoded before. `pixels_bytes` compares the
values.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import av
import numpy as np
from av.video.frame import VideoFrame

from benchmarks.figures import Aim, Figure, Scale
from benchmarks.inputs import LONG_GOP
from benchmarks.measure import spread
from essp_common.catalog.file import read_catalog
from essp_common.job.clip_spec import ClipSpec
from essp_common.messages.recipe import resize_of
from essp_common.pb.v1.messages_pb2 import Resize
from essp_common.wiring import Stores
from essp_engine.video.codec import raw_bytes
from essp_engine.video.colour import Colour, pictures
from essp_engine.video.conversion import FrameConverter
from essp_engine.video.geometry import frame_shape

_CPU = Aim(least=2.3)
_BYTES = Aim(least=1.95)
_FRAMES = 16


def pixels(scale: Scale) -> Iterator[Figure]:
    """A clip of 16 frames of 640x360, scaled to cover 256x256 and cropped: the job's default."""
    frames = _decoded(scale)
    kinds = {kind: resize_of(ClipSpec(frames=_FRAMES, pixels=kind)) for kind in ("rgb", "yuv420", "gray")}
    clips = {kind: np.zeros((_FRAMES, *_shape(frames[0], resize)), np.uint8) for kind, resize in kinds.items()}
    converter = FrameConverter()
    costs: dict[str, list[float]] = {kind: [] for kind in (*kinds, "to_rgb")}
    for _ in range(1 + max(5, scale.rounds) * (1 if scale.quick else 5)):
        for kind, resize in kinds.items():
            begin = time.process_time()
            for frame, place in zip(frames, clips[kind], strict=True):
                converter.write(frame, resize, place)
            costs[kind].append(time.process_time() - begin)
        begin = time.process_time()
        pictures(clips["yuv420"], Colour())
        costs["to_rgb"].append(time.process_time() - begin)
    rounds = {kind: values[1:] for kind, values in costs.items()}  # without the first: libswscale makes its tables
    detail: dict[str, float | str] = {f"{kind}_cpu_ms": round(1000 * min(each), 3) for kind, each in rounds.items()}
    yield Figure.of("pixels_cpu", spread(_over(rounds["rgb"], rounds["yuv420"])), _CPU, detail)
    yield Figure.of("pixels_cpu.gray", spread(_over(rounds["rgb"], rounds["gray"])), None, {})
    whole = [scaled + converted for scaled, converted in zip(rounds["yuv420"], rounds["to_rgb"], strict=True)]
    yield Figure.of("pixels_cpu.with_loop", spread(_over(rounds["rgb"], whole)), None, {})
    sizes = {kind: raw_bytes(clip.shape, "u1") for kind, clip in clips.items()}
    yield Figure("pixels_bytes", sizes["rgb"] / sizes["yuv420"], "ratio", _BYTES, detail=dict(sizes))
    yield Figure("pixels_bytes.gray", sizes["rgb"] / sizes["gray"], "ratio")


def _decoded(scale: Scale) -> list[VideoFrame]:
    store, key = Stores(("file:///",)).resolve(f"file://{scale.catalog(LONG_GOP)}")
    path = read_catalog(store, key).rows[0].uri.removeprefix("file://")
    with av.open(path) as container:
        return [frame for _, frame in zip(range(_FRAMES), container.decode(video=0), strict=False)]


def _shape(frame: VideoFrame, resize: Resize) -> tuple[int, ...]:
    return frame_shape(resize, frame.height, frame.width)


def _over(one: list[float], other: list[float]) -> list[float]:
    return [a / b for a, b in zip(one, other, strict=True)]
