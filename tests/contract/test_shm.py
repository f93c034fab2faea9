"""What only the cache in shared memory has: several processes, and the death of any of them at any moment."""

from __future__ import annotations

import errno
import fcntl
import itertools
import os
import resource
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from essp_common.cache.port import FrameCache, clip_key, job_prefix
from essp_common.cache.shm import SharedMemoryCache
from essp_common.cache.shm_folder import held
from essp_common.errors import CacheFull, CacheMiss, ConfigError, Unavailable
from essp_common.wiring import open_cache
from tests.contract.cache_suite import KEY, TTL_S, CacheContract

MIB = 2**20
OTHER = clip_key("job-a", 1, 0, 8, 0)
OLD, NEW = b"old" * 50_000, b"new!" * 60_000

pytestmark = pytest.mark.processes


class TestSharedMemoryCache(CacheContract):
    @pytest.fixture
    def cache(self) -> Iterator[FrameCache]:
        cache = open_cache(f"shm://test-{os.getpid()}?bytes=8MiB")
        yield cache
        cache.close()


@pytest.fixture
def cache(tmp_path: Path) -> Iterator[SharedMemoryCache]:
    cache = SharedMemoryCache("clips", 8 * MIB, tmp_path)
    yield cache
    cache.close()
    assert not list(tmp_path.iterdir())


def in_child(work: Callable[[], object]) -> int:
    """The wait status of a process that does this."""
    child = os.fork()
    if not child:
        failed = 1
        try:
            work()
            failed = 0
        finally:
            os._exit(failed)
    return os.waitpid(child, 0)[1]


def killed_at_each_call(work: Callable[[], object], then: Callable[[], object]) -> int:
    """Do `work` in children of which the nth is killed before its nth call of the system; how many calls there are."""
    number = 0
    while True:
        number += 1

        def doomed(last: int = number) -> None:
            calls = itertools.count(1)

            def counted(call: Callable[..., Any]) -> Callable[..., Any]:
                def instead(*args: Any, **options: Any) -> Any:
                    if next(calls) == last:
                        os.kill(os.getpid(), signal.SIGKILL)
                    return call(*args, **options)

                return instead

            for name in ("open", "close", "ftruncate", "writev", "pwrite", "rename", "unlink", "mkdir", "rmdir"):
                setattr(os, name, counted(getattr(os, name)))
            fcntl.flock = counted(fcntl.flock)
            work()

        status = in_child(doomed)
        then()
        if status == 0:
            return number - 1
        assert os.WTERMSIG(status) == signal.SIGKILL


def test_processes_share_values_and_acks(cache: SharedMemoryCache, tmp_path: Path) -> None:
    def other() -> None:
        mine = SharedMemoryCache("clips", None, tmp_path)
        mine.put(KEY, NEW, ["trainer.a", "trainer.b"], TTL_S)
        assert mine.ack(KEY, "trainer.a") is False
        mine.close()

    assert in_child(other) == 0
    assert bytes(cache.get(KEY)) == NEW
    assert cache.ack(KEY, "trainer.a") is False
    assert cache.ack(KEY, "trainer.b") is True
    assert cache.usage().used_bytes == 0


def test_values_of_processes_with_the_same_number_stay_apart(
    cache: SharedMemoryCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Containers that share a /dev/shm number their processes each for itself."""
    with closing(SharedMemoryCache("clips", None, tmp_path)) as other:
        for one, key in ((cache, KEY), (other, OTHER)):
            one.put(key, NEW, ["trainer.a"], TTL_S)
        for key in (KEY, OTHER):
            cache.ack(key, "trainer.a")
        write = os.writev

        def meanwhile(file: int, buffers: Any) -> int:
            monkeypatch.setattr(os, "writev", write)
            other.put(OTHER, NEW, ["trainer.a"], TTL_S)
            return write(file, buffers)

        monkeypatch.setattr(os, "writev", meanwhile)
        cache.put(KEY, NEW[::-1], ["trainer.a"], TTL_S)
        assert bytes(cache.get(KEY)) == NEW[::-1]
        assert bytes(cache.get(OTHER)) == NEW


def test_what_a_fork_holds_stays_as_it_is(cache: SharedMemoryCache) -> None:
    """Its parent lets go of it, and the cache has other values."""
    cache.put(KEY, OLD, ["trainer.a"], TTL_S)
    in_hand = [cache.get(KEY)]
    ready, go = os.pipe()
    fork = os.fork()
    if not fork:
        try:
            os.read(ready, 1)
            os._exit(bytes(in_hand[0]) != OLD)
        finally:
            os._exit(2)
    in_hand.clear()
    cache.ack(KEY, "trainer.a")
    cache.put(OTHER, OLD[::-1], ["trainer.a"], TTL_S)
    os.write(go, b"x")
    assert os.waitpid(fork, 0)[1] == 0
    os.close(ready)
    os.close(go)


def test_large_value_is_read_where_it_lies(cache: SharedMemoryCache) -> None:
    cache.put(KEY, OLD, ["trainer.a"], TTL_S)
    found = memoryview(cache.get(KEY))
    assert found.readonly
    assert np.frombuffer(found, np.uint8).ctypes.data % 64 == 0
    cache.put(KEY, NEW, ["trainer.a"], TTL_S)
    cache.ack(KEY, "trainer.a")
    cache.put(OTHER, NEW, ["trainer.a"], TTL_S)
    assert bytes(found) == OLD


def test_few_descriptors_are_enough_for_many_values_in_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds more than may be mapped has copies, and maps again once it has let go."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (64, 64))
    keys = [clip_key("job", 1, 0, 0, index) for index in range(40)]
    with closing(SharedMemoryCache("clips", 2**24, tmp_path)) as cache:
        for number, key in enumerate(keys):
            cache.put(key, bytes([number]) * len(OLD), ["trainer.a"], TTL_S)
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            held = [cache.get(key) for key in keys]
            assert len(os.listdir("/proc/self/fd")) <= before + 2 * 64 // 8
            for key in keys:
                cache.ack(key, "trainer.a")
            for number, key in enumerate(keys):
                cache.put(key, bytes([number]) * len(OLD), ["trainer.a"], TTL_S)
            assert [set(bytes(value)) for value in held] == [{number} for number in range(len(keys))]
            del held


@pytest.mark.lane("promises")
@pytest.mark.parametrize("before", [None, OLD])
def test_writer_killed_at_any_moment(cache: SharedMemoryCache, before: bytes | None) -> None:
    """The value is the one before or the new one, whole; what was being written takes no room for long."""

    def begin() -> None:
        cache.purge("")
        if before is not None:
            cache.put(KEY, before, ["trainer.a"], TTL_S)

    def look() -> None:
        usage = cache.usage()
        try:
            found = bytes(cache.get(KEY))
        except CacheMiss:
            found = None
        assert found in (before, NEW)
        assert usage.keys == (found is not None)
        assert usage.used_bytes == (held(128 + len(found)) if found is not None else 0)
        cache.put(KEY, NEW, ["trainer.a"], TTL_S)
        assert cache.ack(KEY, "trainer.a") is True
        assert cache.usage().used_bytes == 0
        begin()

    begin()
    assert killed_at_each_call(lambda: cache.put(KEY, NEW, ["trainer.a"], TTL_S), look) > 15


@pytest.mark.lane("promises")
def test_reader_killed_at_any_moment(cache: SharedMemoryCache) -> None:
    """Its ack counts or does not; doing it again is harmless, and the others' acks are as they were."""

    def begin() -> None:
        cache.put(KEY, NEW, ["trainer.a", "trainer.b"], TTL_S)
        cache.put(OTHER, OLD, ["trainer.a"], TTL_S)

    def consume() -> None:
        cache.get(KEY)
        cache.ack_all([KEY, OTHER], "trainer.a")

    def look() -> None:
        cache.ack_all([KEY, OTHER], "trainer.a")
        assert cache.usage().keys == 1
        assert bytes(cache.get(KEY)) == NEW
        assert cache.ack(KEY, "trainer.b") is True
        assert cache.usage().used_bytes == 0
        begin()

    begin()
    assert killed_at_each_call(consume, look) > 10


def test_purge_killed_at_any_moment(cache: SharedMemoryCache) -> None:
    def begin() -> None:
        for key in (KEY, OTHER):
            cache.put(key, OLD, ["trainer.a"], TTL_S)

    def look() -> None:
        keys = cache.usage().keys
        assert cache.purge(job_prefix("job-a")) == keys
        assert cache.usage().used_bytes == 0
        begin()

    begin()
    assert killed_at_each_call(lambda: cache.purge(job_prefix("job-a")), look) > 5


@pytest.mark.lane("promises")
def test_all_users_killed_at_any_moment_of_a_life(tmp_path: Path) -> None:
    """Nothing of them stays once any other cache is opened, and the same one begins empty."""

    def live() -> None:
        cache = SharedMemoryCache("clips", 8 * MIB, tmp_path)
        cache.put(KEY, NEW, ["trainer.a"], TTL_S)
        cache.close()

    def look_by_another() -> None:
        SharedMemoryCache("other", 8 * MIB, tmp_path).close()
        assert not list(tmp_path.iterdir())

    def look_by_the_same() -> None:
        cache = SharedMemoryCache("clips", 4 * MIB, tmp_path)
        assert cache.usage().keys == cache.usage().used_bytes == 0
        cache.put(KEY, OLD, ["trainer.a"], TTL_S)
        assert bytes(cache.get(KEY)) == OLD
        cache.close()
        assert not list(tmp_path.iterdir())

    looks = itertools.cycle([look_by_another, look_by_the_same])
    assert killed_at_each_call(live, lambda: next(looks)()) > 30


def test_folder_that_something_removes_is_made_again(cache: SharedMemoryCache, tmp_path: Path) -> None:
    second = SharedMemoryCache("clips", None, tmp_path)
    cache.put(KEY, OLD, ["trainer.a"], TTL_S)
    (root,) = tmp_path.iterdir()
    for file in sorted(root.rglob("*"), reverse=True):
        file.rmdir() if file.is_dir() else file.unlink()
    root.rmdir()
    with pytest.raises(CacheMiss):
        cache.get(KEY)
    assert cache.ack(KEY, "trainer.a") is False
    cache.put(KEY, NEW, ["trainer.a"], TTL_S)
    assert second.usage().keys == 1
    cache.close()
    assert bytes(second.get(KEY)) == NEW
    second.close()
    with pytest.raises(Unavailable, match="closed"):
        second.usage()


def test_expired_values_make_room(tmp_path: Path) -> None:
    now_s = [100.0]
    cache = SharedMemoryCache("clips", 2 * MIB, tmp_path, clock=lambda: now_s[0])
    cache.put(KEY, bytes(MIB), ["trainer.a"], ttl_s=5)
    now_s[0] += 4.9
    with pytest.raises(CacheFull):
        cache.put(OTHER, bytes(MIB), ["trainer.a"], ttl_s=60)
    now_s[0] += 0.2
    with pytest.raises(CacheMiss):
        cache.get(KEY)
    assert cache.ack(KEY, "trainer.a") is False
    cache.put(OTHER, bytes(MIB), ["trainer.a"], ttl_s=60)
    assert cache.usage().keys == 1
    now_s[0] += 60
    assert cache.usage().used_bytes == 0
    cache.close()


def test_machine_without_memory_is_a_full_cache(cache: SharedMemoryCache, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "writev", full)
        with pytest.raises(CacheFull, match="other programs"):
            cache.put(KEY, NEW, ["trainer.a"], TTL_S)
    usage = cache.usage()
    assert (usage.keys, usage.used_bytes, usage.full_count) == (0, 0, 1)


def test_machine_that_takes_no_folder_is_an_error_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(number: int, words: str) -> Callable[..., int]:
        def refuse(*_: object) -> int:
            raise OSError(number, words)

        return refuse

    for call, number, kind in (("mkdir", errno.EROFS, Unavailable), ("pwrite", errno.ENOSPC, CacheFull)):
        with monkeypatch.context() as patched:
            patched.setattr(os, call, refused(number, os.strerror(number)))
            with pytest.raises(kind, match=r"clips"):
                SharedMemoryCache("clips", MIB, tmp_path)
        assert not list(tmp_path.iterdir())


def test_sizes_have_to_agree(cache: SharedMemoryCache, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="in use with 8388608 bytes, not 4194304"):
        SharedMemoryCache("clips", 4 * MIB, tmp_path)
    with pytest.raises(ConfigError, match="--shm-size"):
        SharedMemoryCache("huge", 2**60, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / f"essp-{os.getuid()}-clips").mkdir(0o755)
    (tmp_path / f"essp-{os.getuid()}-clips" / "theirs").touch()
    with pytest.raises(ConfigError, match="this user alone"):
        SharedMemoryCache("clips", MIB, tmp_path)
    (tmp_path / "elsewhere").mkdir(0o700)
    (tmp_path / f"essp-{os.getuid()}-linked").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="this user alone"):
        SharedMemoryCache("linked", MIB, tmp_path)


@pytest.mark.parametrize(
    "url", ["shm://", "shm://a/b", "shm://a?bytes=lots", "shm://a?bytes=0", "shm://a?bytes=", "shm://a?size=1MiB"]
)
def test_url_is_checked(url: str) -> None:
    with pytest.raises(ConfigError, match="cache"):
        open_cache(url)


def test_key_that_is_too_long_is_named(cache: SharedMemoryCache) -> None:
    with pytest.raises(ConfigError, match="shorter names"):
        cache.put("essp:" + "x" * 300, b"", ["trainer.a"], TTL_S)


def test_a_folder_with_something_else_in_it_is_not_emptied(tmp_path: Path) -> None:
    mine = tmp_path / f"essp-{os.getuid()}-clips"
    (mine / "values").mkdir(parents=True)
    (mine / "values" / "mine").write_text("x")
    (mine / "notes.txt").write_text("x")
    (mine / "users").touch()
    mine.chmod(0o700)
    for name in ("other", "clips"):
        with suppress(ConfigError), closing(SharedMemoryCache(name, 8 * MIB, tmp_path)):
            assert name == "other"
        assert sorted(path.name for path in mine.rglob("*")) == ["mine", "notes.txt", "users", "values"]
