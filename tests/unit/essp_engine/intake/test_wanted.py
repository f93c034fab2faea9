"""Only the frames that a stream looks at are read, and they are those of the whole clip."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import Buffer, Part
from essp_common.errors import BadFrames, CacheMiss, ConfigError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.pb.v1.messages_pb2 import FrameCodec
from essp_engine.features.sampling import evenly_spaced
from essp_engine.intake.wanted import in_flight, reading
from essp_engine.video import codec
from essp_engine.video.colour import Colour

SHAPES = {"rgb": (11, 8, 6, 3), "yuv420": (11, 12, 6), "gray": (11, 8, 6, 1)}


class Counted(MemoryCache):
    """Counts the bytes that are read."""

    read_bytes = 0

    def get(self, key: str, parts: Sequence[Part] = ()) -> Buffer:
        value = super().get(key, parts)
        self.read_bytes += len(value)
        return value


@pytest.mark.parametrize("wanted", [1, 3, 10, 11, None])
@pytest.mark.parametrize("pixels", SHAPES)
@pytest.mark.parametrize("name", ["raw", "zstd"])
def test_the_wanted_frames_are_those_of_the_whole_clip(name: str, pixels: str, wanted: int | None) -> None:
    clip = ClipSpec.model_validate({"frames": 11, "pixels": pixels, "codec": {"name": name}})
    frames = np.random.default_rng(0).integers(0, 256, SHAPES[pixels], dtype=np.uint8)
    colour = None if pixels == "rgb" else Colour("bt709")
    value = codec.encode(frames, FrameCodec(name=name), colour)
    cache = Counted()
    cache.put("k", codec.summed(value), ["c"], 60)
    found = reading(clip, wanted)(cache, "k", len(value))
    chosen = list(range(11)) if wanted is None else evenly_spaced(11, wanted)
    assert found.colour == colour
    assert np.array_equal(found.frames, frames[chosen])
    in_parts = name == "raw" and wanted is not None and wanted < 11
    assert cache.read_bytes == (128 + len(chosen) * (len(value) - 128) // 11 if in_parts else len(value))


def test_what_is_no_clip_of_the_job_is_told_in_the_words_of_who_decodes() -> None:
    cache = MemoryCache()
    read = reading(ClipSpec(frames=11), 1)
    with pytest.raises(CacheMiss):
        read(cache, "gone", 128)
    for value in (b"not a clip", b"x" * (128 + 11 * 5)):
        cache.put("k", value, ["c"], 60)
        with pytest.raises(BadFrames):
            read(cache, "k", len(value))
    short = codec.encode(np.zeros((2, 4, 4, 3), np.uint8), FrameCodec(name="raw"))
    cache.put("k", short, ["c"], 60)
    with pytest.raises(ConfigError, match=r"have 2 frame.*needs 3; raise clip\.frames"):
        reading(ClipSpec(frames=2), 3)(cache, "k", len(short))


def test_raw_clips_of_a_cache_in_memory_are_read_without_a_thread_or_a_copy() -> None:
    clip = ClipSpec.model_validate({"frames": 11, "codec": {"name": "raw"}})
    stream = StreamSpec.model_validate({"feature": "rgb", "params": {"frames": 3}})
    value = codec.encode(np.zeros(SHAPES["rgb"], np.uint8), FrameCodec(name="raw"))
    cache = MemoryCache()
    cache.put("k", value, ["c"], 60)
    threads, read = in_flight(clip, stream, "memory://", 0)
    assert threads == 0
    assert np.shares_memory(read(cache, "k", len(value)).frames, np.frombuffer(cache.get("k"), np.uint8))
    assert in_flight(clip, stream, "memory://", 3)[0] == 3, "threads that somebody wants make views"
    assert in_flight(clip, stream, "redis://here", 0)[0] > 0
