"""Counting deaths across workers: what is counted, and when, and what is not blamed."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from pathlib import Path

import pytest

from essp_common.bus.port import Record
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import Buffer, FrameCache, Summed
from essp_common.cache.shm import SharedMemoryCache
from essp_common.errors import CacheFull, TransientError, Unavailable
from essp_common.runtime.ids import extractor_pool
from essp_engine.worker.crash_counts import TTL_S, CrashCounts, Returned

LIMIT = 3
COUNTED = "essp:.crashes:{6c767cd8aedb30bc/t/0/%d}"
"""The key of a record's count, in the group `g`."""


def record(offset: int = 0, redelivered: bool = True, value: bytes = b"work") -> Record:
    return Record("t", 0, offset, b"", value, redelivered)


def counts(cache: FrameCache, group: str = "g") -> CrashCounts:
    return CrashCounts(cache, group, LIMIT, threading.Event())


_dead: list[AbstractContextManager[int]] = []
"""What no dead worker ever leaves; held here, as leaving it by way of the garbage collector would count."""


def die(cache: FrameCache, item: Record, group: str = "g") -> int:
    """A worker begins a record and dies of it; how many it knew of that had died before."""
    _dead.append(counts(cache, group).begun(item))
    return _dead[-1].__enter__()


def test_deaths_add_up_to_the_limit() -> None:
    cache = MemoryCache()
    assert [die(cache, record()) for _ in range(LIMIT + 2)] == [0, 1, 2, 3, 3]


@pytest.mark.parametrize("error", [None, RuntimeError("survived")])
def test_what_a_worker_survives_is_forgotten(error: Exception | None) -> None:
    cache = MemoryCache()
    die(cache, record())
    try:
        with counts(cache).begun(record()) as deaths:
            assert deaths == 1
            if error is not None:
                raise error
    except RuntimeError:
        pass
    assert cache.usage().keys == 0
    assert die(cache, record()) == 0


def test_a_worker_that_lost_its_record_and_lives_is_not_counted() -> None:
    """Its group is dealt anew again and again, while each of those that had the record works on."""
    cache, alive = MemoryCache(), []
    with ExitStack() as stack:
        for turn in range(3 * LIMIT):
            alive.append(counts(cache))
            assert stack.enter_context(alive[-1].begun(record())) <= min(turn, 1)
            for worker in alive:
                worker.take_back()
                worker.take_back()
        known = []
        for _ in range(LIMIT + 1):
            known.append(die(cache, record()))
            for worker in alive:
                worker.take_back()
        assert known == [1, 1, 2, 3], "who dies is counted; so is who lives, for the one that comes next"
    assert cache.usage().keys == 0


def test_first_deliveries_cost_nothing() -> None:
    cache = MemoryCache()
    with counts(cache).begun(record(redelivered=False)) as deaths:
        assert deaths == 0
        assert cache.usage().keys == 0


def test_groups_records_and_topics_made_anew_have_counts_of_their_own() -> None:
    cache = MemoryCache()
    die(cache, record())
    assert die(cache, record(), "other") == 0
    assert die(cache, record(offset=1)) == 0
    assert die(cache, record(value=b"another topic of that name")) == 0


def test_a_group_of_many_features_is_counted_in_every_cache(tmp_path: Path) -> None:
    group = extractor_pool(f"a-feature-of-our-own-{number}" for number in range(20))
    with closing(SharedMemoryCache("clips", 2**20, tmp_path)) as cache:
        assert [die(cache, record(), group) for _ in range(2)] == [0, 1]


def test_a_death_is_blamed_on_one_suspect_only() -> None:
    """Two lanes hold one record each that was in hand at a death: the second waits, and is not counted yet."""
    cache = MemoryCache()
    first, second = record(1), record(2)
    die(cache, first)
    die(cache, second)
    worker, order = counts(cache), []

    def lane() -> None:
        with worker.begun(second):
            order.append("second")

    with worker.begun(first):
        other = threading.Thread(target=lane)
        other.start()
        assert cache.get(COUNTED % 1)[:1] == b"2"
        assert cache.get(COUNTED % 2)[:1] == b"1"
        order.append("first")
    other.join()
    assert order == ["first", "second"]


def test_a_suspect_does_not_wait_for_one_that_hangs_once_the_worker_drains() -> None:
    """It stays counted as it was: nobody has tried it."""
    cache, draining = MemoryCache(), threading.Event()
    first, second = record(1), record(2)
    die(cache, first)
    die(cache, second)
    worker = CrashCounts(cache, "g", LIMIT, draining)
    with worker.begun(first):
        draining.set()
        with pytest.raises(Returned), worker.begun(second):
            pass
    assert die(cache, second) == 1


@pytest.mark.parametrize("error", [CacheFull("full"), Unavailable("away")])
def test_a_cache_that_does_not_answer_stops_nobody(error: TransientError) -> None:
    class Failing(MemoryCache):
        def put(self, key: str, value: Buffer | Summed, consumers: Sequence[str], ttl_s: float) -> None:
            raise error

    with counts(Failing()).begun(record()) as deaths:
        assert deaths == 0


def test_a_worker_asks_a_cache_that_does_not_answer_once_whether_others_have_its_records() -> None:
    """The thread that asks has to keep the worker in its group."""
    cache, asked = MemoryCache(), []
    worker = counts(cache)

    def away(key: str) -> Buffer:
        asked.append(key)
        raise Unavailable("away")

    with worker.begun(record(1)), worker.begun(record(2)), pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache, "get", away)
        worker.take_back()
    assert asked == [COUNTED % 1]


@pytest.mark.parametrize("damaged", [b"", b"x", b"-", b"1.5", b"\xb2", b"9" * 5000])
def test_a_damaged_count_stops_nobody(damaged: bytes) -> None:
    cache = MemoryCache()
    die(cache, record())
    [_, _, digest] = bytes(cache.get(COUNTED % 0)).split(b" ")
    for value in (damaged, damaged + b" 0 " + digest, b"1 " + damaged + b" " + digest):
        cache.put(COUNTED % 0, value, ["crash_counts"], TTL_S)
        assert die(cache, record()) == 0


def test_counts_that_nobody_comes_back_for_expire() -> None:
    now_s = 0.0
    cache = MemoryCache(clock=lambda: now_s)
    die(cache, record())
    now_s = TTL_S + 1
    assert cache.usage().keys == 0
