"""The slow store holds what the first so many writes make of it, whatever stops the copying, and in the end all."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essp_common.errors import NotFound, PermanentError, StorageFull, Unavailable
from essp_common.objects.burst_buffer import BurstBuffer
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo, ObjectStore

MANY = 2**20


class Write(NamedTuple):
    key: str
    data: bytes | None
    """None: the key is deleted."""

    def to(self, buffer: BurstBuffer) -> None:
        if self.data is None:
            buffer.delete(self.key)
        else:
            buffer.put(self.key, self.data)


WRITES = st.lists(st.builds(Write, st.sampled_from(["a", "b/c", "b/d"]), st.none() | st.binary(max_size=9)), max_size=9)


class Failing(DirectoryStore):
    """Fails for ever once it has done `good` writes."""

    def __init__(self, root: str, good: int) -> None:
        super().__init__(root)
        self._good = good

    def _count(self) -> None:
        if not self._good:
            raise PermanentError("the slow store is broken")
        self._good -= 1

    def put_file(self, key: str, path: str) -> ObjectInfo:
        self._count()
        return super().put_file(key, path)

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        self._count()
        return super().put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        self._count()
        super().delete(key)


class Gated(DirectoryStore):
    """Copies when it is let."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.permits = threading.Semaphore(0)

    def put_file(self, key: str, path: str) -> ObjectInfo:
        self.permits.acquire()
        return super().put_file(key, path)


class Silent(DirectoryStore):
    """Does not answer the first so many times."""

    def __init__(self, root: str, times: int) -> None:
        super().__init__(root)
        self.times = times

    def put_file(self, key: str, path: str) -> ObjectInfo:
        if self.times:
            self.times -= 1
            raise Unavailable("no answer", retry_after_s=0.001)
        return super().put_file(key, path)


class Full(DirectoryStore):
    """Has no room."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        raise StorageFull("no room")


def after(writes: Sequence[Write]) -> dict[str, bytes]:
    """What a store holds after these."""
    held: dict[str, bytes] = {}
    for key, data in writes:
        held.pop(key, None)
        if data is not None:
            held[key] = data
    return held


def content(store: ObjectStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


@given(WRITES, st.integers(0, 9), st.integers(1, 30))
@settings(max_examples=40, deadline=None)
def test_the_slow_store_is_a_prefix_and_the_next_buffer_completes_it(
    tmp_path_factory: pytest.TempPathFactory, writes: list[Write], good: int, most_bytes: int
) -> None:
    folder = tmp_path_factory.mktemp("stores")
    fast, slow = DirectoryStore(str(folder / "fast")), DirectoryStore(str(folder / "slow"))
    buffer = BurstBuffer(fast, Failing(str(folder / "slow"), good), most_bytes)
    accepted = 0
    with suppress(PermanentError):
        for write in writes:
            write.to(buffer)
            accepted += 1
        buffer.flush()
    buffer.abandon()
    assert content(slow) == after(writes[:good])
    with BurstBuffer(fast, slow, most_bytes) as following:
        following.flush()
        assert content(slow) == after(writes[:accepted])
        for write in writes[accepted:]:
            write.to(following)
    assert content(slow) == after(writes)
    assert content(fast) == {}


def test_writes_return_before_they_are_copied_up_to_the_bound(tmp_path: Path) -> None:
    slow = Gated(str(tmp_path / "slow"))
    buffer = BurstBuffer(DirectoryStore(str(tmp_path / "fast")), slow, most_bytes=100)
    buffer.put("a", bytes(60))
    buffer.put("b", bytes(40))
    assert buffer.waiting_bytes == 100
    assert content(slow) == {}
    done = threading.Event()

    def third() -> None:
        buffer.put("c", b"x")
        done.set()

    writer = threading.Thread(target=third)
    writer.start()
    assert not done.is_set()
    slow.permits.release(3)
    writer.join()
    buffer.close()
    assert content(slow) == {"a": bytes(60), "b": bytes(40), "c": b"x"}
    assert buffer.stalled_s > 0


def test_what_is_larger_than_the_buffer_goes_to_the_slow_store_behind_the_rest(tmp_path: Path) -> None:
    slow = DirectoryStore(str(tmp_path / "slow"))
    with BurstBuffer(DirectoryStore(str(tmp_path / "fast")), slow, most_bytes=10) as buffer:
        buffer.put("a", b"small")
        buffer.put("b", bytes(11))
        assert content(slow) == {"a": b"small", "b": bytes(11)}
        assert buffer.passed_by == 1


def test_a_full_fast_store_makes_writes_slow_and_loses_none(tmp_path: Path) -> None:
    slow = DirectoryStore(str(tmp_path / "slow"))
    with BurstBuffer(Full(str(tmp_path / "fast")), slow, MANY) as buffer:
        buffer.put("a", b"1")
        assert content(slow) == {"a": b"1"}
        buffer.delete("a")
    assert content(slow) == {}


def test_a_slow_store_that_does_not_answer_is_tried_again(tmp_path: Path) -> None:
    slow = Silent(str(tmp_path / "slow"), times=3)
    with BurstBuffer(DirectoryStore(str(tmp_path / "fast")), slow, MANY) as buffer:
        buffer.put("a", b"1")
    assert (slow.times, content(slow)) == (0, {"a": b"1"})


def test_an_error_that_lasts_is_raised_from_each_later_call(tmp_path: Path) -> None:
    slow = Silent(str(tmp_path / "slow"), times=10**9)
    buffer = BurstBuffer(DirectoryStore(str(tmp_path / "fast")), slow, MANY, patience_s=0.0)
    buffer.put("a", b"1")
    for call in (buffer.flush, lambda: buffer.put("b", b"2"), buffer.close):
        with pytest.raises(Unavailable, match="no answer"):
            call()
    assert buffer.waiting_bytes == 1


def test_a_defect_in_the_thread_is_raised_and_hangs_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = DirectoryStore(str(tmp_path / "slow"))
    monkeypatch.setattr(slow, "put_file", lambda *_: 1 / 0)
    buffer = BurstBuffer(DirectoryStore(str(tmp_path / "fast")), slow, MANY)
    buffer.put("a", b"1")
    with pytest.raises(ZeroDivisionError):
        buffer.close()


def test_leaving_with_an_error_does_not_wait_and_keeps_what_is_written(tmp_path: Path) -> None:
    fast, slow = DirectoryStore(str(tmp_path / "fast")), Silent(str(tmp_path / "slow"), times=10**9)

    def failing() -> None:
        with BurstBuffer(fast, slow, MANY, patience_s=3600.0) as buffer:
            buffer.put("a", b"1")
            buffer.put("b", b"2")
            raise RuntimeError("training failed")

    with pytest.raises(RuntimeError, match="training failed"):
        failing()
    slow.times = 0
    with BurstBuffer(fast, slow, MANY) as following:
        assert following.recovered == 2
    assert content(slow) == {"a": b"1", "b": b"2"}


def test_a_closed_buffer_and_keys_that_are_none_are_refused(tmp_path: Path) -> None:
    buffer = BurstBuffer(DirectoryStore(str(tmp_path / "fast")), DirectoryStore(str(tmp_path / "slow")), MANY)
    with pytest.raises(NotFound, match="cannot be the key"):
        buffer.put("../a", b"1")
    buffer.close()
    with pytest.raises(RuntimeError, match="closed"):
        buffer.put("a", b"1")


def test_other_files_in_the_fast_store_are_left_alone(tmp_path: Path) -> None:
    fast = DirectoryStore(str(tmp_path / "fast"))
    fast.put("notes/put/a", b"mine")
    fast.put("000000000003/move/a", b"mine")
    with BurstBuffer(fast, DirectoryStore(str(tmp_path / "slow")), MANY) as buffer:
        assert buffer.recovered == 0
    assert len(content(fast)) == 2


WRITER = """
import sys
from essp_common.objects.burst_buffer import BurstBuffer
from essp_common.objects.directory import DirectoryStore
buffer = BurstBuffer(DirectoryStore(sys.argv[1]), DirectoryStore(sys.argv[2]), 2**22)
for number in range(10**6):
    buffer.put(f"{number}/data", bytes([number % 251]) * 200_000)
    buffer.put(f"{number}/manifest", b"%d" % number)
    print(number, flush=True)
"""


@pytest.mark.processes
def test_a_kill_leaves_whole_checkpoints_and_loses_no_acknowledged_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", WRITER, str(tmp_path / "fast"), str(tmp_path / "slow")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        for _ in range(20):
            acknowledged = int(writer.stdout.readline())
        writer.send_signal(signal.SIGKILL)
    fast, slow = DirectoryStore(str(tmp_path / "fast")), DirectoryStore(str(tmp_path / "slow"))

    def complete() -> set[int]:
        held = content(slow)
        for key in held:
            if key.endswith("/manifest"):
                number = int(held[key])
                assert held[f"{number}/data"] == bytes([number % 251]) * 200_000
        return {int(data) for key, data in held.items() if key.endswith("/manifest")}

    before = complete()
    assert before == set(range(len(before)))
    BurstBuffer(fast, slow, MANY).close()
    assert set(range(acknowledged + 1)) <= complete()
