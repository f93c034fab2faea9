"""Every frame cache passes the one suite, and what only one of them has."""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pytest
import redis
from redis.exceptions import RedisError

from essp.servers.servers import RedisServer
from essp_common.cache import redis as cache_redis
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import FrameCache, clip_key
from essp_common.cache.redis import RedisCache
from essp_common.errors import CacheFull, CacheMiss, ConfigError, OtherRelease, Unavailable
from essp_common.runtime.refusals import Refusals
from essp_common.runtime.troubles import LASTS_S, Kind
from essp_common.wiring import open_cache
from tests.contract.cache_suite import KEY, TTL_S, CacheContract
from tests.harness.proxy import Proxy
from tests.harness.waiting import until

T = TypeVar("T")


class TestMemoryCache(CacheContract):
    @pytest.fixture
    def cache(self) -> Iterator[FrameCache]:
        cache = open_cache("memory://?bytes=8MiB")
        yield cache
        cache.close()


@pytest.mark.integration
class TestRedisCache(CacheContract):
    @pytest.fixture
    def cache(self, empty_redis_url: str) -> Iterator[FrameCache]:
        cache = open_cache(empty_redis_url)
        yield cache
        cache.close()


@pytest.mark.integration
class TestRedisClusterCache(CacheContract):
    @pytest.fixture
    def cache(self, redis_cluster_url: str) -> Iterator[FrameCache]:
        cache = open_cache(redis_cluster_url)
        cache.purge("")
        yield cache
        cache.close()


class Clock:
    """Time that a test moves."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_memory_keeps_the_buffer_itself() -> None:
    cache, value = MemoryCache(), bytearray(b"frames")
    cache.put(KEY, value, ["trainer.a"], TTL_S)
    assert cache.get(KEY) is value


def test_memory_value_expires() -> None:
    clock = Clock()
    cache = MemoryCache(limit_bytes=10, clock=clock)
    cache.put(KEY, b"12345678", ["trainer.a"], ttl_s=5)
    clock.now_s += 4.9
    assert cache.get(KEY) == b"12345678"
    clock.now_s += 0.2
    with pytest.raises(CacheMiss):
        cache.get(KEY)
    assert cache.usage().used_bytes == 0


def test_memory_replaces_in_place_and_keeps_the_old_value_when_that_does_not_fit() -> None:
    cache = MemoryCache(limit_bytes=10)
    cache.put(KEY, b"1234567", ["trainer.a"], TTL_S)
    cache.put(clip_key("job-b", 1, 0, 0, 0), b"12", ["trainer.a"], TTL_S)
    cache.put(KEY, b"12345678", ["trainer.a"], TTL_S)
    with pytest.raises(CacheFull):
        cache.put(KEY, b"123456789", ["trainer.a"], TTL_S)
    assert cache.get(KEY) == b"12345678"
    assert cache.usage().used_bytes == 10


def test_memory_expired_value_makes_room() -> None:
    clock = Clock()
    cache = MemoryCache(limit_bytes=10, clock=clock)
    cache.put(KEY, b"12345678", ["trainer.a"], ttl_s=5)
    clock.now_s += 5
    cache.put(clip_key("job-b", 1, 0, 0, 0), b"12345678", ["trainer.a"], ttl_s=5)
    assert cache.ack(KEY, "trainer.a") is False
    assert cache.usage().keys == 1


@pytest.mark.parametrize(
    "url", ["memory://?bytes=lots", "memory://?bytes=0", "memory://?bytes=", "memory://?size=1MiB"]
)
def test_memory_url_is_checked(url: str) -> None:
    with pytest.raises(ConfigError, match="cache URL"):
        MemoryCache.from_url(url)


@pytest.mark.integration
def test_redis_keys_carry_a_time_to_live(empty_redis_url: str) -> None:
    """The leak guard, also after an ack."""
    cache = RedisCache.from_url(empty_redis_url)
    with redis.Redis.from_url(empty_redis_url) as client:
        cache.put(KEY, b"frames", ["trainer.a", "trainer.b"], ttl_s=60)
        for consumer in ("trainer.b", "trainer.never"):
            assert client.keys() == [KEY.encode()]
            assert 0 < client.pttl(KEY) <= 60_000
            cache.ack(KEY, consumer)
    cache.close()


@pytest.mark.processes
@pytest.mark.integration
def test_redis_that_could_lose_frames_is_refused(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory_bytes=32 * 2**20) as server:
        server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        with pytest.raises(ConfigError, match=f"-p {server.port} CONFIG SET maxmemory-policy noeviction"):
            RedisCache.from_url(server.url)
        server.execute("CONFIG", "SET", "maxmemory", "0")
        with pytest.raises(ConfigError, match=r"CONFIG SET maxmemory 4gb.*CONFIG SET maxmemory-policy noeviction"):
            RedisCache.from_url(server.url)


@pytest.mark.processes
@pytest.mark.integration
def test_redis_that_is_set_to_lose_frames_while_it_runs_is_told_of(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory_bytes=32 * 2**20) as server:
        cache = RedisCache.from_url(server.url)
        cache.usage()
        assert not cache.troubles()
        server.execute("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        cache.usage()
        words = cache.troubles()[Kind.CACHE_EVICTS]
        assert "maxmemory-policy is allkeys-lru" in words
        assert f"-p {server.port} CONFIG SET maxmemory-policy noeviction" in words
        server.execute("CONFIG", "SET", "maxmemory", "0")
        cache.usage()
        assert "grows until the kernel kills it" in cache.troubles()[Kind.CACHE_EVICTS]
        server.execute("CONFIG", "SET", "maxmemory", "32mb")
        server.execute("CONFIG", "SET", "maxmemory-policy", "noeviction")
        cache.usage()
        assert not cache.troubles()
        cache.close()


@pytest.mark.processes
@pytest.mark.integration
def test_redis_that_cannot_save_is_waited_for_and_told_of(tmp_path: Path) -> None:
    """It refuses writes until it can, or need not."""
    (tmp_path / "disk").mkdir()
    with RedisServer(tmp_path / "disk", maxmemory_bytes=32 * 2**20) as server:
        cache = RedisCache.from_url(server.url)
        cache.put(KEY, b"frames", ["trainer.a"], TTL_S)
        server.execute("CONFIG", "SET", "save", "3600 1")
        shutil.rmtree(tmp_path / "disk")
        with redis.Redis.from_url(server.url) as client:
            client.bgsave()
            until(lambda: client.info("persistence")["rdb_last_bgsave_status"] == "err")
        for write in (lambda: cache.put(KEY, b"frames", ["trainer.a"], TTL_S), lambda: cache.ack(KEY, "trainer.a")):
            with pytest.raises(Unavailable, match="refuses writes, since it cannot save to disk"):
                write()
        assert 'CONFIG SET save ""' in cache.troubles()[Kind.CACHE_REFUSES]
        server.execute("CONFIG", "SET", "save", "")
        cache.put(KEY, b"frames", ["trainer.a"], TTL_S)
        assert not cache.troubles()
        cache.close()
        (tmp_path / "disk").mkdir()  # for its log


CALLS: dict[str, Callable[[FrameCache], object]] = {
    "put": lambda cache: cache.put(KEY, b"frames", ["trainer.a", "trainer.b"], TTL_S),
    "get": lambda cache: cache.get(KEY),
    "get of parts": lambda cache: cache.get(KEY, [(0, 1)]),
    "ack": lambda cache: cache.ack(KEY, "trainer.b"),
    "ack_all": lambda cache: cache.ack_all([KEY], "trainer.b"),
    "usage": lambda cache: cache.usage(),
    "purge": lambda cache: cache.purge("essp:job-z:"),
}


@pytest.mark.processes
@pytest.mark.integration
@pytest.mark.parametrize(
    ("takes", "gives_back", "refused", "clustered"),
    [
        pytest.param("-set", "+set", {"put"}, False, id="set"),
        pytest.param("-get", "+get", {"get", "get of parts"}, False, id="get"),
        pytest.param("-getrange", "+getrange", {"get of parts", "ack", "ack_all"}, False, id="a command of the script"),
        pytest.param("-evalsha", "+evalsha", {"ack", "ack_all"}, False, id="evalsha"),
        pytest.param("-info", "+info", {"usage"}, False, id="info"),
        pytest.param("-scan", "+scan", {"purge"}, False, id="scan"),
        pytest.param("resetkeys", "~*", CALLS.keys() - {"usage", "purge"}, False, id="keys"),
        pytest.param("resetpass", ">s3cret", CALLS.keys(), False, id="password"),
        pytest.param("off", "on", CALLS.keys(), False, id="user"),
        pytest.param("-set", "+set", {"put"}, True, id="set in a cluster"),
        pytest.param("resetpass", ">s3cret", CALLS.keys(), True, id="password of a cluster"),
    ],
)
def test_redis_rights_that_are_taken_away_are_waited_for_and_told_of(
    tmp_path: Path, takes: str, gives_back: str, refused: set[str], clustered: bool
) -> None:
    """No clip is at fault, and no process has to end: all works again as soon as they are given back."""
    with RedisServer(tmp_path, maxmemory_bytes=32 * 2**20, cluster=clustered) as server:
        server.execute("ACL", "SETUSER", "essp", "on", ">s3cret", "~*", "&*", "+@all")
        cache = RedisCache.from_url(server.url.replace("//", "//essp:s3cret@"))
        for call in CALLS.values():
            call(cache)
        server.execute("ACL", "SETUSER", "essp", takes)
        server.execute("CLIENT", "KILL", "USER", "essp")  # who is logged in stays so
        for name, call in CALLS.items():
            if name not in refused:
                call(cache)
                continue
            with pytest.raises(Unavailable, match=r"check user and password.*what the user may do") as caught:
                call(cache)
            assert "s3cret" not in str(caught.value)
            assert cache.troubles() == {Kind.CACHE_REFUSES: str(caught.value)}
        assert Kind.CACHE_REFUSES in cache.troubles(), "still refused, whatever else works"
        server.execute("ACL", "SETUSER", "essp", gives_back)
        for call in CALLS.values():
            call(cache)
        assert not cache.troubles()
        cache.close()


FOLLOW_NOBODY = "REPLICAOF 127.0.0.1 1"
LEAD = "REPLICAOF NO ONE"


@pytest.mark.processes
@pytest.mark.integration
@pytest.mark.parametrize(
    ("takes", "gives_back", "refused", "said"),
    [
        pytest.param(
            [FOLLOW_NOBODY],
            LEAD,
            {"put", "ack", "ack_all"},
            f"refuses writes, since it is a replica; .*{LEAD}",
            id="replica",
        ),
        pytest.param(
            [FOLLOW_NOBODY, "CONFIG SET replica-serve-stale-data no"],
            LEAD,
            CALLS.keys(),
            f"is a replica.*{LEAD}",
            id="replica without a primary",
        ),
        pytest.param(
            ["CONFIG SET min-replicas-to-write 1"],
            "CONFIG SET min-replicas-to-write 0",
            {"put", "ack", "ack_all"},
            "refuses writes, since it has too few replicas; .*min-replicas-to-write 0",
            id="too few replicas",
        ),
    ],
)
def test_redis_that_refuses_is_waited_for_and_told_of_if_it_lasts(
    tmp_path: Path, takes: list[str], gives_back: str, refused: set[str], said: str
) -> None:
    """A failover is over by itself, and is nothing to tell of."""
    clock = Clock()
    with RedisServer(tmp_path, maxmemory_bytes=32 * 2**20) as server:
        cache = RedisCache(cache_redis._single(server.url, {}), server.url, clock)
        for call in CALLS.values():
            call(cache)
        for command in takes:
            server.execute(*command.split())
        for passed_s in (0.0, LASTS_S):
            clock.now_s += passed_s
            for name, call in CALLS.items():
                if name not in refused:
                    call(cache)
                    continue
                with pytest.raises(Unavailable, match=said):
                    call(cache)
            assert list(cache.troubles()) == ([Kind.CACHE_REFUSES] if passed_s else [])
        assert re.search(said, cache.troubles()[Kind.CACHE_REFUSES])
        server.execute(*gives_back.split())
        for call in CALLS.values():
            call(cache)
        assert not cache.troubles()
        cache.close()


@pytest.mark.processes
@pytest.mark.integration
def test_redis_that_takes_no_more_clients_says_so(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory_bytes=32 * 2**20) as server, redis.Redis.from_url(server.url) as client:
        client.config_set("maxclients", 1)
        with pytest.raises(Unavailable, match=r"takes no more connections; .*CONFIG SET maxclients 10000"):
            RedisCache.from_url(server.url)
        client.config_set("maxclients", 100)
        RedisCache.from_url(server.url).close()


@pytest.mark.processes
@pytest.mark.integration
def test_redis_that_runs_a_script_says_so(tmp_path: Path) -> None:
    with (
        RedisServer(tmp_path, maxmemory_bytes=32 * 2**20) as server,
        redis.Redis.from_url(server.url) as client,
        ThreadPoolExecutor(1) as other_program,
    ):
        cache = RedisCache.from_url(server.url)
        client.config_set("busy-reply-threshold", 1)
        running = other_program.submit(redis.Redis.from_url(server.url).eval, "while true do end", 0)
        found: list[str] = []

        def put() -> bool:
            try:
                CALLS["put"](cache)
            except Unavailable as error:
                found.append(str(error))
            return bool(found)

        until(put)
        assert re.search("nothing but a script of another program.*SCRIPT KILL", found[0])
        client.script_kill()
        assert isinstance(running.exception(), RedisError)
        persistently(lambda: CALLS["put"](cache))
        cache.close()


@pytest.mark.processes
@pytest.mark.integration
def test_redis_whose_name_stands_for_another_after_a_failover_is_followed(tmp_path: Path) -> None:
    """The old primary goes on as a replica, and ends no connection."""
    old, new = (RedisServer(tmp_path / name, maxmemory_bytes=32 * 2**20) for name in ("old", "new"))
    with old, new, Proxy(old.port) as name:
        cache = RedisCache.from_url(f"redis://127.0.0.1:{name.port}/0")
        for call in CALLS.values():  # over more connections than one
            call(cache)
        name.upstream = new.port
        old.execute(*FOLLOW_NOBODY.split())
        with pytest.raises(Unavailable, match="it is a replica"):
            CALLS["put"](cache)
        for call in (CALLS["put"], CALLS["ack"]):
            call(cache)
        with redis.Redis.from_url(new.url) as client:
            assert client.keys() == [KEY.encode()]
        cache.close()


def test_refusal_is_forgotten_where_nobody_asks_again() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    refusals.refused("get", "no get")
    clock.now_s += 1
    refusals.refused("put", "no put")
    assert refusals.words == "no put"
    refusals.works("put")
    assert refusals.words == "no get"
    clock.now_s += 60
    assert refusals.words == ""


def test_refusal_that_is_soon_over_is_nothing_to_tell_of() -> None:
    clock = Clock()
    refusals = Refusals(clock)
    for passed_s in (0, LASTS_S - 1, 1):
        clock.now_s += passed_s
        refusals.refused("put", "no put", LASTS_S)
        assert bool(refusals.words) is (clock.now_s >= 100 + LASTS_S)
    refusals.works("put")
    refusals.refused("put", "no put", LASTS_S)
    assert refusals.words == ""


def test_redis_that_does_not_answer_is_told_of() -> None:
    class Away(redis.Redis):
        answers = True

        def info(self, section: str | None = None, *args: str, **kwargs: Any) -> dict[str, Any]:
            if not self.answers:
                raise RedisError("connection refused")
            return {"maxmemory": 1000, "maxmemory_policy": "noeviction", "used_memory": 1, "cluster_enabled": 0}

        def dbsize(self, **more: Any) -> Any:
            return 0

    clock, client = Clock(), Away()
    cache = RedisCache(client, "redis://r", clock)
    cache.usage()
    client.answers = False
    for passed_s in (0, LASTS_S - 1, 1):
        clock.now_s += passed_s
        with pytest.raises(Unavailable):
            cache.usage()
        assert bool(cache.troubles()) is (clock.now_s >= 100 + LASTS_S)
    assert "redis://r has not answered for 15 s" in cache.troubles()[Kind.CACHE_SILENT]
    assert "connection refused" in cache.troubles()[Kind.CACHE_SILENT]
    client.answers = True
    cache.usage()
    assert not cache.troubles()


@pytest.mark.processes
@pytest.mark.integration
def test_redis_password_is_wanted_and_never_shown(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory_bytes=32 * 2**20) as server:
        server.execute("CONFIG", "SET", "requirepass", "s3cret")
        with pytest.raises(ConfigError, match="check user and password"):
            RedisCache.from_url(server.url)
        with pytest.raises(ConfigError) as caught:
            RedisCache.from_url(f"redis://:wrong-s3cret@127.0.0.1:{server.port}/0")
        assert "s3cret" not in str(caught.value)
        cache = RedisCache.from_url(f"redis://:s3cret@127.0.0.1:{server.port}/0")
        cache.put(KEY, b"frames", ["trainer.a"], TTL_S)
        cache.close()


@pytest.mark.processes
@pytest.mark.integration
@pytest.mark.parametrize("clustered", [False, True])
def test_redis_password_in_a_file_may_change_while_it_is_in_use(tmp_path: Path, clustered: bool) -> None:
    """No process starts again for it. Until the file has the new one, work waits."""
    file = tmp_path / "password"
    with RedisServer(tmp_path, maxmemory_bytes=32 * 2**20, cluster=clustered) as server:
        server.execute("ACL", "SETUSER", "es@sp", "on", ">s3cret", "~*", "&*", "+@all")
        url = f"{server.url.replace('//', '//es%40sp@')}?password_file={file}"
        with pytest.raises(ConfigError, match="password cannot be read: No such file"):
            RedisCache.from_url(url)
        file.write_text("s3cret\n")
        cache = RedisCache.from_url(url)
        for call in CALLS.values():
            call(cache)
        server.execute("ACL", "SETUSER", "es@sp", "resetpass", ">n3w")
        for call in CALLS.values():  # who is logged in stays so
            call(cache)
        server.execute("CLIENT", "KILL", "USER", "es@sp")
        with pytest.raises(Unavailable, match="taken at once from the URL's password_file"):
            CALLS["put"](cache)
        assert Kind.CACHE_REFUSES in cache.troubles()
        file.unlink()
        with pytest.raises(Unavailable, match="password cannot be read: No such file"):
            CALLS["put"](cache)
        file.write_text("n3w\n")
        for call in CALLS.values():
            call(cache)
        assert not cache.troubles()
        cache.close()


def test_redis_password_stands_in_one_place(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a password and a password_file") as caught:
        RedisCache.from_url(f"redis://essp:s3cret@127.0.0.1:1/0?password_file={tmp_path}")
    assert "s3cret" not in str(caught.value)


@pytest.mark.processes
@pytest.mark.integration
def test_cluster_wants_its_password(tmp_path: Path) -> None:
    with RedisServer(tmp_path, maxmemory_bytes=32 * 2**20, cluster=True) as server:
        server.execute("CONFIG", "SET", "requirepass", "s3cret")
        with pytest.raises(ConfigError, match="check user and password"):
            RedisCache.from_url(server.url)
        RedisCache.from_url(server.url.replace("//", "//:s3cret@")).close()


@pytest.mark.processes
@pytest.mark.integration
def test_redis_that_stops_is_unavailable(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, maxmemory_bytes=32 * 2**20).start()
    cache = RedisCache.from_url(server.url)
    server.stop()
    for operation in (
        lambda: cache.put(KEY, b"frames", ["trainer.a"], TTL_S),
        lambda: cache.get(KEY),
        lambda: cache.ack(KEY, "trainer.a"),
        lambda: cache.usage(),
        lambda: cache.purge("essp:"),
    ):
        with pytest.raises(Unavailable) as caught:
            operation()
        assert isinstance(caught.value.__cause__, RedisError)
    cache.close()


@pytest.mark.processes
@pytest.mark.integration
@pytest.mark.parametrize("size", [100, 2**20, 2**25])
def test_redis_that_hangs_is_unavailable_and_its_late_answers_are_nobodys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setitem(cache_redis._OPTIONS, "socket_timeout", 1.0)
    with RedisServer(tmp_path, maxmemory_bytes=256 * 2**20) as server:
        cache = RedisCache.from_url(server.url)
        other = clip_key("job-b", 1, 0, 0, 0)
        persistently(lambda: cache.put(KEY, bytes(size), ["trainer.a"], TTL_S))
        persistently(lambda: cache.put(other, b"other", ["trainer.a"], TTL_S))
        with redis.Redis.from_url(server.url) as client:
            process = client.info("server")["process_id"]
        for operation in (lambda: cache.get(KEY), lambda: cache.put(KEY, bytes(size), ["trainer.a"], TTL_S)):
            os.kill(process, signal.SIGSTOP)
            try:
                with pytest.raises(Unavailable):
                    operation()
            finally:
                os.kill(process, signal.SIGCONT)
            assert bytes(persistently(lambda: cache.get(other))) == b"other"
        cache.close()


def persistently(call: Callable[[], T]) -> T:
    """What a server gives that, on a busy machine, does not always answer in time."""
    while True:
        with suppress(Unavailable):
            return call()


@pytest.mark.processes
@pytest.mark.integration
def test_redis_that_comes_back_is_used_again(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, maxmemory_bytes=32 * 2**20).start()
    cache = RedisCache.from_url(server.url)
    cache.put(KEY, b"frames", ["trainer.a"], TTL_S)
    server.stop()
    with RedisServer(tmp_path, server.port, maxmemory_bytes=32 * 2**20):
        with pytest.raises(CacheMiss):
            cache.get(KEY)
        cache.put(KEY, b"again", ["trainer.a"], TTL_S)
        assert cache.ack(KEY, "trainer.a") is True
    cache.close()


@pytest.mark.parametrize("scheme", ["redis", "redis+cluster"])
def test_redis_that_is_not_there(scheme: str) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match=scheme.replace("+", r"\+")):
            RedisCache.from_url(f"{scheme}://127.0.0.1:{unused.getsockname()[1]}")


@pytest.mark.integration
def test_redis_url_of_the_wrong_kind(redis_url: str, redis_cluster_url: str) -> None:
    with pytest.raises(ConfigError, match="is not a cluster; use redis://"):
        RedisCache.from_url(redis_url.replace("redis://", "redis+cluster://"))
    with pytest.raises(ConfigError, match=r"use redis\+cluster://"):
        RedisCache.from_url(redis_cluster_url.replace("+cluster", ""))


@pytest.mark.integration
def test_redis_values_of_any_size(empty_redis_url: str) -> None:
    """Large ones go from the socket to where they stay, small ones through hiredis."""
    cache = RedisCache.from_url(empty_redis_url)
    rng = np.random.default_rng(0)
    edges = [edge + by for edge in (2**14, 2**15, 2**21) for by in (-130, -66, -65, -64, -63, -2, -1, 0, 1, 17)]
    for size in (0, 1, 63, 64, *edges):
        value = rng.bytes(size)
        cache.put(KEY, value, ["trainer.a"], TTL_S)
        found = cache.get(KEY)
        assert bytes(found) == value
        assert memoryview(found).readonly
    cache.close()


@pytest.mark.integration
def test_redis_value_of_another_release_is_a_miss(empty_redis_url: str) -> None:
    cache = RedisCache.from_url(empty_redis_url)
    with redis.Redis.from_url(empty_redis_url) as client:
        for value in (b"", b"frames", b"000064", b"999999\n-trainer.a\n"):
            client.set(KEY, value)
            with pytest.raises(CacheMiss):
                cache.get(KEY)
            assert cache.ack(KEY, "trainer.b") is False
        client.set(KEY, b"000064\n-trainer.a\n".ljust(64) + b"frames")
        assert not cache.holds(KEY)
        for parts in ([], [(0, 2)], [(0, 6)]):
            assert Kind.MIXED_RELEASES not in cache.troubles()
            with pytest.raises(OtherRelease):
                cache.get(KEY, parts)
            assert client.exists(KEY), "a consumer of that release may want it"
        assert Kind.MIXED_RELEASES in cache.troubles()
        cache.put(KEY, b"frames", ["trainer.a"], TTL_S)
        assert (cache.holds(KEY), bytes(cache.get(KEY))) == (True, b"frames")
    cache.close()
