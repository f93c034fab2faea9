"""What each installed extractor costs with its defaults, and what sharing flow between them saves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from benchmarks.figures import Figure, Scale
from essp_common.errors import ConfigError
from essp_engine.features import registry
from essp_engine.features.intermediates import Intermediates, extract_with
from essp_engine.features.port import Extractor
from essp_engine.video.motion_layout import UNIT, motion_shape
from essp_engine.video.synthetic import Picture, drifting, texture

_FRAMES, _SIDE = 16, 256
_SHARING = {
    "descriptors": ("flow", "hof", "mbh"),
    "trajectories": ("flow", "hof", "mbh", "trajectories"),
}


def feature(scale: Scale) -> Iterator[Figure]:
    """CPU milliseconds for a clip of 16 frames of 256x256, whose frames and motion vectors have been read."""
    clip = _clip()
    motion = np.full((_FRAMES, *motion_shape(_SIDE, _SIDE)), UNIT, np.int16)
    for name in registry.names():
        try:
            extractor = _extractor(name)
        except ConfigError:
            continue  # a feature of another package with required parameters
        work = partial(_alone, extractor, clip, motion)
        work()  # what is made once and kept (tables, buffers)
        values = [_cpu_ms(work) for _ in range(scale.rounds)]
        yield Figure(f"feature_{name}", statistics.median(values), "ms", None, min(values), max(values))


def feature_sharing(scale: Scale) -> Iterator[Figure]:
    """The share of CPU time saved where features of a clip that are made of its flow are made together.

    What either way takes at least is compared: other load on the machine only ever adds, and often more than sharing
    saves.
    """
    clip = _clip()
    for figure, names in _SHARING.items():
        extractors = [_extractor(name) for name in names]
        ways = partial(_together, extractors, clip), partial(_apart, extractors, clip)
        for way in ways:
            way()
        pairs = [(_cpu_ms(ways[0]), _cpu_ms(ways[1])) for _ in range(2 * scale.rounds)]
        together, apart = map(min, zip(*pairs, strict=True))
        saved = [1 - less / more for less, more in pairs]
        detail = {"together_ms": round(together, 1), "apart_ms": round(apart, 1)}
        yield Figure(f"feature_sharing.{figure}", 1 - together / apart, "share", None, min(saved), max(saved), detail)


def _alone(extractor: Extractor, clip: Picture, motion: NDArray[np.int16]) -> None:
    extract_with(extractor, Intermediates(clip, motion=motion))


def _together(extractors: Sequence[Extractor], clip: Picture) -> None:
    shared = Intermediates(clip)
    for extractor in extractors:
        extract_with(extractor, shared)


def _apart(extractors: Sequence[Extractor], clip: Picture) -> None:
    for extractor in extractors:
        extractor.extract(clip)


def _clip() -> Picture:
    rng = np.random.default_rng(0)
    picture = (texture(_SIDE, _SIDE) + 20 * rng.standard_normal((_SIDE, _SIDE, 1))).clip(0, 255).astype(np.uint8)
    return np.stack(list(drifting(picture, _FRAMES, velocity=(2, 1))))


def _extractor(name: str) -> Extractor:
    extractor = registry.create(name, {})
    extractor.setup()
    return extractor


def _cpu_ms(work: Callable[[], object]) -> float:
    begin = time.process_time()
    work()
    return 1000 * (time.process_time() - begin)
