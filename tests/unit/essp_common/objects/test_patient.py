"""A store whose outages are waited out: requests are repeated until they are answered, and no longer than wanted."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

import pytest

from essp_common.errors import Conflict, EsspError, NotFound, StorageFull, Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.patient import Patience, PatientStore
from essp_common.objects.port import ObjectInfo
from essp_common.objects.ranged import RangedFile
from essp_common.objects.wrapper import StoreWrapper
from tests.harness.waiting import LONGEST_S, until

KEYS = ["a", "b", "c/d", "e"]


class Flaky(StoreWrapper):
    """Fails so often before it answers a request. It lists two objects at a time, and its files are read in ranges."""

    failures = 0
    error: EsspError = Unavailable("no answer", retry_after_s=1.0)

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        self._answer()
        return self._store.get(key, start, length)

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        self._answer()
        return self._store.put(key, data, if_absent=if_absent)

    def head(self, key: str) -> ObjectInfo:
        self._answer()
        return self._store.head(key)

    def put_file(self, key: str, path: str) -> ObjectInfo:
        self._answer()
        return self._store.put_file(key, path)

    def delete(self, key: str) -> None:
        self._answer()
        self._store.delete(key)

    def below(self, folder: str) -> Flaky:
        below = Flaky(self._store.below(folder))
        below.failures, self.failures = self.failures, 0
        return below

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for number, key in enumerate(KEYS):
            if number % 2 == 0:
                self._answer()
            yield ObjectInfo(key, 1, "")

    def open(self, key: str) -> BinaryIO:
        self._answer()
        return io.BufferedReader(RangedFile(1, lambda start, length: self.get(key, start, length)))

    def _answer(self) -> None:
        if self.failures:
            self.failures -= 1
            raise self.error


class Time:
    """Passes while a store is waited for."""

    def __init__(self) -> None:
        self.waits: list[float] = []

    def monotonic(self) -> float:
        return sum(self.waits)

    def wait(self, wait_s: float) -> None:
        self.waits.append(wait_s)


@pytest.fixture
def flaky(tmp_path: Path) -> Flaky:
    store = Flaky(DirectoryStore(str(tmp_path)))
    for key in KEYS:
        store.put(key, key[:1].encode())
    return store


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def store(flaky: Flaky, time: Time) -> PatientStore:
    return PatientStore(flaky, Patience(60.0, time.wait, time.monotonic))


@pytest.mark.parametrize(
    ("request_", "answer"),
    [
        (lambda store: store.get("a"), b"a"),
        (lambda store: store.below("c").get("d"), b"c"),
        (lambda store: store.put("a", b"new").size_bytes, 3),
        (lambda store: store.put_file("a", __file__).size_bytes, Path(__file__).stat().st_size),
        (lambda store: store.delete("a"), None),
        (lambda store: store.head("a").size_bytes, 1),
        (lambda store: [info.key for info in store.list()], KEYS),
        (lambda store: store.open("a").read(), b"a"),
    ],
    ids=["get", "below", "put", "put_file", "delete", "head", "list", "open"],
)
def test_requests_are_repeated_until_they_are_answered(
    store: PatientStore, flaky: Flaky, time: Time, request_: Callable[[PatientStore], object], answer: object
) -> None:
    flaky.failures = 3
    assert request_(store) == answer
    assert time.waits[:3] == [1.0, 2.0, 4.0]


def test_a_list_continues_behind_the_last_object(store: PatientStore, flaky: Flaky, time: Time) -> None:
    listed = store.list()
    found = [next(listed).key, next(listed).key]
    flaky.failures = 2
    assert found + [info.key for info in listed] == KEYS


def test_a_file_is_read_on_where_it_was(store: PatientStore, flaky: Flaky, time: Time) -> None:
    with store.open("a") as file:
        flaky.failures = 2
        assert file.read() == b"a"
    assert time.waits == [1.0, 2.0]


def test_after_its_time_an_outage_is_an_error_that_says_how_long_it_was_waited_for(
    store: PatientStore, flaky: Flaky, time: Time
) -> None:
    flaky.failures = 99
    with pytest.raises(Unavailable, match=r"no answer; given up after 60 s \(ESSP_STORE_PATIENCE_S\)"):
        store.get("a")
    assert time.waits == [1.0, 2.0, 4.0, 8.0, 10.0, 10.0, 10.0, 10.0, 5.0]


def test_what_waiting_does_not_change_is_told_at_once(store: PatientStore, flaky: Flaky, time: Time) -> None:
    with pytest.raises(NotFound):
        store.get("z")
    flaky.failures, flaky.error = 1, StorageFull("no room")
    with pytest.raises(StorageFull, match="no room"):
        store.put("a", b"1")
    assert not time.waits


def test_a_conditional_write_is_not_repeated(store: PatientStore, flaky: Flaky, time: Time) -> None:
    """The first one may have succeeded; its own object would then count as that of another writer."""
    flaky.failures = 1
    with pytest.raises(Unavailable):
        store.put("new", b"1", if_absent=True)
    store.put("new", b"1", if_absent=True)
    with pytest.raises(Conflict):
        store.put("new", b"1", if_absent=True)
    assert not time.waits


def test_an_interrupted_program_does_not_wait(flaky: Flaky) -> None:
    patience = Patience(LONGEST_S)
    store = PatientStore(flaky, patience)
    flaky.failures, flaky.error = 2, Unavailable("no answer", retry_after_s=LONGEST_S)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(store.get, "a")
        until(lambda: flaky.failures == 1)
        patience.end()
        assert isinstance(waiting.exception(), Unavailable)
    with pytest.raises(Unavailable):
        store.get("a")
