"""What each installed extractor costs with its defaults, and what sharing flow between them saves."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from benchmarks.figures import Figure, Scale
from essp_common.errors import ConfigError
from essp_common.features import registry
from essp_common.features.intermediates import Intermediates, extract_with
from essp_common.features.port import Extractor
from essp_common.testing.videos import Picture, drifting, texture

_FRAMES, _SIDE = 16, 256
_ON_FLOW = ("flow", "hof", "mbh", "trajectories")


def feature(scale: Scale) -> Iterator[Figure]:
    """CPU milliseconds for a clip of 16 frames of 256x256."""
    clip = _clip()
    for name in registry.names():
        try:
            extractor = _extractor(name)
        except ConfigError:
            continue  # one of another package, with parameters that it wants to be told
        yield _figure(f"feature_{name}", [_cpu_ms(partial(extractor.extract, clip)) for _ in _rounds(scale)])


def feature_sharing(scale: Scale) -> Iterator[Figure]:
    """The share of CPU time saved where flow, HOF, MBH and trajectories of a clip are made together."""
    clip = _clip()
    extractors = [_extractor(name) for name in _ON_FLOW]

    def together() -> None:
        shared = Intermediates(clip)
        for extractor in extractors:
            extract_with(extractor, shared)

    def apart() -> None:
        for extractor in extractors:
            extractor.extract(clip)

    saved = [1 - _cpu_ms(together) / _cpu_ms(apart) for _ in _rounds(scale)]
    yield _figure("feature_sharing", saved, "share")


def _figure(name: str, values: list[float], unit: str = "ms") -> Figure:
    return Figure(name, statistics.median(values), unit, None, min(values), max(values))


def _rounds(scale: Scale) -> range:
    return range(max(1, scale.rounds // 2))


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
