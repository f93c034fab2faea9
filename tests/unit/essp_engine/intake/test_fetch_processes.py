"""What children fetch is what this process would read, and nothing is missed when they fail."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from essp_common.cache.port import FrameCache
from essp_common.errors import EsspError
from essp_common.job.clip_spec import ClipSpec, CodecSpec
from essp_common.pb.v1.messages_pb2 import ClipRef, FrameCodec
from essp_common.wiring import open_cache
from essp_engine.intake.fetch_processes import FetchProcesses, Work, places_of
from essp_engine.intake.ordered import Stored
from essp_engine.intake.wanted import Decoded, reading
from essp_engine.video import codec
from tests.unit.essp_common.runtime.test_shared_slots import no_larger_than

pytestmark = [pytest.mark.processes, pytest.mark.lane("promises")]

READ = reading(ClipSpec(frames=3, codec=CodecSpec(name="zstd")), 2)
SIDES = (8, 64, 8, 300)
"""Of clips: later ones need more room than earlier ones had."""


def opened(url: str) -> FrameCache:
    """As children open it."""
    return open_cache(url)


def no_cache() -> FrameCache:
    raise OSError("there is no cache here")


def numbered(clip: ClipRef, decoded: Decoded) -> dict[str, Any]:
    """Two arrays, one of which does not lie in one piece of memory, and something else."""
    if clip.index == 13:
        raise ValueError("of all numbers, this one")
    return {"frames": decoded.frames, "mirrored": decoded.frames[:, :, ::-1], "index": clip.index}


def frames_of(index: int) -> NDArray[np.uint8]:
    side = SIDES[index % len(SIDES)]
    return np.random.default_rng(index).integers(0, 256, (3, side, side, 3), dtype=np.uint8)


@pytest.fixture
def url() -> Iterator[str]:
    """A cache that another process can open."""
    place = f"shm://test-fetch-{os.getpid()}?bytes=64MiB"
    with closing(open_cache(place)):
        yield place


def stored(url: str, indices: list[int]) -> list[Stored]:
    """Clips of these indices, put into the cache."""
    found = []
    with closing(open_cache(url)) as cache:
        for index in indices:
            value = codec.encode(frames_of(index), FrameCodec(name="zstd"))
            cache.put(str(index), value, ["c"], 600)
            found.append(Stored(ClipRef(index=index), str(index), len(value)))
    return found


@pytest.mark.usefixtures("started_children")
def test_what_children_make_is_what_this_process_would(url: str) -> None:
    clips = stored(url, list(range(12)))
    with closing(FetchProcesses(Work(partial(opened, url), READ, numbered), 1)) as processes:
        assert processes.values(clips[:2]) is None, "it starts only now, and this process need not wait"
        processes.start()
        made = [one for begin in range(0, 12, 4) for one in processes.values(clips[begin : begin + 4]) or ()]
        again = processes.values(clips[:4])
    for index, one in enumerate([*made, *(again or ())]):
        frames = frames_of(index % 12)[[0, 2]]
        assert np.array_equal(one["frames"], frames)
        assert np.array_equal(one["mirrored"], frames[:, :, ::-1])
        assert one["index"] == index % 12
    assert len(made) == 12, "and they are whole after the children have ended"


def test_what_cannot_be_made_is_an_error_and_the_rest_is_made(url: str) -> None:
    clips = stored(url, [1, 13])
    gone = Stored(ClipRef(index=2), "gone", 64)
    with closing(FetchProcesses(Work(partial(opened, url), READ, numbered), 1)) as processes:
        processes.start()
        made = processes.values([gone, *clips])
    assert made is not None
    first, second, third = made
    assert isinstance(first, EsspError)
    assert str(first).startswith("CacheMiss: ")
    assert second["index"] == 1
    assert str(third) == "ValueError: of all numbers, this one"


def test_a_child_that_is_killed_is_replaced_and_what_it_had_made_stays(url: str) -> None:
    clips = stored(url, [0, 1])
    with closing(FetchProcesses(Work(partial(opened, url), READ), 2)) as processes:
        processes.start()
        before = processes.values(clips) or ()
        pids = processes.pids
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
        assert [processes.values(clips) for _ in pids] == [None, None], "threads do its work"
        processes.start()
        assert not set(pids) & set(processes.pids)
        after = processes.values(clips) or ()
    for index, (one, other) in enumerate(zip(before, after, strict=True)):
        assert np.array_equal(one.frames, frames_of(index)[[0, 2]])
        assert np.array_equal(one.frames, other.frames)


def test_without_memory_for_clips_threads_do_the_work_and_the_child_stays(url: str) -> None:
    clips = stored(url, [1])
    with closing(FetchProcesses(Work(partial(opened, url), READ), 1)) as processes:
        processes.start()
        pids = processes.pids
        with no_larger_than(1 << 13):
            assert processes.values(clips) is None
        made = processes.values(clips)
        assert processes.pids == pids
    assert made is not None
    assert np.array_equal(made[0].frames, frames_of(1)[[0, 2]])
    made[0].frames[:] = 0  # a loop's transform may write to them, as to those that a thread has decoded
    assert processes.pids == []


def test_children_that_cannot_start_are_given_up(url: str, caplog: pytest.LogCaptureFixture) -> None:
    with closing(FetchProcesses(Work(no_cache, READ), 1)) as processes:
        for _ in range(4):
            with pytest.raises(EOFError):
                processes.start()
            assert processes.values(stored(url, [0])) is None
        processes.start()
        assert processes.pids == []
    assert [record.message.rpartition("; ")[2] for record in caplog.records] == [
        *["it is replaced"] * 3,
        "threads do its work",
    ]


def test_no_process_can_reach_a_cache_in_memory() -> None:
    assert FetchProcesses.of(4, "memory://", "", READ) is None
    assert FetchProcesses.of(0, "redis://127.0.0.1:1", "", READ) is None


def test_arrays_lie_apart() -> None:
    assert places_of([]) == [0]
    assert places_of([1, 64, 65]) == [0, 64, 128, 256]
