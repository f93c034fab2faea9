"""Items come in the order of the plan, once each, whatever order they arrive in."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.job.position import Position
from essp_engine.intake.reorder_buffer import Put, ReorderBuffer

START = Position(0, 0)


def buffer_of(*sizes: int, start: Position = START, ranks: int = 1, rank: int = 0) -> ReorderBuffer[str]:
    return ReorderBuffer(sizes, start, lambda index: index % ranks == rank)


def drained(buffer: ReorderBuffer[str]) -> list[str]:
    """All that can be taken now; the end of a phase as `end <phase>`."""
    found: list[str] = []
    while True:
        if (over := buffer.end_phase()) is not None:
            found.append(f"end {over}")
        elif (item := buffer.peek()) is not None:
            buffer.take()
            found.append(item)
        else:
            return found


def test_items_wait_until_it_is_their_turn() -> None:
    buffer = buffer_of(3)
    assert buffer.put(Position(0, 2), (0, 0), "c") == (Put.STORED, None)
    assert buffer.put(Position(0, 1), (0, 0), "b") == (Put.STORED, None)
    assert (drained(buffer), len(buffer), buffer.next) == ([], 2, Position(0, 0))
    buffer.put(Position(0, 0), (0, 0), "a")
    assert drained(buffer) == ["a", "b", "c", "end 0"]
    assert buffer.finished


def test_the_end_of_a_phase_comes_also_where_a_rank_owns_nothing() -> None:
    buffer = buffer_of(1, 0, 2, ranks=2, rank=1)
    buffer.put(Position(2, 1), (0, 0), "b")
    assert drained(buffer) == ["end 0", "end 1", "b", "end 2"]
    assert buffer.end_phase() is None


def test_the_highest_attempt_stays() -> None:
    buffer = buffer_of(1)
    buffer.put(Position(0, 0), (0, 1), "second")
    assert buffer.put(Position(0, 0), (0, 0), "first") == (Put.DUPLICATE, "second")
    assert buffer.put(Position(0, 0), (0, 1), "second again") == (Put.DUPLICATE, "second")
    assert buffer.put(Position(0, 0), (0, 2), "third") == (Put.REPLACED, "second")
    assert drained(buffer) == ["third", "end 0"]


@pytest.mark.parametrize("attempt", [0, 1])
def test_what_the_latest_run_made_stays_whatever_the_attempt(attempt: int) -> None:
    buffer = buffer_of(1)
    buffer.put(START, (1, attempt), "of the run before")
    assert buffer.put(START, (2, 0), "of this run") == (Put.REPLACED, "of the run before")
    assert buffer.put(START, (1, attempt), "of the run before, again") == (Put.DUPLICATE, "of this run")
    assert buffer.peek() == "of this run"


def test_what_comes_up_are_the_next_own_positions_of_this_phase() -> None:
    buffer = buffer_of(7, 2, ranks=2, rank=1)
    for phase, index in [(0, 1), (0, 5), (1, 1)]:
        buffer.put(Position(phase, index), (0, 0), f"{phase}.{index}")
    assert [list(buffer.upcoming(count)) for count in range(5)] == [
        [],
        ["0.1"],
        ["0.1"],  # 0.3 is awaited, and counts
        ["0.1", "0.5"],
        ["0.1", "0.5"],  # the next phase does not begin before this one has ended
    ]
    buffer.put(Position(0, 3), (0, 0), "0.3")
    assert drained(buffer) == ["0.1", "0.3", "0.5", "end 0", "1.1", "end 1"]
    assert list(buffer.upcoming(1)) == []


@pytest.mark.parametrize(("ranks", "missing"), [(1, [1, 2, 4]), (2, [1])])
def test_what_is_missing_is_awaited_or_lies_before_what_is_there(ranks: int, missing: list[int]) -> None:
    buffer = buffer_of(9, 9, start=Position(0, 1), ranks=ranks, rank=ranks - 1)
    for place in [Position(0, 3), Position(0, 5), Position(1, 1)]:
        assert next(buffer.missing()) == Position(0, 1)
        buffer.put(place, (0, 0), "")
    assert [place.index for place in buffer.missing()] == missing
    buffer.put(Position(0, 1), (0, 0), "")
    buffer.take()
    assert [place.index for place in buffer.missing()] == missing[1:]


def test_what_was_taken_is_held_until_it_is_released() -> None:
    buffer = buffer_of(2)
    buffer.put(START, (0, 0), "a")
    taken = buffer.take()
    assert buffer.put(START, (0, 0), "a") == (Put.HELD, None)
    buffer.release(taken)
    assert buffer.put(START, (0, 0), "a") == (Put.PASSED, None)


def test_what_lies_before_the_start_was_passed() -> None:
    buffer = buffer_of(2, 2, start=Position(1, 1))
    assert buffer.put(Position(0, 1), (0, 0), "a") == (Put.PASSED, None)
    assert buffer.put(Position(1, 0), (0, 0), "b") == (Put.PASSED, None)
    assert buffer.put(Position(1, 1), (0, 0), "c") == (Put.STORED, None)


def test_an_item_that_is_discarded_is_awaited_again() -> None:
    buffer = buffer_of(2)
    buffer.put(START, (0, 0), "lost")
    buffer.discard(START)
    assert (buffer.peek(), buffer.next) == (None, START)
    assert buffer.put(START, (0, 0), "made again") == (Put.STORED, None)
    assert drained(buffer) == ["made again"]


def test_taking_what_has_not_arrived_is_an_error() -> None:
    with pytest.raises(KeyError):
        buffer_of(1).take()


@dataclass
class Case:
    """A job, a rank's share of it, and what arrives."""

    sizes: list[int]
    start: Position
    ranks: int
    rank: int
    arrivals: list[tuple[Position, int]] = field(default_factory=list)
    """Positions and attempts."""

    @property
    def wanted(self) -> list[Position]:
        """What this rank is to take, in order."""
        every = [Position(phase, index) for phase, size in enumerate(self.sizes) for index in range(size)]
        return [position for position in every if position >= self.start and position.index % self.ranks == self.rank]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    """Any order, with duplicates, several attempts and gaps."""
    sizes = draw(st.lists(st.integers(0, 6), min_size=1, max_size=4))
    phase = draw(st.integers(0, len(sizes) - 1))
    ranks = draw(st.integers(1, 3))
    case = Case(sizes, Position(phase, draw(st.integers(0, sizes[phase]))), ranks, draw(st.integers(0, ranks - 1)))
    every = [Position(p, i) for p, size in enumerate(sizes) for i in range(size) if i % ranks == case.rank]
    if every:
        some = draw(st.lists(st.tuples(st.sampled_from(every), st.integers(0, 2)), max_size=30))
        whole = [(position, 0) for position in every] if draw(st.booleans()) else []
        case.arrivals = draw(st.permutations(some + whole))
    return case


@given(cases(), st.data())
def test_any_arrival_order_gives_the_order_of_the_plan(case: Case, data: st.DataObject) -> None:
    buffer: ReorderBuffer[tuple[Position, int]] = ReorderBuffer(
        case.sizes, case.start, lambda index: index % case.ranks == case.rank
    )
    taken: list[tuple[Position, int]] = []
    ends: list[int] = []
    arrived: dict[Position, int] = {}
    gone = 0

    def take_all() -> None:
        while True:
            if (over := buffer.end_phase()) is not None:
                ends.append(over)
                assert all(p in dict(taken) for p in case.wanted if p.phase_index <= over)
            elif (item := buffer.peek()) is not None:
                assert buffer.take() == item[0]
                assert item[1] == arrived[item[0]], "the highest attempt that had arrived"
                taken.append(item)
            else:
                return

    for position, attempt in case.arrivals:
        outcome, other = buffer.put(position, (0, attempt), (position, attempt))
        passed = position in dict(taken) or position < case.start
        assert (outcome in (Put.PASSED, Put.HELD)) == passed
        gone += outcome is not Put.STORED
        if not passed:
            assert (other is None) == (outcome is Put.STORED)
            arrived[position] = max(attempt, arrived.get(position, 0))
        if data.draw(st.booleans()):
            take_all()
    take_all()

    first_missing = next((p for p in case.wanted if p not in arrived), Position(len(case.sizes), 0))
    assert [position for position, _ in taken] == [p for p in case.wanted if p < first_missing]
    assert ends == list(range(case.start.phase_index, first_missing.phase_index))
    assert buffer.finished == (first_missing.phase_index == len(case.sizes))
    assert len(taken) + len(buffer) + gone == len(case.arrivals), "each item is taken, waits, or was handed back"
