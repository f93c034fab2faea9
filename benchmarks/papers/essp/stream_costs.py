"""What each stream of `folds` costs: processor time to make it from a clip, and to decode the clip, by one thread.

Clips are 16 frames of 224x224 from the middle of real videos. Motion vectors are read while a clip is decoded, so what
decoding then takes longer counts as theirs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.papers.document import markdown, spread
from benchmarks.papers.essp.folds import KINDS, STREAMS, TITLES, index_of
from benchmarks.papers.machine import apart
from benchmarks.papers.study import Options, Part, Steps, Values
from essp_common.pb.v1.messages_pb2 import Resize, Seed
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.video.motion_layout import motion_shape
from essp_engine.video.probe import probe
from essp_engine.video.reader import Reader

FRAMES, VIDEOS = 16, 40
_DECODE, _MOTION = "decode", "decode with motion"


def costs(videos: list[Path]) -> dict[str, float]:
    """Milliseconds of processor time for each clip: of decoding, with and without motion vectors, and of streams."""
    import cv2

    cv2.setNumThreads(1)
    streams = {name: registry.create(how["feature"], how["params"]) for name, how in STREAMS.items()}
    for stream in streams.values():
        stream.setup()
    took = dict.fromkeys((_DECODE, _MOTION, *streams), 0.0)

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began_s = time.process_time()
        made = work()
        took[name] += time.process_time() - began_s
        return made

    lengths = [probe(str(path)).frame_count for path in videos]
    _decoded(videos[0], lengths[0], motion=True)
    for path, length in zip(videos, lengths, strict=True):
        clip, _ = timed(_DECODE, partial(_decoded, path, length, motion=False))
        _, motion = timed(_MOTION, partial(_decoded, path, length, motion=True))
        for name, stream in streams.items():
            timed(name, partial(extract_with, stream, Intermediates(clip, motion=motion)))
    return {name: round(1e3 * seconds / len(videos), 3) for name, seconds in took.items()}


def _decoded(path: Path, length: int, motion: bool) -> tuple[NDArray[np.uint8], NDArray[np.int16]]:
    """The clip in the middle of a video of `length` frames, and its motion (zeros without `motion`)."""
    side, first = KINDS["pretrained"].side, max(0, (length - FRAMES) // 2)
    seed = Seed(first_frame=first, frame_count=FRAMES, stride=1, last_frame=length - 1)
    clip = np.empty((FRAMES, side, side, 3), np.uint8)
    moves = np.zeros((FRAMES, *motion_shape(side, side)), np.int16)
    resize = Resize(mode=Resize.EXACT, height=side, width=side, interpolation="area")
    with Reader(str(path), motion=motion) as reader:
        reader.read([seed], resize, [clip], motions=[moves] if motion else ())
    return clip, moves


def _steps(options: Options) -> Steps:
    assert options.videos is not None
    found = [options.videos / row["path"] for row in index_of(options.videos)]
    count = 2 if options.quick else VIDEOS
    chosen = found[:: max(1, len(found) // count)][:count]
    for number in range(options.rounds):
        yield str(number), partial(apart, costs, chosen)


def _table(values: Values) -> str:
    rounds = list(values.values())
    rows = [["decoding the clip", spread([one[_DECODE] for one in rounds])]]
    for name, title in TITLES.items():
        more = [one[name] + (one[_MOTION] - one[_DECODE]) * (name == "vectors-10") for one in rounds]
        rows.append([title, spread(more)])
    return markdown(["of a clip of 16 frames of 224x224", "CPU ms"], rows)


PART = Part("stream_costs", "what each stream of the folds costs", _steps, _table, uses=("rounds", "videos"),
            needs=("videos",))  # fmt: skip
