"""What it costs that each value of the frame cache says whose it is and proves it.

The same clips are decoded twice, one after another: once stored in the cache as a decoder stores them, got as a trainer
gets them, and copied into a batch; once without the cache's checksums, its hash of the key, and the rest of its
bookkeeping. No socket and no Redis are between, which would make the share of the check smaller. Both ways take turns
clip by clip, so that other load of the machine hits both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from benchmarks.embedded import NullJob
from benchmarks.figures import Aim, Figure, Scale, clips_of
from benchmarks.inputs import SETS
from benchmarks.measure import spread
from benchmarks.peers import Clip, PyAv
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import Buffer, clip_key
from essp_engine.video import codec

_AIM = Aim(most=1.03)
_BATCH = 32
_OPEN = 8
_CONSUMER = "trainer.t"


def cache_check(scale: Scale) -> Iterator[Figure]:
    """Of clips of 11 frames of 256x256, raw, of videos of 640x360 with a keyframe in 60 frames."""
    job = NullJob(scale.catalog(SETS[1]))
    clips = clips_of(job, 10 * scale.clips)
    read = PyAv(_OPEN)
    batch = np.empty((_BATCH, job.frames, job.size, job.size, 3), np.uint8)
    for clip in clips[:_OPEN]:
        read(clip, job.size)  # files are open from here on
    rounds = [_round(clips, read, batch) for _ in range(scale.rounds)]
    detail: dict[str, float | str] = {
        "checked_cpu_ms": round(1000 * min(checked for checked, _ in rounds) / len(clips), 3),
        "bare_cpu_ms": round(1000 * min(bare for _, bare in rounds) / len(clips), 3),
        "clips": len(clips),
    }
    yield Figure.of("cache_check", spread([checked / bare for checked, bare in rounds]), _AIM, detail)


def _round(clips: list[Clip], read: PyAv, batch: NDArray[np.uint8]) -> tuple[float, float]:
    """CPU seconds of all clips, checked and bare."""
    spent_s = [0.0, 0.0]
    cache = MemoryCache()
    bare: dict[str, Buffer] = {}
    for index, clip in enumerate(clips):
        key, place = clip_key("job", 1, 0, index, 0), batch[index % len(batch)]
        for way in (0, 1) if index % 2 else (1, 0):
            begin = time.process_time()
            frames = read(clip, batch.shape[2])
            value, inside = codec.frame_buffer(frames.shape, frames.dtype)
            inside[...] = frames
            if way:
                bare[key] = value
                place[...] = codec.decode(bare.pop(key), checked=True)
            else:
                codec.complete(value)
                cache.put(key, codec.summed(value), [_CONSUMER], 60)
                place[...] = codec.decode(cache.get(key), checked=True)
                cache.ack(key, _CONSUMER)
            spent_s[way] += time.process_time() - begin
    return spent_s[0], spent_s[1]
