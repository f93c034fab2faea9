"""A ledger that is restored from the state of another does exactly what that one would have done."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import ConfigError
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAIN, Indices, LedgerState, Progress, Trained
from essp_engine.seeding.instructions import Instruction
from essp_master.ledger.consumption import Consumption, IndexSet, done_by_all
from essp_master.ledger.ledger import Ledger
from essp_master.ledger.outstanding import outstanding_clips
from tests.harness.ledger_config import CLIP_BYTES, STREAM_BYTES, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation

BOTH = CLIP_BYTES + STREAM_BYTES


class Twins(Ledger):
    """A ledger, and one restored from its state, which gets the same events and has to answer the same."""

    def __init__(self, ledger: Ledger, sim: LedgerSimulation) -> None:
        self.__dict__ = ledger.__dict__
        self.one = ledger
        self.other = Ledger(sim.config, LedgerState.FromString(ledger.state().SerializeToString()))

    def account(self, progress: Progress) -> list[Instruction]:
        return self._same(self.one.account(progress), self.other.account(progress))

    def issue(self) -> list[Instruction]:
        return self._same(self.one.issue(), self.other.issue())

    def stalled(self) -> list[Instruction]:
        return self._same(self.one.stalled(), self.other.stalled())

    def _same(self, out: list[Instruction], other: list[Instruction]) -> list[Instruction]:
        assert out == other
        assert _clip_by_clip(self.state()) == _clip_by_clip(self.other.state())
        return out


def _clip_by_clip(state: LedgerState) -> LedgerState:
    """The same without columns: those of a ledger that was restored lie in none."""
    clips = outstanding_clips(state)
    del state.plain[:], state.outstanding[:]
    state.outstanding.extend(clips)
    return state


def something(sim: LedgerSimulation, chance: random.Random) -> None:
    """One thing that can happen."""
    name = chance.choice(["trainer.rgb", "trainer.flow"])
    events: list[Callable[[], object]] = [
        lambda: sim.take(name),
        lambda: sim.take(name),
        lambda: sim.checkpoint(name),
        lambda: sim.do(sim.ledger.stalled()),
    ]
    if chance.random() < 0.1:
        events += [lambda: sim.crash(name), sim.flush_cache]
    if sim.seeds:
        events += [lambda: sim.decode(chance.randrange(len(sim.seeds)), chance.random() < 0.2)] * 4
    if sim.extractions:
        events += [lambda: sim.extract(chance.randrange(len(sim.extractions)))] * 4
    if sim.events:
        events += [lambda: sim.deliver(chance.randrange(len(sim.events)), chance.random() < 0.2)] * 8
    chance.choice(events)()


@given(
    seed=st.integers(0, 2**32),
    cut=st.integers(0, 150),
    locality=st.sampled_from([0, 3]),
    room=st.integers(4, 12),
    bad=st.sets(st.integers(0, 3), max_size=2),
    ahead=st.integers(0, 5),
)
def test_after_any_cut_the_same_events_give_the_same_instructions(
    seed: int, cut: int, locality: int, room: int, bad: set[int], ahead: int
) -> None:
    start = {"trainer.flow": Position(0, ahead)}
    sim = LedgerSimulation(
        ledger_config(2, 5, start=start, budget=room * BOTH, locality=locality, unit_clips=2), sorted(bad), [3]
    )
    chance = random.Random(seed)
    for _ in range(cut):
        something(sim, chance)
    sim.ledger = Twins(sim.ledger, sim)
    for _ in range(40):
        something(sim, chance)
    sim.run()
    assert sim.ledger.outstanding == 0


def test_ten_million_seeds_make_a_state_of_kilobytes() -> None:
    sim = LedgerSimulation(ledger_config(clips=10_000_000, videos=1000, budget=200 * BOTH))
    for _ in range(20):
        sim.decode()
    for event in list(sim.events):
        sim.receive(event)
    consumption = sim.ledger.consumption["trainer.rgb"]
    for index in range(0, 400_000, 2):  # two ranks, one of them far ahead: the worst pattern there is
        consumption.add(0, index)
    assert sim.ledger.state().ByteSize() < 1_000_000
    small = LedgerSimulation(ledger_config(clips=10_000_000, videos=1000, budget=200 * BOTH)).ledger.state()
    assert small.ByteSize() < 10_000


def test_the_state_of_another_job_is_refused() -> None:
    state = LedgerSimulation(ledger_config()).ledger.state()
    with pytest.raises(ConfigError, match="of another job"):
        Ledger(ledger_config(consumers={"trainer.rgb": "rgb"}), state)
    with pytest.raises(ConfigError, match="of another job"):
        Ledger(ledger_config(epochs=3), state)
    with pytest.raises(ConfigError, match="of another job"):
        Ledger(ledger_config(consumers={"trainer.rgb": "rgb", "trainer.flow": "rgb"}), state)


DAMAGES: dict[str, Callable[[LedgerState], object]] = {
    "a consumer with fewer phases": lambda state: state.consumers[0].below.pop(),
    "a consumer with more phases": lambda state: state.consumers[0].below.append(0),
    "more clips done than a phase has": lambda state: state.consumers[0].below.__setitem__(0, 999),
    "a clip done that no phase has": lambda state: state.consumers[0].beyond[0].CopyFrom(IndexSet([999]).message()),
    "a clip done twice": lambda state: state.consumers[0].beyond[0].CopyFrom(IndexSet([0]).message()),
    "clips done of a phase that is not": lambda state: state.consumers[0].beyond[9].CopyFrom(IndexSet([1]).message()),
    "no indices in a block": lambda state: state.consumers[0].beyond[0].MergeFrom(Indices(blocks=[5], bits=[b""])),
    "a block that is there twice": lambda state: state.phases[0].skipped.MergeFrom(
        Indices(blocks=[0, 0], bits=[b"1", b"1"])
    ),
    "more clips closed": lambda state: setattr(state.phases[0], "closed", state.phases[0].closed + 1),
    "fewer clips issued": lambda state: setattr(state.phases[0], "issued", state.phases[0].issued - 1),
    "a clip outstanding twice": lambda state: state.outstanding.append(outstanding_clips(state)[0]),
    "a clip that nobody knows to be outstanding": lambda state: state.plain[0].indices.pop(),
    "a clip without sizes": lambda state: state.plain[0].sizes.pop(),
    "a block of too many indices": lambda state: state.phases[0].skipped.MergeFrom(
        Indices(blocks=[0], bits=[b"1" * 1000])
    ),
    "nothing done beyond": lambda state: state.consumers[0].beyond[0].CopyFrom(Indices()),
    "a clip in no state that there is": lambda state: setattr(state.outstanding[0], "state", 99),
    "a clip with more parts made than it has": lambda state: state.plain[0].made.__setitem__(0, 1 << 9),
    "a clip for nobody there": lambda state: state.plain[0].left.__setitem__(0, 1 << 40),
}


NAMED = {
    "a consumer with fewer phases": "trainer.rgb has 1 phases, and the job 2",
    "more clips done than a phase has": "trainer.rgb is done with 999 clips of phase 0, which has 20",
    "no indices in a block": "indices in blocks that",
    "nothing done beyond": "trainer.rgb is done with clips of phase 0 that it cannot be done with",
}
"""Where the error says more than what Python says."""


@pytest.mark.parametrize(("name", "damage"), DAMAGES.items(), ids=DAMAGES)
def test_a_state_that_contradicts_itself_is_refused(name: str, damage: Callable[[LedgerState], object]) -> None:
    sim = LedgerSimulation(ledger_config(clips=20, budget=8 * BOTH))
    for _ in range(4):
        sim.work()
    unreported = [sim.seeds[0].clip.index]
    sim.receive(Progress(trained=Trained(purpose=TRAIN, consumer="trainer.rgb", indices=unreported)))
    state = sim.ledger.state()
    assert state.outstanding
    assert state.plain
    Ledger(sim.config, state)
    damage(state)
    with pytest.raises((ValueError, LookupError), match=NAMED.get(name)):
        Ledger(sim.config, state)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5000))))
def test_a_set_of_indices_is_a_set(steps: list[tuple[bool, int]]) -> None:
    indices, model = IndexSet(), set[int]()
    for add, index in steps:
        if add:
            assert indices.add(index) == (index not in model)
            model.add(index)
        elif index in model:
            indices.remove(index)
            model.remove(index)
    assert set(indices) == model
    assert list(indices) == sorted(model)
    assert len(indices) == len(model)
    assert set(IndexSet.of(Indices.FromString(indices.message().SerializeToString()))) == model


@given(st.sets(st.one_of(st.integers(0, 20), st.integers(1000, 3100))), st.integers(0, 1100), st.integers(0, 2100))
def test_a_run_of_indices_is_taken_out_of_a_set(some: set[int], start: int, run: int) -> None:
    model = some | set(range(start, start + run))
    indices = IndexSet()
    indices.update(model)
    end = indices.take_run(start)
    assert end >= start + run
    assert end not in model
    assert set(indices) == model - set(range(start, end))
    assert len(indices) == len(set(indices))


@given(st.sets(st.one_of(st.integers(0, 20), st.integers(1000, 3100))), st.integers(0, 2100), st.integers(-9, 3000))
def test_a_range_of_indices_is_added_to_a_set(some: set[int], first: int, length: int) -> None:
    indices = IndexSet(some)
    indices.fill(first, first + length)
    model = some | set(range(first, first + length))
    assert (set(indices), len(indices)) == (model, len(model))
    assert indices.message() == IndexSet(model).message(), "no block is empty"


@given(
    st.lists(st.tuples(st.integers(0, 2500), st.sets(st.integers(0, 2999))), min_size=1, max_size=3),
    st.integers(0, 3000),
)
def test_what_all_consumers_are_done_with_is_counted(done: list[tuple[int, set[int]]], end: int) -> None:
    consumers = []
    for start, beyond in done:
        consumers.append(Consumption([7, 3000], Position(1, start), Position(2, 0)))
        for index in beyond:
            consumers[-1].add(1, index)
    model = sum(all(each.has(1, index) for each in consumers) for index in range(end))
    assert done_by_all(consumers, 1, end) == model
    assert done_by_all(consumers, 0, 7) == 7
