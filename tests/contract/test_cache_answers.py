"""Whatever answers come from where Redis should be: the cache gives what was stored, or raises an error of ESSP's, and
the next calls are answered right."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
import redis

from essp_common.cache.label import label
from essp_common.cache.port import CacheUsage, FrameCache, clip_key
from essp_common.cache.redis import RedisCache
from essp_common.cache.seal import Seal
from essp_common.errors import CacheMiss, EsspError, FlowUnavailable, PermanentError
from essp_common.pb.v1.messages_pb2 import FrameCodec
from essp_common.runtime.troubles import Kind
from essp_engine.video import codec
from tests.harness.proxy import Change, Proxy, before, instead, twice
from tests.lanes import across, often

pytestmark = pytest.mark.integration

TTL_S = 60.0
KEY, OTHER, GONE = (clip_key("job-a", 1, 0, index, 0) for index in (7, 8, 9))
_CLIP = np.random.default_rng(0).integers(0, 256, (3, 80, 60, 3), np.uint8)
VALUE = bytes(codec.encode(_CLIP, FrameCodec(name="raw")))
FOREIGN = b"small"
PARTS = codec.raw_parts(len(VALUE), 3, [2, 0])


def _bulk(data: bytes) -> bytes:
    return b"$%d\r\n%b\r\n" % (len(data), data)


ANSWERS = {
    "nil": b"$-1\r\n",
    "array that is nil": b"*-1\r\n",
    "one": b":1\r\n",
    "negative": b":-7\r\n",
    "no number": b":x\r\n",
    "OK": b"+OK\r\n",
    "QUEUED": b"+QUEUED\r\n",
    "empty": b"$0\r\n\r\n",
    "text": b"$5\r\nhello\r\n",
    "value of another key": _bulk(label(Seal.of(OTHER, FOREIGN), ("trainer.a",)) + FOREIGN),
    "value without a seal": _bulk(b"000064\n-trainer.a\n".ljust(64) + VALUE),
    "large text": _bulk(bytes(100_000)),
    "array": b"*2\r\n:1\r\n$1\r\nx\r\n",
    "nested array": b"*2\r\n*1\r\n:1\r\n*0\r\n",
    "page of numbers": b"*2\r\n$1\r\n0\r\n*2\r\n:1\r\n:2\r\n",
    "map": b"%1\r\n+a\r\n:1\r\n",
    "null of RESP 3": b"_\r\n",
    "true": b"#t\r\n",
    "unknown error": b"-ODD this is not an error of Redis\r\n",
    "wrong type": b"-WRONGTYPE Operation against a key holding the wrong kind of value\r\n",
    "unknown command": b"-ERR unknown command 'X', with args beginning with: \r\n",
    "moved": b"-MOVED 866 10.255.255.1:1\r\n",
    "error without words": b"-\r\n",
    "HTML": b"HTTP/1.1 502 Bad Gateway\r\nContent-Type: text/html\r\n\r\n<html>\r\n",
    "bytes": bytes(range(200, 256)),
    "length of no digits": b"$abc\r\n",
    "length of petabytes": b"$999999999999999\r\n",
    "longer than it promises": b"$40000\r\n" + bytes(50_000) + b"\r\n",
}

CALLS: dict[str, tuple[Callable[[FrameCache], object], Callable[[Any], bool]]] = {
    "put": (lambda cache: cache.put(OTHER, FOREIGN, ["trainer.a"], TTL_S), lambda found: found is None),
    "get": (lambda cache: bytes(cache.get(KEY)), lambda found: found == VALUE),
    "get of parts": (
        lambda cache: bytes(cache.get(KEY, PARTS)),
        lambda found: found == b"".join(VALUE[begin:end] for begin, end in PARTS),
    ),
    "holds": (lambda cache: cache.holds(KEY), lambda found: isinstance(found, bool)),
    "ack": (lambda cache: cache.ack(KEY, "trainer.never"), lambda found: isinstance(found, bool)),
    "ack_all": (lambda cache: cache.ack_all([KEY] * 3, "trainer.never"), lambda found: isinstance(found, int)),
    "usage": (lambda cache: cache.usage(), lambda found: isinstance(found, CacheUsage)),
    "purge": (lambda cache: cache.purge("essp:none:"), lambda found: isinstance(found, int)),
}


@pytest.fixture
def proxy(empty_redis_url: str) -> Iterator[Proxy]:
    with Proxy(redis.Redis.from_url(empty_redis_url).get_connection_kwargs()["port"]) as proxy:
        yield proxy


def _opened(proxy: Proxy, **options: Any) -> RedisCache:
    """Short limits: some answers have no end, and nothing is asked for that takes long."""
    return RedisCache.from_url(f"redis://127.0.0.1:{proxy.port}/0?socket_timeout=0.2", **options)


@pytest.mark.parametrize(
    ("mode", "call"), often(across(["instead", "before"], sorted(CALLS, key=("ack", "holds").__contains__)), 6)
)
def test_answers_that_nobody_asked_for(proxy: Proxy, mode: str, call: str) -> None:
    change: dict[str, Callable[[bytes], Change]] = {"instead": instead, "before": before}
    with closing(_opened(proxy)) as cache:
        for name, answer in ANSWERS.items():
            _check(cache, proxy, change[mode](answer), call, name)
    assert proxy.faults["altered"] == len(ANSWERS)


@pytest.mark.parametrize("call", CALLS)
def test_answers_that_come_twice(proxy: Proxy, call: str) -> None:
    with closing(_opened(proxy)) as cache:
        _check(cache, proxy, twice, call, "twice")
    assert proxy.faults["altered"] == 1


def _check(cache: RedisCache, proxy: Proxy, change: Change, call: str, name: str) -> None:
    cache.put(KEY, codec.summed(VALUE), ["trainer.a"], TTL_S)
    made, is_right = CALLS[call]
    proxy.alter(change)
    try:
        found = made(cache)
    except EsspError:
        pass
    else:
        assert is_right(found), f"{call} with {name}: {found!r}"
    cache.put(OTHER, FOREIGN, ["trainer.b"], TTL_S)
    assert bytes(cache.get(OTHER)) == FOREIGN, f"after {call} with {name}"
    with suppress(CacheMiss):  # a reader that cannot have the bytes has them made again
        assert bytes(cache.get(KEY)) == VALUE, f"after {call} with {name}"
    with pytest.raises(CacheMiss):
        cache.get(GONE)
    assert cache.ack(OTHER, "trainer.b") is True
    assert cache.usage().limit_bytes > 0


def test_keys_that_another_search_has_found_are_not_purged(proxy: Proxy) -> None:
    page = b"*2\r\n$1\r\n0\r\n*1\r\n" + _bulk(KEY.encode())
    with closing(_opened(proxy)) as cache:
        cache.put(KEY, VALUE, ["trainer.a"], TTL_S)
        for change in (instead(page), before(page)):
            assert cache.purge("essp:none:") == 0, "over a connection that is ready"
            proxy.alter(change)
            with pytest.raises(FlowUnavailable, match="a list of keys was due"):
                cache.purge("essp:none:")
            assert bytes(cache.get(KEY)) == VALUE
        assert cache.purge(KEY) == 1


@pytest.mark.parametrize("name", ["HTML", "nil", "OK", "unknown error", "array"])
def test_what_is_no_redis_is_told_at_the_start(proxy: Proxy, name: str) -> None:
    proxy.alter(instead(ANSWERS[name]), None)
    with pytest.raises(EsspError, match=r"127\.0\.0\.1"):
        _opened(proxy)


@pytest.mark.parametrize("call", ["put", "get", "ack"])
def test_an_answer_that_nobody_knows_is_not_waited_out_for_ever(proxy: Proxy, call: str) -> None:
    now_s = [0]
    with closing(_opened(proxy)) as opened:
        cache = RedisCache(opened._client, "redis://here", clock=lambda: now_s[0])
        proxy.alter(instead(ANSWERS["unknown command"]), None)
        for now_s[0] in range(0, 600, 25):
            with pytest.raises(FlowUnavailable, match="Redis or Valkey of version 7"):
                CALLS[call][0](cache)
        assert Kind.CACHE_REFUSES in cache.troubles()
        now_s[0] = 601
        with pytest.raises(PermanentError, match="Redis or Valkey of version 7"):
            CALLS[call][0](cache)


@pytest.mark.parametrize("parts", [(), PARTS])
def test_value_of_another_type_is_a_miss_and_can_be_stored_again(
    empty_redis_url: str, parts: list[tuple[int, int]]
) -> None:
    with redis.Redis.from_url(empty_redis_url) as other, closing(RedisCache.from_url(empty_redis_url)) as cache:
        for command in (("LPUSH", KEY, "x"), ("HSET", KEY, "x", "y"), ("SET", KEY, "x")):
            other.execute_command(*command)
            with pytest.raises(CacheMiss):
                cache.get(KEY, parts)
            assert not other.exists(KEY)
        other.lpush(KEY, "x")
        assert cache.ack(KEY, "trainer.a") is False
        assert not other.exists(KEY)
        other.lpush(KEY, "x")
        cache.put(KEY, VALUE, ["trainer.a"], TTL_S)
        assert bytes(cache.get(KEY)) == VALUE


@pytest.mark.parametrize("place", [0, 3, 8, 20, 30, 70, 5000, -1])
def test_flipped_bit_of_a_stored_value_is_a_miss(empty_redis_url: str, place: int) -> None:
    """Anywhere, but for the names of consumers and the blanks behind them."""
    with redis.Redis.from_url(empty_redis_url) as other, closing(RedisCache.from_url(empty_redis_url)) as cache:
        cache.put(KEY, VALUE, ["trainer.a"], TTL_S)
        stored = bytearray(other.get(KEY) or b"")
        stored[place] ^= 1
        other.set(KEY, bytes(stored))
        with pytest.raises(CacheMiss):
            cache.get(KEY)


def test_values_that_were_exchanged_are_misses(empty_redis_url: str) -> None:
    with redis.Redis.from_url(empty_redis_url) as other, closing(RedisCache.from_url(empty_redis_url)) as cache:
        cache.put(KEY, codec.summed(VALUE), ["trainer.a"], TTL_S)
        for parts in ((), PARTS):
            other.copy(KEY, OTHER, replace=True)
            with pytest.raises(CacheMiss, match="value of another key"):
                cache.get(OTHER, parts)
        assert bytes(cache.get(KEY)) == VALUE


@pytest.mark.processes
def test_a_fork_has_connections_of_its_own(empty_redis_url: str) -> None:
    """Over one socket, parent and child would take each other's answers."""
    with closing(RedisCache.from_url(empty_redis_url)) as cache:
        keys = [clip_key("job-a", 1, 0, index, 0) for index in range(16)]
        for key in keys:
            cache.put(key, key.encode() * 1000, ["trainer.a"], TTL_S)
        used = [connection for idle in cache._direct._idle.values() for connection in idle]
        child = os.fork()
        if not child:
            status = 1
            with suppress(BaseException):
                right = all(bytes(cache.get(key)) == key.encode() * 1000 for key in keys * 10)
                own = [connection for idle in cache._direct._idle.values() for connection in idle]
                status = 0 if right and own and not any(one is other for one in own for other in used) else 2
            os._exit(status)
        assert all(bytes(cache.get(key)) == key.encode() * 1000 for key in keys * 10)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
