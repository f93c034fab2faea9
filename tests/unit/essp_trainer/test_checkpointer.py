"""What a checkpoint allows to commit, and what comes before it."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from typing import Any, cast

import pytest

from essp_common.artifacts.manifest import Manifest
from essp_common.bus.port import Record
from essp_common.errors import Unavailable
from essp_common.job.position import Position
from essp_trainer.checkpoints.checkpoint_store import TrainingState
from essp_trainer.checkpoints.checkpointer import Checkpointer, SavePolicy
from essp_trainer.distributed.ranks import SingleRank
from tests.harness.waiting import LONGEST_S, until
from tests.unit.essp_common.artifacts.small_checkpoints import manifest
from tests.unit.essp_trainer.test_releases import clips


class Room:
    """The store, the releases and the reporter of a training; writes down what is asked of them."""

    passed_by = ""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.keeps_scores = False
        self.fails = False
        self.stages = False
        self.copies = threading.Semaphore(0)
        """So many of what is staged may be copied."""
        self.asked: list[str] = []
        self.committed: list[int] = []
        self.writes = threading.Event()
        """But for the final checkpoint."""
        self.writes.set()

    def snapshot(self, _: object, state: TrainingState) -> Manifest:
        self.asked.append("snapshot")
        return manifest(state.position.index)

    def final_snapshot(self, _: object, state: TrainingState) -> Manifest:
        self.asked.append("final snapshot")
        return manifest(state.position.index, final=True)

    def stage(self, snapshot: Manifest) -> Manifest | None:
        return snapshot if self.stages else None

    def copy(self, staged: Manifest) -> Manifest:
        assert self.copies.acquire(timeout=LONGEST_S)
        return staged

    def save(self, snapshot: Manifest) -> Manifest:
        assert snapshot.final or self.writes.wait(LONGEST_S)
        if self.fails:
            refused()
        self.asked.append("save")
        return snapshot

    def message(self, _: Manifest) -> None:
        self.asked.append("announce")

    def checkpoint(self, _: None) -> None:
        pass

    def trouble(self, reason: str, unsaved: bool = False) -> None:
        self.asked.append("tell")

    def settle(self) -> None:
        self.asked.append("settle")

    def commit(self, records: Iterable[Record]) -> None:
        self.asked.append("commit")
        self.committed += [record.offset for record in records]


@pytest.fixture
def room() -> Room:
    return Room()


@pytest.fixture
def checkpointer(room: Room) -> Iterator[Checkpointer]:
    anything = cast(Any, room)
    policy = SavePolicy(retry_s=10.0, final_timeout_s=0.0)
    with closing(
        Checkpointer(
            anything, anything, anything, SingleRank(), policy, leaving=lambda: False, clock=lambda: room.now_s
        )
    ) as made:
        yield made


def save(checkpointer: Checkpointer, index: int) -> None:
    assert checkpointer.save(cast(Any, None), TrainingState(position=Position(0, index)))


def test_a_checkpoint_commits_what_it_holds_and_no_more(room: Room, checkpointer: Checkpointer) -> None:
    """Clips 4 and 5 were trained while it was being written."""
    checkpointer.defer_commit(clips(0, 1, 2, 3))
    checkpointer.begin(cast(Any, None), TrainingState(position=Position(0, 4)))
    checkpointer.defer_commit(clips(4, 5))
    save(checkpointer, 4)
    assert room.committed == [0, 1, 2, 3]
    save(checkpointer, 6)
    assert room.committed == [0, 1, 2, 3, 4, 5]


def test_clips_are_given_back_before_a_checkpoint_holds_them(room: Room, checkpointer: Checkpointer) -> None:
    save(checkpointer, 4)
    assert room.asked == ["settle", "snapshot", "save", "announce", "commit"]


def test_where_nothing_is_new_nothing_is_saved(room: Room, checkpointer: Checkpointer) -> None:
    save(checkpointer, 4)
    save(checkpointer, 4)
    assert room.asked.count("save") == 1


def test_the_final_copy_waits_until_the_one_before_is_saved(
    room: Room, checkpointer: Checkpointer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both lie in the same memory."""
    wait = checkpointer._saves.wait

    def waits() -> None:
        room.writes.set()
        wait()

    monkeypatch.setattr(checkpointer._saves, "wait", waits)
    room.writes.clear()
    checkpointer.begin(cast(Any, None), TrainingState(position=Position(0, 4)))
    checkpointer.finish(cast(Any, None), TrainingState(position=Position(0, 6)))
    room.writes.set()
    assert room.asked.index("save") < room.asked.index("final snapshot")


def test_each_of_those_that_are_staged_counts_when_it_is_copied(room: Room, checkpointer: Checkpointer) -> None:
    room.stages, found = True, []
    for index in (4, 8):
        checkpointer.defer_commit(clips(*range(index - 4, index)))
        checkpointer.begin(cast(Any, None), TrainingState(position=Position(0, index)))
    for _ in range(2):
        room.copies.release()
        until(lambda: checkpointer.written)
        checkpointer.settle()
        found.append((checkpointer.saved and checkpointer.saved.step, checkpointer.newest.index, len(room.committed)))
    assert found == [(4, 8, 4), (8, 8, 8)]


def test_a_save_that_failed_is_due_until_one_has_succeeded(room: Room, checkpointer: Checkpointer) -> None:
    found = []
    room.fails = True
    assert not checkpointer.save(cast(Any, None), TrainingState(position=Position(0, 4)))
    room.now_s = 10.0
    found.append((checkpointer.failing, checkpointer.due))
    room.fails = False
    room.writes.clear()
    checkpointer.begin(cast(Any, None), TrainingState(position=Position(0, 8)))
    checkpointer.settle()
    found.append((checkpointer.failing, checkpointer.due))
    room.writes.set()
    save(checkpointer, 8)
    room.now_s = 1000.0
    found.append((checkpointer.failing, checkpointer.due))
    assert found == [(True, True), (True, False), (False, False)]


def test_a_trouble_is_told_once_and_again_if_it_comes_again(room: Room, checkpointer: Checkpointer) -> None:
    """A checkpoint tells the master that it is over."""
    told = []
    for number, room.fails in enumerate((True, True, False, True), 1):
        assert checkpointer.save(cast(Any, None), TrainingState(position=Position(0, 4 * number))) != room.fails
        told.append(room.asked.count("tell"))
    assert told == [1, 1, 1, 2]


def test_scores_that_are_kept_are_tried_again_after_a_while(room: Room, checkpointer: Checkpointer) -> None:
    """With a checkpoint, and not with a second one while that is on its way."""
    room.now_s, room.keeps_scores = 5.0, True
    checkpointer.attempt("scores", refused)
    due = []
    for room.now_s in (14.9, 15.0):
        due.append(checkpointer.due)
    room.writes.clear()
    checkpointer.begin(cast(Any, None), TrainingState(position=Position(0, 4)))
    due.append(checkpointer.due)
    room.writes.set()
    room.keeps_scores = False
    save(checkpointer, 4)
    assert [*due, checkpointer.due] == [False, True, False, False]


def refused() -> None:
    raise Unavailable("no answer")
