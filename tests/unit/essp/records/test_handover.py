"""Batches handed over between processes: each to one of them, whatever the order of their steps, and whoever dies."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from essp.records.handover import ENDED, OVER, WAIT, Board, Slot, Status

BATCHES, EPOCHS, SLOTS = 3, 2, 2

Batch = tuple[int, int]


def board_of(members: int, slots: int) -> Board:
    board = Board(members)
    board.words = [0] * board.size
    assert board.begin(0, 0, 0, 0)
    board.open_slots(slots)
    return board


@dataclass(frozen=True)
class Member:
    """A process that takes batches, as the model sees it."""

    epoch: int = 0
    holds: Batch | None = None
    asleep: bool = False
    dead: bool = False
    done: bool = False


@dataclass(frozen=True)
class World:
    """All that there is, at one moment."""

    words: tuple[int, ...]
    members: tuple[Member, ...]
    used: frozenset[Batch] = frozenset()
    given_back: int = 0
    slot: int = WAIT
    """That the feeder has reserved."""
    next: Batch = (0, 0)
    """That the feeder will write."""
    feeder_asleep: bool = False


def steps(board: Board, world: World, deaths: int) -> Iterator[World]:
    """What may happen next; all that sleep were woken as the board said."""

    def stepped(after: World) -> Iterator[World]:
        after = replace(after, words=tuple(board.words))
        if board.wake_feeder:
            after = replace(after, feeder_asleep=False)
        asleep = [i for i, member in enumerate(after.members) if member.asleep]
        for woken in itertools.combinations(asleep, min(len(asleep), board.wake_members)):
            members = [replace(one, asleep=one.asleep and i not in woken) for i, one in enumerate(after.members)]
            yield replace(after, members=tuple(members))

    def begin() -> None:
        board.words = list(world.words)
        board.wake_members, board.wake_feeder = 0, False

    def with_member(i: int, member: Member) -> World:
        return replace(world, members=(*world.members[:i], member, *world.members[i + 1 :]))

    epoch, number = world.next
    if epoch < EPOCHS and not world.feeder_asleep:
        begin()
        if number == BATCHES:
            board.end_epoch(epoch)
            yield from stepped(replace(world, next=(epoch + 1, 0)))
        elif world.slot == WAIT:
            slot = board.reserve()
            yield from stepped(replace(world, slot=slot, feeder_asleep=slot == WAIT))
        else:
            slot = board.publish(world.slot, Slot(epoch, number, number + 1, 0, 0))
            assert slot != world.slot
            yield from stepped(replace(world, slot=slot, next=(epoch, number + 1)))
    for i, member in enumerate(world.members):
        if member.dead or member.done:
            continue
        if sum(other.dead for other in world.members) < deaths:
            yield with_member(i, replace(member, dead=True, asleep=False))
        if member.asleep:
            continue
        begin()
        answer = board.take(i, member.epoch)
        used = world.used
        if member.holds is not None:
            assert member.holds not in used, "used twice"
            used = used | {member.holds}
        if answer >= 0:
            taken = board.slot(answer)
            batch = (taken.epoch, taken.start)
            assert taken.epoch == member.epoch
            assert batch not in used, "came again"
            assert all(other.holds != batch for other in world.members if not other.dead), "two have it"
            after = replace(member, holds=batch)
        elif answer == OVER:
            assert {one for one in used if one[0] == member.epoch} == {(member.epoch, n) for n in range(BATCHES)}
            after = replace(member, epoch=member.epoch + 1, holds=None, done=member.epoch + 1 == EPOCHS)
        else:
            assert answer == WAIT
            after = replace(member, asleep=True, holds=None)
        yield from stepped(replace(with_member(i, after), used=used))
    for i, member in enumerate(world.members):
        # Whoever waits looks for the dead from time to time.
        if member.dead and not member.done:
            begin()
            board.bury(i)
            yield from stepped(with_member(i, Member(dead=True, done=True)))


def test_every_order_of_steps_with_a_death_at_each_uses_each_batch_once() -> None:
    """All states that two members and a feeder can reach, with fewer slots than batches: nobody sleeps for ever."""
    board = board_of(2, SLOTS)
    for member in range(2):
        board.join(member, 100 + member)
    first = World(tuple(board.words), (Member(), Member()))
    seen, waiting = {first}, [first]
    whole = {(epoch, number) for epoch in range(EPOCHS) for number in range(BATCHES)}
    ends = 0
    while waiting:
        world = waiting.pop()
        following = list(steps(board, world, deaths=1))
        if all(member.done for member in world.members):
            assert world.used == whole
            ends += 1
        elif not following:
            raise AssertionError(f"nobody can go on: {world}")
        for one in following:
            if one not in seen:
                seen.add(one)
                waiting.append(one)
    assert ends > 10
    assert len(seen) > 1000


moves = st.lists(st.tuples(st.sampled_from(["take", "take", "leave", "kill", "write", "jump"]), st.integers(0, 2)))


@given(st.integers(1, 3), st.integers(1, 7), moves)
def test_no_batch_is_with_two_and_none_is_lost_but_with_its_epoch(
    members: int, batches: int, wanted: list[tuple[str, int]]
) -> None:
    """Members leave in the middle, jump to later epochs, die and come again, in any order."""
    board = board_of(members, 2 * members + 2)
    epochs = [0] * members
    holds: list[Batch | None] = [None] * members
    used: list[Batch] = []
    slot, following = WAIT, (0, 0)
    for member in range(members):
        board.join(member, 1)

    def write() -> None:
        nonlocal slot, following
        slot = board.reserve() if slot == WAIT else slot
        if slot == WAIT:
            return
        if following[0] != board.fed_epoch:
            following = (board.fed_epoch, 0)
        if following[1] == batches:
            board.end_epoch(following[0])
            following = (following[0] + 1, 0)
            return
        before, slot = slot, board.publish(slot, Slot(*following, following[1] + 1, 0, 0))
        assert slot != before
        following = (following[0], following[1] + 1)

    def take(member: int) -> int:
        answer = board.take(member, epochs[member])
        used.extend([held] if (held := holds[member]) is not None else [])
        holds[member] = None
        if answer >= 0:
            one = board.slot(answer)
            assert (one.epoch, one.start) not in [*used, *holds]
            holds[member] = (one.epoch, one.start)
        elif answer == OVER:
            epochs[member] += 1
        return answer

    for move, member in wanted:
        member %= members
        if move == "take":
            take(member)
        elif move == "leave":
            board.leave(member, used=True)
            used.extend([held] if (held := holds[member]) is not None else [])
            holds[member] = None
            epochs[member] += 1
        elif move == "kill":
            board.bury(member)
            assert board.free_member() <= member
            board.join(member, 2)
            holds[member], epochs[member] = None, 0
        elif move == "jump":
            epochs[member] += 2
        else:
            write()
        standing = board.standing(None)
        unused = {(standing.epoch, start) for start, _ in standing.unused}
        assert not unused & set(used)
        assert {held for held in holds if held is not None} <= unused
        written = batches if standing.written is None else standing.written
        slots = board.ready_slots + board.free_slots + sum(held is not None for held in holds) + (slot != WAIT)
        assert slots == 2 * members + 2, "one was lost"
        assert len(unused) + len([one for one in used if one[0] == standing.epoch]) <= written
    assert len(used) == len(set(used))
    # All but one leave, and that one gets all of a later epoch.
    for member in range(1, members):
        board.bury(member)
    epochs[0], used[:], holds[0] = board.epoch + 5, [], None
    board.leave(0, used=True)
    answer = WAIT
    while answer != OVER:
        answer = take(0)
        write()
    assert sorted(used) == [(epochs[0] - 1, number) for number in range(batches)]


def test_the_next_epoch_begins_when_all_have_left_this_one() -> None:
    """What is left of it is dropped then, and whoever is late finds it over."""
    board = board_of(3, 8)
    for member in range(3):
        board.join(member, 1)
    slot = board.reserve()
    for number in range(4):
        slot = board.publish(slot, Slot(0, number, number + 1, 0, 0))
    assert board.take(0, 0) >= 0
    assert board.take(1, 0) >= 0
    board.leave(0, used=True)
    assert board.take(0, 1) == WAIT, "the other one is in it"
    board.wake_members = 0
    board.leave(1, used=True)
    assert board.wake_members == 1
    assert board.take(0, 1) == WAIT, "there is none yet"
    assert (board.epoch, board.fed_epoch, board.ready_slots) == (1, 1, 0)
    assert board.publish(slot, Slot(0, 4, 5, 0, 0)) == slot, "of the dropped epoch"
    assert board.take(2, 0) == OVER
    slot = board.publish(slot, Slot(1, 0, 1, 0, 0))
    assert board.take(2, 1) >= 0


def test_what_ended_stays_ended() -> None:
    board = board_of(1, 4)
    board.join(0, 1)
    board.take(0, 0)
    board.end(Status.FAILED, 7, 9)
    assert board.wake_members == 1
    board.end(Status.CLOSED)
    assert (board.status, board.text()) == (Status.FAILED, (7, 9))
    assert board.take(0, 0) == ENDED
    assert not board.begin(0, 0, 0, 0), "a member has joined"


def test_one_more_than_may_join_has_no_place() -> None:
    board = board_of(2, 6)
    board.join(board.free_member(), 11)
    board.join(board.free_member(), 12)
    assert board.free_member() == WAIT
    assert board.processes() == [(0, 11), (1, 12)]
    board.bury(0)
    assert board.free_member() == 0


def test_who_waits_for_the_end_of_an_epoch_hears_that_another_has_begun() -> None:
    board = board_of(2, 6)
    for member in range(2):
        board.join(member, 1)
    board.publish(board.reserve(), Slot(0, 0, 1, 0, 0))
    board.end_epoch(0)
    assert board.take(0, 0) >= 0
    assert board.take(1, 0) == WAIT
    board.wake_members = 0
    assert board.take(0, 3) == WAIT, "it has not been written yet"
    assert board.wake_members == 1
    assert board.take(1, 0) == OVER
