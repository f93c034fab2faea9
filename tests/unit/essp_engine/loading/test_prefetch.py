"""Batches are the same whoever decodes and crops their clips."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import closing
from typing import Any, cast

import numpy as np
import pytest
from numpy.typing import NDArray

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Record
from essp_common.cache.port import FrameCache, clip_key
from essp_common.job.clip_spec import ClipSpec, CodecSpec
from essp_common.job.position import Position
from essp_common.job.trainer_spec import AugmentSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, ClipReady, ClipRef, FrameCodec, PhasePlan, Recipe, StreamRequest
from essp_common.runtime import retry
from essp_common.wiring import open_cache
from essp_engine.features.registry import layout_of
from essp_engine.intake.fetch_processes import FetchProcesses
from essp_engine.intake.ordered import Delivery, IntakeOptions, OrderedIntake, PhaseEnd
from essp_engine.intake.wanted import reading
from essp_engine.learning.augment import training_view
from essp_engine.loading.batch import Batch, Seen, Transform, on_host
from essp_engine.loading.prefetch import Prefetch, PrefetchOptions
from essp_engine.video import codec
from tests.harness.waiting import LONGEST_S, until
from tests.lanes import often

CONSUMER = "trainer.t"
CLIPS, BATCH = 12, 5
AUGMENT = AugmentSpec(crop=16)
SKIPPED = 7
READ = reading(ClipSpec(frames=5, codec=CodecSpec(name="zstd")), 2)


THREADS: set[str] = set()
"""Those that have made a view."""


def view(clip: ClipRef, frames: NDArray[np.uint8]) -> NDArray[np.uint8]:
    THREADS.add(threading.current_thread().name.partition("_")[0])
    return training_view(frames, AUGMENT, layout_of("rgb"), 3, clip.epoch, clip.index)


def publish(bus: MemoryBus, cache: FrameCache) -> None:
    """The clips of a phase, one of them skipped."""
    bus.ensure_topics({topics.CLIPS: topics.DATA_PARTITIONS, topics.PROGRESS: 1})
    recipe = Recipe(streams=[StreamRequest(stream="t", feature="rgb", consumers=[CONSUMER])])
    for index in reversed(range(CLIPS)):
        key = clip_key("job", TRAIN, 0, index, 0)
        clip = ClipRef(job="job", purpose=TRAIN, index=index)
        frames = np.random.default_rng(index).integers(0, 256, (5, 32, 40, 3), dtype=np.uint8)
        value = bytes(codec.encode(frames, FrameCodec(name="zstd")))
        skipped = "no such video" if index == SKIPPED else ""
        cache.put(key, value, [CONSUMER], 60)
        message = ClipReady(clip=clip, key=key, bytes=len(value), recipe=recipe, skipped=skipped)
        bus.publish(topics.CLIPS, b"", message.SerializeToString(), partition=index % topics.DATA_PARTITIONS)


def batches(
    fetches: int, cache_url: str = "memory://", elsewhere: FetchProcesses | None = None
) -> tuple[list[NDArray[np.uint8]], list[int], set[str]]:
    """What comes out: frames, indices, and the threads that made the view."""
    bus, cache = MemoryBus(), open_cache(cache_url)
    publish(bus, cache)
    THREADS.clear()
    options = IntakeOptions(
        "job", CONSUMER, "t", "rgb", fetches=fetches, read=READ, prepare=on_host(view), elsewhere=elsewhere
    )
    phases, start = [PhasePlan(purpose=TRAIN, clips=CLIPS)], Position(0, 0)
    intake = OrderedIntake(bus, cache, options, phases, start)
    found: list[NDArray[np.uint8]] = []
    indices: list[int] = []
    with closing(Prefetch(intake, phases, start, PrefetchOptions(BATCH, 1, "t"))) as prefetch:
        while not isinstance(batch := prefetch.next(10.0), PhaseEnd):
            assert batch is not None
            found += batch.frames
            indices += [item.clip.index for item in batch.clips]
            prefetch.finish(batch.items)
    left = cache.usage().keys
    cache.close()
    bus.close()
    assert left == 1, "of the clip that was skipped"
    return found, indices, set(THREADS)


def test_views_made_where_clips_are_fetched_are_the_same() -> None:
    plain, plain_indices, takers = batches(fetches=0)
    fetched, fetched_indices, fetchers = batches(fetches=2)
    assert plain_indices == fetched_indices == [index for index in range(CLIPS) if index != SKIPPED]
    assert all(np.array_equal(a, b) for a, b in zip(plain, fetched, strict=True))
    assert takers == {"essp-intake-t"}, "not the thread that trains"
    assert fetchers == {f"essp-fetch-{CONSUMER}"}


@pytest.mark.lane("promises")
@pytest.mark.processes
@pytest.mark.parametrize("killed", often([False, True], 1), ids=["whole", "killed"])
def test_views_made_by_other_processes_are_the_same(killed: bool) -> None:
    """And if these are killed, threads make them."""
    url = f"shm://test-prefetch-{os.getpid()}?bytes=16MiB"
    plain, indices, _ = batches(fetches=0)
    elsewhere = FetchProcesses.of(2, url, "", READ, on_host(view))
    assert elsewhere is not None
    elsewhere.start()
    pids = elsewhere.pids
    if killed:
        os.kill(pids[0], signal.SIGKILL)
        os.kill(pids[1], signal.SIGKILL)
    found, found_indices, threads = batches(2, url, elsewhere)
    assert found_indices == indices
    assert all(np.array_equal(a, b) for a, b in zip(plain, found, strict=True))
    assert threads == ({f"essp-fetch-{CONSUMER}"} if killed else set())
    assert elsewhere.pids == []


@pytest.mark.parametrize("start", [0, 3, CLIPS])
def test_batches_are_full_wherever_they_start(start: int) -> None:
    """But for the last one."""
    bus, cache = MemoryBus(), open_cache("memory://")
    publish(bus, cache)
    options = IntakeOptions("job", CONSUMER, "t", "rgb", read=READ, prepare=on_host(view))
    phases, at = [PhasePlan(purpose=TRAIN, clips=CLIPS)], Position(0, start)
    sizes = []
    intake = OrderedIntake(bus, cache, options, phases, at)
    with closing(Prefetch(intake, phases, at, PrefetchOptions(BATCH, 1, "t"))) as made:
        while not isinstance(batch := made.next(10.0), PhaseEnd):
            assert batch is not None
            sizes.append(len(batch.items))
    cache.close()
    bus.close()
    assert sum(sizes) == CLIPS - start
    assert all(size == BATCH for size in sizes[:-1])


class Scripted:
    """An intake that gives what it is told to, or raises it; then nothing more."""

    def __init__(self, *answers: Delivery | PhaseEnd | Exception, rank: int = 0, world_size: int = 1) -> None:
        self._answers = list(answers)
        self._rank, self._world_size = rank, world_size
        self.taken = 0
        self.closed = False

    def owns(self, index: int) -> bool:
        return index % self._world_size == self._rank

    def take(self, _: float) -> Delivery | PhaseEnd | None:
        answer = self._answers.pop(0) if self._answers else None
        if isinstance(answer, Exception):
            raise answer
        self.taken += answer is not None
        return answer

    def close(self) -> None:
        self.closed = True


def prefetch_of(intake: Scripted, clips: int = 2, transform: Transform | None = None) -> Prefetch:
    options = PrefetchOptions(batch_size=2, batches_ahead=2, name="t", transform=transform)
    return Prefetch(cast(Any, intake), [PhasePlan(purpose=TRAIN, clips=clips)], Position(0, 0), options)


def delivery(index: int, seen: Seen | None = None) -> Delivery:
    """A clip that was skipped, unless it has frames."""
    record = Record("clips", 0, index, b"", b"")
    return Delivery(0, ClipRef(index=index), "key", seen, "" if seen else "no such video", record)


def test_what_ends_the_thread_that_takes_clips_reaches_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    """After the batches that were ready before."""
    monkeypatch.setattr(retry, "_UNEXPECTED_WAIT_S", 0.0)
    intake = Scripted(delivery(0), delivery(1), delivery(2), *[ValueError("a defect")] * 3)
    with closing(prefetch_of(intake, clips=4)) as prefetch:
        batch = prefetch.next(LONGEST_S)
        assert isinstance(batch, Batch)
        assert [item.clip.index for item in batch.items] == [0, 1]
        for _ in range(2):
            with pytest.raises(ValueError, match="a defect"):
                prefetch.next(LONGEST_S)
    assert intake.closed
    assert not [thread for thread in threading.enumerate() if thread.name == "essp-intake-t"]


def test_no_more_batches_are_held_than_are_wanted_ahead() -> None:
    intake = Scripted(*map(delivery, range(10)))
    with closing(prefetch_of(intake, clips=10)) as prefetch:
        until(lambda: prefetch.queued == 4)
        assert intake.taken == 4
        assert prefetch.next(LONGEST_S) is not None
        until(lambda: intake.taken == 6)
        assert prefetch.queued == 4


def test_a_rank_without_a_clip_of_a_batch_has_an_empty_one() -> None:
    """It waits for nothing to arrive."""
    intake = Scripted(delivery(2), PhaseEnd(0, PhasePlan()), rank=2, world_size=3)
    with closing(prefetch_of(intake, clips=4)) as prefetch:
        items = [prefetch.next(LONGEST_S) for _ in range(3)]
    assert [[item.clip.index for item in batch.items] for batch in items if isinstance(batch, Batch)] == [[], [2]]
    assert isinstance(items[2], PhaseEnd)


def test_a_transform_runs_on_one_thread_on_clips_in_their_order() -> None:
    """And its error is not taken for one that a second try may mend."""
    ran: list[tuple[int, str]] = []

    def transform(clip: ClipRef, seen: Seen) -> Seen:
        ran.append((clip.index, threading.current_thread().name))
        if clip.index == 3:
            raise ZeroDivisionError("of the user's")
        return Seen(seen.frames + 1)

    clips = [delivery(index, Seen(np.full(3, index))) for index in (0, 1, 2, 3)]
    with closing(prefetch_of(Scripted(delivery(0), *clips[1:]), clips=4, transform=transform)) as prefetch:
        batch = prefetch.next(LONGEST_S)
        assert isinstance(batch, Batch)
        assert [frames.tolist() for frames in batch.frames] == [[2, 2, 2]]
        with pytest.raises(ZeroDivisionError, match="of the user's"):
            prefetch.next(LONGEST_S)
    assert ran == [(index, "essp-intake-t") for index in (1, 2, 3)]
