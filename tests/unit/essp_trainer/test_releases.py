"""Clips are given back in order, off the training's thread, and before what says that they were."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from essp_common.bus.port import Record
from essp_common.errors import Unavailable
from essp_common.pb.v1.messages_pb2 import ClipRef
from essp_common.runtime import retry
from essp_engine.intake.ordered import Delivery
from essp_trainer.releases import Releases
from tests.harness.waiting import LONGEST_S


class Intake:
    """Writes down what is asked of it; may be held up, or fail."""

    def __init__(self) -> None:
        self.released: list[list[int]] = []
        self.committed: list[int] = []
        self.open = threading.Event()
        self.open.set()
        self.entered = threading.Event()
        self.failures: list[Exception] = []

    def release(self, items: Sequence[Delivery]) -> None:
        self.entered.set()
        assert self.open.wait(LONGEST_S)
        if self.failures:
            raise self.failures.pop(0)
        self.released.append([item.clip.index for item in items])

    def commit(self, records: Iterable[Record]) -> None:
        self.committed += [record.offset for record in records]


def clips(*indices: int) -> list[Delivery]:
    return [
        Delivery(0, ClipRef(index=index), "", b"", "", record)
        for index, record in zip(indices, records(*indices), strict=True)
    ]


def records(*offsets: int) -> list[Record]:
    return [Record("clips", 0, offset, b"", b"") for offset in offsets]


@contextmanager
def releasing(intake: Intake, leaving: bool = False) -> Iterator[Releases]:
    releases = Releases(intake, lambda: leaving, "test")  # type: ignore[arg-type]
    try:
        yield releases
    finally:
        releases.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "essp-release-test"]


def test_what_waits_goes_in_one_go_and_a_commit_after_it() -> None:
    intake = Intake()
    intake.open.clear()
    with releasing(intake) as releases:
        releases.release(clips(0, 1))
        assert intake.entered.wait(LONGEST_S)
        releases.release(clips(2))
        releases.release(clips(3, 4))
        assert intake.released == []
        intake.open.set()
        releases.commit(records(0, 1, 2))
        assert intake.released == [[0, 1], [2, 3, 4]]
        assert intake.committed == [0, 1, 2]


def test_a_commit_waits_for_the_release_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    intake = Intake()
    intake.open.clear()
    with releasing(intake) as releases:
        releases.release(clips(0))
        assert intake.entered.wait(LONGEST_S)
        wait = releases._changed.wait

        def lets_it_through(timeout_s: float | None = None) -> bool:
            intake.open.set()
            return wait(timeout_s)

        monkeypatch.setattr(releases._changed, "wait", lets_it_through)
        releases.commit(records(0))
        intake.open.set()
        assert intake.released == [[0]]


def test_a_server_that_does_not_answer_is_asked_again() -> None:
    intake = Intake()
    intake.failures = [Unavailable("down", 0.0), Unavailable("down", 0.0)]
    with releasing(intake) as releases:
        releases.release(clips(0))
        releases.settle()
        assert intake.released == [[0]]


def test_who_leaves_does_not_wait_for_it_and_commits_nothing() -> None:
    intake = Intake()
    intake.failures = [Unavailable("down", 0.0)]
    with releasing(intake, leaving=True) as releases:
        releases.release(clips(0))
        with pytest.raises(Unavailable):
            releases.commit(records(0))
        assert intake.committed == []


def test_a_server_that_does_not_answer_holds_up_no_end() -> None:
    """Of a training that does not leave, but has failed."""
    intake = Intake()
    intake.failures = [Unavailable("down", 0.0)]
    intake.open.clear()
    with releasing(intake) as releases:
        releases.release(clips(0))
        assert intake.entered.wait(LONGEST_S)

        def answer_at_the_end() -> None:
            releases._closing.wait(LONGEST_S)
            intake.open.set()

        answer = threading.Thread(target=answer_at_the_end)
        answer.start()
    answer.join()
    assert intake.released == []


def test_an_error_that_comes_again_and_again_reaches_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_UNEXPECTED_WAIT_S", 0.0)
    intake = Intake()
    intake.failures = [ValueError("no such key")] * 3
    with releasing(intake) as releases:
        releases.release(clips(0))
        with pytest.raises(ValueError, match="no such key"):
            releases.settle()
        with pytest.raises(ValueError, match="no such key"):
            releases.release(clips(1))


def test_what_is_queued_goes_through_before_it_closes() -> None:
    intake = Intake()
    with releasing(intake) as releases:
        releases.release(clips(0))
        releases.release(clips(1))
    assert [index for together in intake.released for index in together] == [0, 1]
