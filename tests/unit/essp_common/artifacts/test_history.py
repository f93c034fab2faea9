"""The history in the object store: append-only, of one writer at a time, small, and whole while it is joined."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.artifacts import layout
from essp_common.artifacts.history import BadHistory, History, pack, runs_of, spans_of, unpack
from essp_common.errors import Fenced, Unavailable
from essp_common.objects.numbered_log import numbered
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.pb.v1.messages_pb2 import HistoryEntry, HistorySegment, PhaseEvents, Runs
from essp_common.wiring import open_store


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.processes)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return open_store(tmp_path.as_uri())
    return open_store(request.getfixturevalue("empty_s3_url"))


def segment(number: int, fence: int = 1, writer: str = "m1") -> HistorySegment:
    entry = HistoryEntry(time_ms=1000 + number, fence=fence)
    return HistorySegment(first=number, last=number, fence=fence, since=1, writer=writer, entries=[entry])


def times(history: History) -> list[int]:
    return [entry.time_ms - 1000 for segment in history.read() for entry in segment.entries]


@given(st.sets(st.integers(0, 10_000)))
def test_runs_say_which_indices(indices: set[int]) -> None:
    spans = list(spans_of(runs_of(indices)))
    assert [index for begin, end in spans for index in range(begin, end)] == sorted(indices)
    assert all(end < begin for (_, end), (begin, _) in pairwise(spans)), "runs do not touch"


def test_runs_without_their_last_end_are_no_history() -> None:
    with pytest.raises(BadHistory, match="lack their last end; restore it from a backup"):
        spans_of(Runs(lengths=[3, 4, 5]))


def test_what_is_appended_is_read_in_order(store: ObjectStore) -> None:
    history = History(store)
    assert (history.newest(), history.last(), list(history.read())) == (None, 0, [])
    for number in (1, 2, 3):
        history.append(segment(number))
    newest = history.newest()
    assert newest == segment(3)
    assert times(history) == [1, 2, 3]


def test_of_two_writers_one_wins_and_the_other_learns_whom_it_met(store: ObjectStore) -> None:
    History(store).append(segment(1, fence=2, writer="m2"))
    with pytest.raises(Fenced, match=r"written by m2 \(fence 2\)") as caught:
        History(store).append(segment(1, fence=1))
    assert caught.value.fence == 2
    assert [s.writer for s in History(store).read()] == ["m2"]


def test_a_write_whose_answer_was_lost_may_be_repeated(store: ObjectStore) -> None:
    history = History(store)
    assert history.append(segment(1)) == history.append(segment(1))
    assert times(history) == [1]


class Interrupted:
    """A store that fails at the n-th write or deletion."""

    def __init__(self, store: ObjectStore, writes: int) -> None:
        self._store, self._left = store, writes

    def _write(self) -> None:
        if not self._left:
            raise Unavailable("gone")
        self._left -= 1

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        self._write()
        return self._store.put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        self._write()
        self._store.delete(key)

    def get(self, key: str) -> bytes:
        return self._store.get(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def uri(self, key: str) -> str:
        return self._store.uri(key)


@pytest.mark.parametrize("writes", range(6))
def test_joining_may_be_interrupted_anywhere(tmp_path: Path, writes: int) -> None:
    store = open_store(tmp_path.as_uri())
    history = History(store)
    for number in range(1, 6):
        history.append(segment(number))
    try:
        History(Interrupted(store, writes)).join(5, 2)  # type: ignore[arg-type]
    except Unavailable:
        assert writes < 5
    assert times(history) == [1, 2, 3, 4, 5]
    history.append(segment(6))
    history.join(6, 1)
    assert times(history) == [1, 2, 3, 4, 5, 6]
    assert len(history.stored()) <= 3


def test_a_chapter_that_another_one_holds_does_not_matter(tmp_path: Path) -> None:
    """Its writer slept, while another master joined more."""
    early, late = (open_store((tmp_path / name).as_uri()) for name in ("early", "late"))
    for store, before in ((early, 3), (late, 5)):
        for number in range(1, 6):
            History(store).append(segment(number))
        History(store).join(before, 1)
    late.put(layout.chapter(1, 2), early.get(layout.chapter(1, 2)))
    assert [stored.last for stored in History(late).stored()] == [4, 2, 5]
    assert times(History(late)) == [1, 2, 3, 4, 5]


def test_a_gap_is_no_history(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    for number in (1, 2, 3):
        History(store).append(segment(number))
    store.delete(numbered(layout.HISTORY, 2))
    with pytest.raises(BadHistory, match="0000000002 is missing"):
        list(History(store).read())


@pytest.mark.parametrize(("number", "holds"), [(1, 2), (2, 1), (3, 1), (3, 2)])
def test_a_segment_that_lies_at_the_place_of_another_is_named(tmp_path: Path, number: int, holds: int) -> None:
    """As when somebody restores files by hand."""
    store = open_store(tmp_path.as_uri())
    for each in (1, 2):
        History(store).append(segment(each))
    store.put(numbered(layout.HISTORY, number), store.get(numbered(layout.HISTORY, holds)))
    said = f"{tmp_path.as_uri()}/history/000000000{number} holds segments {holds} to {holds}; restore it"
    with pytest.raises(BadHistory, match=said):
        list(History(store).read())


def test_what_is_no_segment_is_said_to_be_none(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    store.put(numbered(layout.HISTORY, 1), b"text")
    with pytest.raises(BadHistory, match="not a segment of a history"):
        History(store).newest()


def test_a_bit_that_flipped_is_found(tmp_path: Path) -> None:
    store, key = open_store(tmp_path.as_uri()), numbered(layout.HISTORY, 1)
    History(store).append(segment(1))
    data = store.get(key)
    for place in range(len(data)):
        for bit in (0, 3, 7):
            store.put(key, data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :])
            with pytest.raises(BadHistory, match="not a segment of a history"):
                History(store).newest()


def test_a_segment_that_claims_any_size_is_refused(tmp_path: Path) -> None:
    """Eight bytes of the frame's header say how large it is."""
    store, key = open_store(tmp_path.as_uri()), numbered(layout.HISTORY, 1)
    for size in (2**40, 2**62, 2**64 - 1):
        store.put(key, b"\x28\xb5\x2f\xfd\xe0" + size.to_bytes(8, "little") + bytes(8))
        with pytest.raises(BadHistory, match="not a segment of a history"):
            History(store).newest()


def test_what_is_named_unlike_a_segment_is_somebody_elses(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    history, others = History(store), ("\u00b2", "zzz", "1-\u00b2", ".DS_Store", "9" * 200, "2024", "chapters/1-2")
    for name in others:
        store.put(layout.HISTORY + name, b"mine")
    for number in (1, 2, 3):
        history.append(segment(number))
    assert history.last() == 3
    assert history.join(3, 2) == 2
    kept = {info.key.removeprefix(layout.HISTORY) for info in store.list(layout.HISTORY)}
    assert kept == {*others, "0000000003", "chapters/0000000001-0000000002"}


def test_ten_million_clips_are_a_few_megabytes() -> None:
    """A hundredth of them: decoders finish out of order within what is outstanding, consumers in batches."""
    chance, size, step, entries = random.Random(7), 100_000, 1000, []
    for begin in range(0, size, step):
        ahead = chance.sample(range(begin, begin + 2 * step), step)
        events = PhaseEvents(
            issued=runs_of(range(begin, begin + step)),
            decoded=runs_of(ahead),
            extracted={"flow": runs_of(chance.sample(ahead, step // 2))},
            trained={f"trainer.{name}": runs_of(range(begin, begin + step)) for name in ("rgb", "flow")},
        )
        entries.append(HistoryEntry(time_ms=10**12 + begin, fence=1, phases=[events]))
    chapter = HistorySegment(first=1, last=100, entries=entries)
    data = pack(chapter)
    assert unpack(data, "") == chapter
    assert len(data) * 100 < 10 * 2**20


def test_the_last_segment_of_a_run_is_none_of_another_one(store: ObjectStore) -> None:
    """A run that left none began between two that did."""
    history = History(store)
    for number, since in enumerate((1, 1, 5, 5), 1):
        written = segment(number, fence=since)
        written.since = since
        history.append(written)
    assert [found and found.last for found in map(history.last_of, (1, 3, 5, 7))] == [2, None, 4, None]
