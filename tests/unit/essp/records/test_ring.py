"""Memory that processes share: a kill at any line of a step, by whoever has the lock, costs nobody a batch."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import pytest

from essp.records import handover, ring
from essp.records.handover import OVER, WAIT, Board, Slot, Status
from essp.records.ring import Address, Ended, Home, Ring
from tests.harness.refused import refused

BATCHES = 4
LOOKED_AT = {handover.__file__, ring.__file__}


@pytest.fixture
def home() -> Iterator[Home]:
    made = Home(2)
    yield made
    made.close()


@pytest.fixture
def feeder(home: Home) -> Iterator[Ring]:
    """All of an epoch is written."""
    feeder = Ring(home.address)
    feeder.feed()
    feeder.step(Board.begin, 0, 0, 0, 0)
    feeder.step(Board.open_slots, 6)
    slot = feeder.step(Board.reserve)
    for number in range(BATCHES):
        slot = feeder.step(Board.publish, slot, Slot(0, number, number + 1, 0, 0))
    feeder.step(Board.end_epoch, 0)
    yield feeder
    feeder.close()


def taken(member: Ring) -> list[int]:
    """What is left of the epoch."""
    found = []
    while (answer := member.take(0)) != OVER:
        if isinstance(answer, Slot):
            found.append(answer.start)
        elif member.wait_as_member():
            member.bury_the_dead()
    return found


def in_a_child(work: Any) -> int:
    """How the child ended."""
    pid = os.fork()
    if not pid:
        try:
            work()
        finally:
            os._exit(0)
    return os.waitpid(pid, 0)[1]


@pytest.mark.processes
def test_a_kill_at_any_line_gives_the_batch_to_the_others(home: Home, feeder: Ring) -> None:
    """A child joins, takes two batches and is killed: before the first line of that, before the second one, ..."""
    lines, status = random.randrange(8), int(signal.SIGKILL)  # other lines in each run
    while status == signal.SIGKILL:
        lines += 8

        def dies(lines: int = lines) -> None:
            member = Ring(home.address)
            left = lines

            def trace(frame: FrameType, event: str, argument: object) -> Any:
                nonlocal left
                if frame.f_code.co_filename not in LOOKED_AT:
                    return None
                left -= event == "line"
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)
                return trace

            sys.settrace(trace)
            member.join()
            member.take(0)
            member.take(0)

        status = in_a_child(dies)
        member = Ring(home.address)
        assert member.join() != WAIT
        found = taken(member)
        lost = [number for number in range(BATCHES) if number not in found]
        assert sorted(found + lost) == list(range(BATCHES))
        assert lost in ([], [0]), "the one that was asked for no more is used, every other one came again"
        member.leave()
        member.close()
        # The same epoch once more.
        slot = feeder.step(rewound)
        for number in range(BATCHES):
            slot = feeder.step(Board.publish, slot, Slot(0, number, number + 1, 0, 0))
        feeder.step(Board.end_epoch, 0)
    assert status == 0
    assert lines > 100


def rewound(board: Board) -> int:
    for place in range(board.size):
        board.words[place] = 0
    board.begin(0, 0, 0, 0)
    board.open_slots(6)
    return board.reserve()


@pytest.mark.processes
def test_a_member_and_a_feeder_that_are_gone_are_seen_to_be(home: Home, feeder: Ring) -> None:
    """Also if a process that they have forked lives on: it has their files, but not their locks."""
    ends = os.pipe()

    def leaves_a_child_behind() -> None:
        member = Ring(home.address)
        member.feed()
        member.join()
        member.take(0)
        if not os.fork():
            os.read(ends[0], 1)
            os._exit(0)

    feeder.close()
    in_a_child(leaves_a_child_behind)
    member = Ring(home.address)
    assert not member.is_fed
    assert member.step(Board.holders)
    assert member.bury_the_dead()
    assert not member.step(Board.holders)
    member.close()
    os.write(ends[1], b".")
    os.wait()  # the orphan is ours
    for file in ends:
        os.close(file)


def test_members_of_one_process_are_two(home: Home, feeder: Ring) -> None:
    one, other = Ring(home.address), Ring(home.address)
    assert {one.join(), other.join()} == {0, 1}
    assert isinstance(one.take(0), Slot)
    assert not one.bury_the_dead()
    assert one.is_fed
    third = Ring(home.address)
    assert third.join() == WAIT
    other.close()
    assert third.join() == 1
    one.close()
    assert sorted(taken(third)) == list(range(BATCHES))
    third.close()


def test_the_place_of_a_member_that_leaves_is_free_at_once(home: Home, feeder: Ring) -> None:
    """Before it is closed: who joined in between was told that a resource is not available."""
    members = [Ring(home.address) for _ in range(3)]
    for member in members[:2]:
        member.join()
    held = members[0].take(0)
    for _ in range(2):
        members[0].leave()
    assert members[2].join() == 0
    assert members[2].take(0) == held
    for member in members:
        member.close()


def test_what_is_closed_cannot_be_opened(home: Home) -> None:
    address = home.address
    home.close()
    with pytest.raises(Ended):
        Ring(address)
    with pytest.raises(Ended):
        Ring(address._replace(memory=0, members_bell=0, feeder_bell=0))


def test_an_address_is_text(home: Home) -> None:
    assert Address.parse(str(home.address)) == home.address
    for text in ("", "1:2:3", "a:b:c:d:e", "1:2:3:4:5:6"):
        with refused("address"):
            Address.parse(text)


def test_another_release_is_refused(home: Home) -> None:
    home.memory[0] ^= 1
    with refused("address", "conflict"):
        Ring(home.address)


def test_too_little_memory_is_said(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with refused("memory", "range"):
        home.grow(1 << 22)


def test_texts_and_later_slots_are_seen_by_who_opened_it_before(home: Home) -> None:
    member = Ring(home.address)
    place = home.grow(1 << 21)
    home.memory[place + 5 : place + 10] = b"hello"
    found = member.memory_of(Slot(0, 0, 1, place, 1 << 21))
    assert found[place + 5 : place + 10] == b"hello"
    member.step(Board.end, Status.FAILED, home.write(b"no disk"), 7)
    assert member.text() == b"no disk"
    member.close()
