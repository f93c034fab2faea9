"""The ledger under all that can happen to it, in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAINER, Progress
from tests.harness.ledger_checks import check_account, check_at_rest
from tests.harness.ledger_config import CLIP_BYTES, CONSUMERS, STREAM_BYTES, ledger_config
from tests.harness.ledger_simulation import LedgerSimulation

BOTH = CLIP_BYTES + STREAM_BYTES


def _is_report(event: Progress) -> bool:
    """Whether it may be lost: a worker's message, since the watchdog has its clip made again.

    A consumer continues only once its message is durable.
    """
    return not event.HasField("trained") and not event.HasField("stopped") and event.failed.stage != TRAINER


class LedgerMachine(RuleBasedStateMachine):
    """All that can happen, in any order; in the end all work until the job is over."""

    sim: LedgerSimulation

    @initialize(
        clips=st.integers(1, 9),
        epochs=st.integers(1, 2),
        videos=st.integers(2, 5),
        room=st.integers(6, 12),
        batch=st.integers(1, 4),
        locality=st.sampled_from([0, 0, 3]),
        kind=st.sampled_from(["class_balanced", "uniform"]),
        bad=st.sets(st.integers(0, 4), max_size=2),
        bad_streams=st.sets(st.integers(0, 4), max_size=1),
        start=st.tuples(st.integers(0, 1), st.integers(0, 3)),
        third=st.booleans(),
        lag=st.booleans(),
        lead=st.integers(0, 2),
        test=st.booleans(),
    )
    def begin(
        self,
        clips: int,
        epochs: int,
        videos: int,
        room: int,
        batch: int,
        locality: int,
        kind: str,
        bad: set[int],
        bad_streams: set[int],
        start: tuple[int, int],
        third: bool,
        lag: bool,
        lead: int,
        test: bool,
    ) -> None:
        first = {"trainer.flow": Position(start[0], min(start[1], clips if start[0] == 0 else 2 * videos))}
        consumers = CONSUMERS | ({"trainer.other": "rgb"} if third else {})
        share = room // 2 // (len(consumers) - 1) * BOTH
        config = ledger_config(
            epochs,
            clips,
            videos,
            consumers,
            start=first,
            budget=room * BOTH,
            locality=locality,
            unit_clips=locality or 2,
            kind=kind,
            catch_up=share if lag and share >= (2 * batch + max(locality, 1) - 1) * BOTH else 0,
            lead=lead,
            test=test,
        )
        self.sim = LedgerSimulation(config, bad, bad_streams, batch)
        self.flushes = 0

    def _pick(self, data: Any, bag: list[Any]) -> int:
        return int(data.draw(st.integers(0, len(bag) - 1)))

    @precondition(lambda self: self.sim.seeds)
    @rule(data=st.data(), keep=st.sampled_from([False, False, False, True]))
    def decode(self, data: Any, keep: bool) -> None:
        self.sim.decode(self._pick(data, self.sim.seeds), keep)

    @precondition(lambda self: self.sim.extractions)
    @rule(data=st.data())
    def extract(self, data: Any) -> None:
        self.sim.extract(self._pick(data, self.sim.extractions))

    @precondition(lambda self: self.sim.events)
    @rule(data=st.data(), twice=st.sampled_from([False, False, False, True]))
    def deliver(self, data: Any, twice: bool) -> None:
        self.sim.deliver(self._pick(data, self.sim.events), twice)

    @rule()
    def gather(self) -> None:
        self.sim.gather()

    @rule(data=st.data(), times=st.integers(1, 4))
    def take(self, data: Any, times: int) -> None:
        name = data.draw(st.sampled_from(sorted(self.sim.consumers)))
        for _ in range(times):
            self.sim.take(name)

    @rule(slow=st.sampled_from(sorted(CONSUMERS)), steps=st.integers(1, 20))
    def all_work_but_one(self, slow: str, steps: int) -> None:
        for _ in range(steps):
            self.sim.work(without={slow})

    @rule(data=st.data())
    def checkpoint(self, data: Any) -> None:
        self.sim.checkpoint(data.draw(st.sampled_from(sorted(self.sim.consumers))))

    @rule(data=st.data())
    def crash(self, data: Any) -> None:
        self.sim.crash(data.draw(st.sampled_from(sorted(self.sim.consumers))))

    @rule(data=st.data())
    def stop_early(self, data: Any) -> None:
        self.sim.stop(data.draw(st.sampled_from(sorted(self.sim.consumers))))

    @precondition(lambda self: self.sim.seeds)
    @rule(data=st.data())
    def lose_a_seed(self, data: Any) -> None:
        del self.sim.seeds[self._pick(data, self.sim.seeds)]

    @rule(data=st.data())
    def lose_a_message(self, data: Any) -> None:
        messages = [(name, lost) for name, each in sorted(self.sim.consumers.items()) for lost in sorted(each.waiting)]
        if messages:
            self.sim.lose_message(*data.draw(st.sampled_from(messages)))

    @rule(data=st.data())
    def ask(self, data: Any) -> None:
        self.sim.ask(data.draw(st.sampled_from(sorted(self.sim.consumers))))

    @precondition(lambda self: self.flushes < 2)
    @rule()
    def flush(self) -> None:
        self.flushes += 1
        self.sim.flush_cache()

    @rule()
    def stall(self) -> None:
        self.sim.do(self.sim.ledger.stalled())

    @precondition(lambda self: any(_is_report(e) for e in self.sim.events))
    @rule(data=st.data())
    def lose_a_report(self, data: Any) -> None:
        reports = [e for e in self.sim.events if _is_report(e)]
        self.sim.events.remove(reports[self._pick(data, reports)])

    @rule()
    def save_the_state(self) -> None:
        self.sim.save_state()

    @rule()
    def restart_the_master(self) -> None:
        self.sim.restart_master()

    @rule()
    def stop_and_start(self) -> None:
        self.sim.stop_and_start()

    @rule(work=st.booleans())
    def pause_or_resume(self, work: bool) -> None:
        if work:
            self.sim.do(self.sim.ledger.resume())
        else:
            self.sim.ledger.pause()

    @invariant()
    def the_account_holds(self) -> None:
        if hasattr(self, "sim"):
            check_account(self.sim)

    def teardown(self) -> None:
        if not hasattr(self, "sim"):
            return
        self.sim.do(self.sim.ledger.resume())
        self.sim.run()
        assert self.sim.end is None
        check_at_rest(self.sim)


LedgerMachine.TestCase.settings = settings(stateful_step_count=40, suppress_health_check=list(HealthCheck))


TestAnyOrder = LedgerMachine.TestCase
