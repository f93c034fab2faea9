"""What every frame cache must do. A test module subclasses `CacheContract` and gives it a cache.

    class TestMyCache(CacheContract):
        @pytest.fixture
        def cache(self) -> Iterator[FrameCache]: ...   # empty, at least 4 MiB, at most 64 MiB

The suite uses keys of `clip_key`, values up to 1 MiB, and fills the cache once.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from essp_common.cache.port import FrameCache, Summed, clip_key, job_prefix, stream_key
from essp_common.errors import CacheFull, CacheMiss, ConfigError
from essp_common.pb.v1.messages_pb2 import FrameCodec
from essp_common.runtime import metrics
from essp_common.runtime.troubles import Kind
from essp_engine.video import codec

TTL_S = 600.0
KEY = clip_key("job-a", 1, 0, 7, 0)
MIB = 2**20
RAW = FrameCodec(name="raw")


class CacheContract:
    """Behaviour that services rely on."""

    def test_value_comes_back(self, cache: FrameCache) -> None:
        for value in (b"x", bytes(range(256)) * 4096, b"", b"a\r\nb\0c"):
            cache.put(KEY, value, ["trainer.a"], TTL_S)
            assert bytes(cache.get(KEY)) == value

    def test_any_buffer_is_taken(self, cache: FrameCache) -> None:
        data = bytearray(b"frames" * 5000)
        for value in (data, memoryview(data), memoryview(data)[6:-6], memoryview(data).cast("I")):
            cache.put(KEY, value, ["trainer.a"], TTL_S)
            assert bytes(cache.get(KEY)) == bytes(value)

    def test_pieces_of_a_value_are_read_alone(self, cache: FrameCache) -> None:
        """As the frames of a raw clip: header and table, then frames of one size."""
        value = codec.encode(np.random.default_rng(0).integers(0, 256, (5, 90, 70, 3), np.uint8), RAW)
        cache.put(KEY, codec.summed(value), ["trainer.a"], TTL_S)
        assert bytes(cache.get(KEY)) == bytes(value)
        for frames in ([0], [4, 1, 1], [0, 1, 2, 3, 4]):
            parts = codec.raw_parts(len(value), 5, frames)
            assert bytes(cache.get(KEY, parts)) == b"".join(value[begin:end] for begin, end in parts)
        beyond = len(value) + len(value) // 5
        assert bytes(cache.get(KEY, [(0, 128), (len(value), beyond)])) == bytes(value[:128])

    @pytest.mark.parametrize("frames", [None, [0], [1]])
    def test_value_that_is_not_what_was_stored_is_a_miss(self, cache: FrameCache, frames: list[int] | None) -> None:
        """Its bytes changed between their making and the reader: it is told, removed, and can be stored again."""
        value = bytearray(codec.encode(np.zeros((3, 90, 70, 3), np.uint8), RAW))
        made = codec.summed(value)
        value[codec.header(value).payload_start + 90 * 70 * 3 + 7] ^= 16
        cache.put(KEY, made, ["trainer.a"], TTL_S)
        parts = [] if frames is None else codec.raw_parts(len(value), 3, frames)
        if frames == [0]:
            assert len(cache.get(KEY, parts)) == 128 + 90 * 70 * 3
            return
        unsound = metrics.CACHE_UNSOUND.labels("damaged")._value
        before = unsound.get()
        with pytest.raises(CacheMiss, match="checksum does not match"):
            cache.get(KEY, parts)
        assert unsound.get() == before + 1
        assert not cache.holds(KEY)
        value[codec.header(value).payload_start + 90 * 70 * 3 + 7] ^= 16
        cache.put(KEY, made, ["trainer.a"], TTL_S)
        assert bytes(cache.get(KEY, parts)) == b"".join(value[begin:end] for begin, end in parts or [(0, len(value))])

    def test_people_are_told_where_many_values_are_damaged(self, cache: FrameCache) -> None:
        for _ in range(3):
            assert Kind.CACHE_DAMAGED not in cache.troubles()
            cache.put(KEY, Summed(b"frames", b"ABCD"), ["trainer.a"], TTL_S)
            with pytest.raises(CacheMiss, match="checksum does not match"):
                cache.get(KEY)
        assert "differ from what was stored" in cache.troubles()[Kind.CACHE_DAMAGED]

    def test_missing_key_is_a_miss(self, cache: FrameCache) -> None:
        assert cache.holds(KEY) is False
        cache.put(KEY, b"", ["trainer.a"], TTL_S)
        assert cache.holds(KEY) is True
        cache.ack(KEY, "trainer.a")
        assert cache.holds(KEY) is False
        with pytest.raises(CacheMiss, match="job-a"):
            cache.get(KEY)
        assert cache.ack(KEY, "trainer.a") is False

    def test_parts_of_a_value_come_one_after_another(self, cache: FrameCache) -> None:
        value = bytes(range(256)) * 1024
        cache.put(KEY, value, ["trainer.a", "extractor." + "x" * 70], TTL_S)
        for parts in (
            [(0, 64)],
            [(0, 64), (1000, 200_000), (7, 7), (5, 6)],
            [(0, len(value))],
            [(len(value) - 3, len(value) + 9)],
            [(len(value), len(value) + 5)],
        ):
            assert bytes(cache.get(KEY, parts)) == b"".join(value[begin:end] for begin, end in parts)
        cache.ack(KEY, "trainer.a")
        assert bytes(cache.get(KEY, [(3, 9)])) == value[3:9]
        cache.purge(job_prefix("job-a"))
        with pytest.raises(CacheMiss, match="job-a"):
            cache.get(KEY, [(0, 1)])

    def test_parts_are_read_by_threads(self, cache: FrameCache) -> None:
        """Of values with labels of several lengths."""
        value = bytes(range(256)) * 64
        keys = [clip_key("job-a", 1, 0, index, 0) for index in range(4)]
        for number, key in enumerate(keys):
            cache.put(key, value, ["trainer." + "x" * 64 * number], TTL_S)
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda key: bytes(cache.get(key, [(1000, 1004), (8, 9)])), keys * 50))
        assert set(found) == {value[1000:1004] + value[8:9]}

    def test_many_acks_are_as_one_after_another(self, cache: FrameCache) -> None:
        keys = [clip_key("job-a", 1, 0, index, 0) for index in range(600)]
        for key in keys[:500]:
            cache.put(key, b"frames", ["trainer.a"], TTL_S)
        cache.put(keys[0], b"frames", ["trainer.a", "trainer.b"], TTL_S)
        assert cache.ack_all(keys, "trainer.x") == 0
        assert cache.ack_all(keys, "trainer.a") == 499
        assert cache.ack_all(keys, "trainer.a") == 0
        assert cache.ack_all([], "trainer.a") == 0
        assert bytes(cache.get(keys[0])) == b"frames"
        assert cache.ack_all(keys, "trainer.b") == 1
        assert cache.usage().keys == 0

    def test_last_ack_frees(self, cache: FrameCache) -> None:
        cache.put(KEY, b"frames", ["extractor.flow", "trainer.a", "trainer.b"], TTL_S)
        assert cache.ack(KEY, "trainer.a") is False
        assert cache.ack(KEY, "extractor.flow") is False
        assert bytes(cache.get(KEY)) == b"frames"
        assert cache.ack(KEY, "trainer.b") is True
        with pytest.raises(CacheMiss):
            cache.get(KEY)
        assert cache.usage().keys == 0

    @pytest.mark.parametrize("count", [1, 2, 5, 40, 400])
    def test_many_consumers_in_any_order(self, cache: FrameCache, count: int) -> None:
        consumers = [f"trainer.{number}" for number in range(count)]
        order = consumers[count // 2 :] + consumers[: count // 2]
        value = b"\n-trainer.x\n" * 100
        for _ in range(2):
            cache.put(KEY, value, consumers, TTL_S)
            assert cache.ack(KEY, "trainer.x") is False
            assert [cache.ack(KEY, consumer) for consumer in order[:-1]] == [False] * (count - 1)
            assert bytes(cache.get(KEY)) == value
        assert cache.ack(KEY, order[-1]) is True

    def test_repeated_and_foreign_acks_are_harmless(self, cache: FrameCache) -> None:
        cache.put(KEY, b"frames", ["trainer.a", "trainer.b"], TTL_S)
        for consumer in ("trainer.a", "trainer.a", "trainer.a", "trainer.never"):
            assert cache.ack(KEY, consumer) is False
        assert bytes(cache.get(KEY)) == b"frames"
        assert cache.ack(KEY, "trainer.b") is True
        assert cache.ack(KEY, "trainer.b") is False

    def test_storing_again_replaces_value_and_consumers(self, cache: FrameCache) -> None:
        cache.put(KEY, b"old", ["trainer.a", "trainer.b"], TTL_S)
        cache.ack(KEY, "trainer.a")
        cache.put(KEY, b"new", ["trainer.a"], TTL_S)
        assert bytes(cache.get(KEY)) == b"new"
        assert cache.usage().keys == 1
        assert cache.ack(KEY, "trainer.a") is True

    def test_value_for_nobody_is_not_kept(self, cache: FrameCache) -> None:
        cache.put(KEY, b"old", ["trainer.a"], TTL_S)
        cache.put(KEY, b"new", [], TTL_S)
        with pytest.raises(CacheMiss):
            cache.get(KEY)
        assert cache.usage().keys == 0

    def test_streams_of_a_clip_are_keys_of_their_own(self, cache: FrameCache) -> None:
        flow = stream_key(KEY, "flow")
        cache.put(KEY, b"clip", ["extractor.flow"], TTL_S)
        cache.put(flow, b"flow", ["trainer.b"], TTL_S)
        assert cache.ack(KEY, "extractor.flow") is True
        assert bytes(cache.get(flow)) == b"flow"
        assert cache.usage().keys == 1

    def test_usage_follows_what_is_held(self, cache: FrameCache) -> None:
        before = cache.usage()
        cache.put(KEY, bytes(MIB), ["trainer.a"], TTL_S)
        during = cache.usage()
        assert during.keys == before.keys + 1
        assert during.used_bytes >= before.used_bytes + MIB
        assert during.limit_bytes >= during.used_bytes
        cache.ack(KEY, "trainer.a")
        assert cache.usage().keys == before.keys

    def test_full_cache_refuses_keeps_what_it_has_and_recovers(self, cache: FrameCache) -> None:
        refused_before = cache.usage().full_count
        keys = [clip_key("job-a", 1, 0, index, 0) for index in range(cache.usage().limit_bytes // MIB + 1)]
        stored: list[str] = []
        with pytest.raises(CacheFull) as caught:
            self._fill(cache, keys, stored)
        assert caught.value.retry_after_s > 0
        assert cache.usage().full_count == refused_before + 1
        assert cache.usage().keys == len(stored) > 0
        with pytest.raises(CacheMiss):
            cache.get(keys[len(stored)])
        for key in stored:
            assert bytes(cache.get(key)).startswith(key.encode())
        assert cache.ack(stored[0], "trainer.b") is False
        assert cache.ack(stored[0], "trainer.a") is True
        assert cache.ack(stored[1], "trainer.a") is False
        assert cache.ack(stored[1], "trainer.b") is True
        cache.put(keys[len(stored)], bytes(MIB), ["trainer.a"], TTL_S)

    @staticmethod
    def _fill(cache: FrameCache, keys: list[str], stored: list[str]) -> None:
        for key in keys:
            cache.put(key, key.encode().ljust(MIB), ["trainer.a", "trainer.b"], TTL_S)
            stored.append(key)

    def test_value_that_can_never_fit_is_a_mistake_of_the_user(self, cache: FrameCache) -> None:
        """Not back-pressure: waiting for room would last for ever."""
        too_large = memoryview(bytearray(cache.usage().limit_bytes + 1))
        with pytest.raises(ConfigError, match="never fit"):
            cache.put(KEY, too_large, ["trainer.a"], TTL_S)

    def test_purge_takes_one_job_and_no_other(self, cache: FrameCache) -> None:
        jobs = ("job-a", "job-b", "job-[a]", "job-*")
        for job in jobs:
            for index in range(3):
                key = clip_key(job, 1, 0, index, 0)
                cache.put(key, b"clip", ["extractor.flow", "trainer.a"], TTL_S)
                cache.put(stream_key(key, "flow"), b"flow", ["trainer.b"], TTL_S)
        left = len(jobs) * 6
        for job in ("job-*", "job-[a]", "job-a"):
            assert cache.purge(job_prefix(job)) == 6
            left -= 6
            assert cache.usage().keys == left
        assert cache.purge(job_prefix("job-a")) == 0
        assert bytes(cache.get(clip_key("job-b", 1, 0, 0, 0))) == b"clip"

    def test_exactly_one_of_many_threads_frees(self, cache: FrameCache) -> None:
        keys = [clip_key("job-a", 1, 0, index, 0) for index in range(40)]
        consumers = [f"trainer.{name}" for name in "abcd"]
        for key in keys:
            cache.put(key, key.encode(), consumers, TTL_S)

        def consume(consumer: str) -> int:
            freed = 0
            for key in keys:
                assert bytes(cache.get(key)) == key.encode()
                freed += cache.ack(key, consumer)
            return freed

        with ThreadPoolExecutor(len(consumers)) as pool:
            assert sum(pool.map(consume, consumers)) == len(keys)
        assert cache.usage().keys == 0
