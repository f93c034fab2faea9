"""Of several writers that want the same number exactly one gets it."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import Conflict, NotFound
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectInfo


@pytest.fixture
def log(tmp_path: Path) -> NumberedLog:
    return NumberedLog(DirectoryStore(str(tmp_path)), "log/", ".json")


def test_numbers_begin_with_one_and_grow(log: NumberedLog) -> None:
    assert (log.newest(), log.numbers()) == (0, [])
    assert [log.append(b"a"), log.append(b"b"), log.append(b"c")] == [1, 2, 3]
    assert (log.newest(), log.numbers()) == (3, [1, 2, 3])
    assert log.read(2) == b"b"
    assert log.key(2) == "log/0000000002.json"


def test_a_number_is_written_once(log: NumberedLog) -> None:
    log.write(5, b"first")
    with pytest.raises(Conflict):
        log.write(5, b"second")
    assert log.read(5) == b"first"


def test_numbers_go_on_after_old_ones_were_deleted(log: NumberedLog) -> None:
    for _ in range(3):
        log.append(b"")
    log.delete(1)
    log.delete(2)
    assert log.numbers() == [3]
    assert log.append(b"") == 4
    with pytest.raises(NotFound):
        log.read(1)


def test_other_objects_below_the_prefix_are_no_part_of_the_log(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    log = NumberedLog(store, "history/")
    log.append(b"")
    store.put("history/chapters/0000000001-0000000128", b"")
    assert log.numbers() == [1]


def claims(log: NumberedLog, writer: int, won: dict[int, list[int]]) -> Iterator[None]:
    """A writer that can be stopped between looking for the newest number and writing the next one."""
    while True:
        number = log.newest() + 1
        yield
        try:
            log.write(number, str(writer).encode())
        except Conflict:
            continue
        won.setdefault(number, []).append(writer)
        yield


@given(schedule=st.lists(st.integers(0, 3), max_size=40))
def test_two_writers_never_both_win_however_their_steps_interleave(schedule: list[int]) -> None:
    with TemporaryDirectory() as folder:
        log = NumberedLog(DirectoryStore(folder), "log/")
        won: dict[int, list[int]] = {}
        writers = [claims(log, writer, won) for writer in range(4)]
        for writer in schedule:
            next(writers[writer])
        assert sorted(won) == list(range(1, len(won) + 1)), "no number is left out"
        assert all(len(winners) == 1 for winners in won.values())
        assert [log.read(number) for number in log.numbers()] == [str(won[n][0]).encode() for n in sorted(won)]


def test_threads_that_append_at_once_get_numbers_of_their_own(log: NumberedLog) -> None:
    taken: list[int] = []

    def append() -> None:
        for _ in range(10):
            taken.append(log.append(b""))

    threads = [threading.Thread(target=append) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(taken) == list(range(1, 41))


class Overtaken(DirectoryStore):
    """Before it lists the object at `at`, others write and remove objects, once."""

    def __init__(self, root: str, at: int, meanwhile: Callable[[], None]) -> None:
        super().__init__(root)
        self._folder = root
        self._at, self._meanwhile = at, [meanwhile]

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        for place, info in enumerate([*super().list(prefix), None]):
            if (place >= self._at or info is None) and self._meanwhile:
                self._meanwhile.pop()()
            if info is not None and os.path.exists(os.path.join(self._folder, info.key)):
                yield info


@given(before=st.integers(0, 8), at=st.integers(0, 4), others=st.integers(0, 3))
def test_a_listing_overtaken_by_others_gives_no_number_from_long_ago(before: int, at: int, others: int) -> None:
    with TemporaryDirectory() as folder:
        log = NumberedLog(DirectoryStore(folder), "log/")

        def append(count: int) -> None:
            for _ in range(count):
                log.prune(log.append(b""))

        append(before)
        overtaken = NumberedLog(Overtaken(folder, at, lambda: append(others)), "log/")
        assert overtaken.append(b"") == before + others + 1


def test_the_newest_few_stay(log: NumberedLog) -> None:
    for _ in range(9):
        log.append(b"")
    log.prune(8)
    assert log.numbers() == [5, 6, 7, 8, 9]
