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
    yield from steps_of_feeder(board, world)
    for i, member in enumerate(world.members):
        if member.dead or member.done:
            continue
        if sum(other.dead for other in world.members) < deaths:
            yield with_member(world, i, replace(member, dead=True, asleep=False))
        if not member.asleep:
            yield from steps_of_member(board, world, i)
    for i, member in enumerate(world.members):
        # Whoever waits looks for the dead from time to time.
        if member.dead and not member.done:
            begin(board, world)
            board.bury(i)
            yield from stepped(board, with_member(world, i, Member(dead=True, done=True)))


def steps_of_feeder(board: Board, world: World) -> Iterator[World]:
    epoch, number = world.next
    if epoch == EPOCHS or world.feeder_asleep:
        return
    begin(board, world)
    if number == BATCHES:
        board.end_epoch(epoch)
        yield from stepped(board, replace(world, next=(epoch + 1, 0)))
    elif world.slot == WAIT:
        slot = board.reserve()
        yield from stepped(board, replace(world, slot=slot, feeder_asleep=slot == WAIT))
    else:
        slot = board.publish(world.slot, Slot(epoch, number, number + 1, 0, 0))
        assert slot != world.slot
        yield from stepped(board, replace(world, slot=slot, next=(epoch, number + 1)))


def steps_of_member(board: Board, world: World, i: int) -> Iterator[World]:
    """It gives back what it holds, and takes the next batch."""
    begin(board, world)
    member, used = world.members[i], world.used
    answer = board.take(i, member.epoch)
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
    yield from stepped(board, replace(with_member(world, i, after), used=used))


def begin(board: Board, world: World) -> None:
    """A step, from the board as it is in this world."""
    board.words = list(world.words)
    board.wake_members, board.wake_feeder = 0, False


def stepped(board: Board, after: World) -> Iterator[World]:
    """The worlds after a step: one for each choice of whom the board wakes."""
    after = replace(after, words=tuple(board.words))
    if board.wake_feeder:
        after = replace(after, feeder_asleep=False)
    asleep = [i for i, member in enumerate(after.members) if member.asleep]
    for woken in itertools.combinations(asleep, min(len(asleep), board.wake_members)):
        members = [replace(one, asleep=one.asleep and i not in woken) for i, one in enumerate(after.members)]
        yield replace(after, members=tuple(members))


def with_member(world: World, i: int, member: Member) -> World:
    return replace(world, members=(*world.members[:i], member, *world.members[i + 1 :]))


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


class Feed:
    """A feeder that writes batches to a board, and members that take them."""

    def __init__(self, members: int, batches: int) -> None:
        self.board = board_of(members, 2 * members + 2)
        self.batches = batches
        self.epochs = [0] * members
        self.holds: list[Batch | None] = [None] * members
        self.used: list[Batch] = []
        self.slot, self.next = WAIT, (0, 0)
        for member in range(members):
            self.board.join(member, 1)

    def write(self) -> None:
        """The next batch, or the end of the epoch, if there is room."""
        self.slot = self.board.reserve() if self.slot == WAIT else self.slot
        if self.slot == WAIT:
            return
        if self.next[0] != self.board.fed_epoch:
            self.next = (self.board.fed_epoch, 0)
        epoch, number = self.next
        if number == self.batches:
            self.board.end_epoch(epoch)
            self.next = (epoch + 1, 0)
            return
        before, self.slot = self.slot, self.board.publish(self.slot, Slot(epoch, number, number + 1, 0, 0))
        assert self.slot != before
        self.next = (epoch, number + 1)

    def take(self, member: int) -> int:
        answer = self.board.take(member, self.epochs[member])
        self.give_back(member)
        if answer >= 0:
            one = self.board.slot(answer)
            assert (one.epoch, one.start) not in [*self.used, *self.holds]
            self.holds[member] = (one.epoch, one.start)
        elif answer == OVER:
            self.epochs[member] += 1
        return answer

    def leave(self, member: int) -> None:
        """In the middle of an epoch, for the next one."""
        self.board.leave(member, used=True)
        self.give_back(member)
        self.epochs[member] += 1

    def kill(self, member: int) -> None:
        """And another one comes in its place."""
        self.board.bury(member)
        assert self.board.free_member() <= member
        self.board.join(member, 2)
        self.holds[member], self.epochs[member] = None, 0

    def jump(self, member: int) -> None:
        self.epochs[member] += 2

    def give_back(self, member: int) -> None:
        """What it held is used."""
        self.used.extend([held] if (held := self.holds[member]) is not None else [])
        self.holds[member] = None

    def check(self) -> None:
        """Each slot and each batch of this epoch is in one place."""
        standing = self.board.standing(None)
        unused = {(standing.epoch, start) for start, _ in standing.unused}
        held = [batch for batch in self.holds if batch is not None]
        assert not unused & set(self.used)
        assert set(held) <= unused
        written = self.batches if standing.written is None else standing.written
        slots = self.board.ready_slots + self.board.free_slots + len(held) + (self.slot != WAIT)
        assert slots == 2 * len(self.holds) + 2, "one was lost"
        assert len(unused) + len([one for one in self.used if one[0] == standing.epoch]) <= written


moves = st.lists(st.tuples(st.sampled_from(["take", "take", "leave", "kill", "write", "jump"]), st.integers(0, 2)))


@given(st.integers(1, 3), st.integers(1, 7), moves)
def test_no_batch_is_with_two_and_none_is_lost_but_with_its_epoch(
    members: int, batches: int, wanted: list[tuple[str, int]]
) -> None:
    """Members leave in the middle, jump to later epochs, die and come again, in any order."""
    feed = Feed(members, batches)
    for move, member in wanted:
        if move == "write":
            feed.write()
        else:
            getattr(feed, move)(member % members)
        feed.check()
    assert len(feed.used) == len(set(feed.used))
    # All but one leave, and that one gets all of a later epoch.
    for member in range(1, members):
        feed.board.bury(member)
    feed.epochs[0], feed.used, feed.holds[0] = feed.board.epoch + 5, [], None
    feed.board.leave(0, used=True)
    answer = WAIT
    while answer != OVER:
        answer = feed.take(0)
        feed.write()
    assert sorted(feed.used) == [(feed.epochs[0] - 1, number) for number in range(batches)]


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
