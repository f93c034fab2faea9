"""The account of a long job: what its checkpoints hold of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp.account import account_of
from essp.audit import plan
from essp_common.artifacts.history import runs_of
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import (
    CheckpointReady,
    HistoryEntry,
    HistorySegment,
    JobSnapshot,
    PhaseEvents,
    PhasePlan,
    RunStart,
    TrainedAttempt,
)
from tests.harness.fleet import adapters_in, make_job


def trained(number: int, replaced: int) -> HistoryEntry:
    """All clips of a phase, one of them another than planned."""
    attempt = TrainedAttempt(position=Position(number, replaced).message(), consumer="trainer.rgb", attempt=1)
    events = PhaseEvents(phase_index=number, trained={"trainer.rgb": runs_of(range(10))}, skipped={"rgb": runs_of([9])})
    return HistoryEntry(phases=[events], attempts=[attempt])


def saved(position: Position) -> HistoryEntry:
    return HistoryEntry(checkpoint=CheckpointReady(trainer="rgb", position=position.message()))


def test_checkpoints_share_the_phases_that_did_not_change_between_them(tmp_path: Path) -> None:
    snapshot = JobSnapshot(spec_json=make_job(tmp_path).model_dump_json(), phases=[PhasePlan(clips=10)] * 2)
    again = PhaseEvents(phase_index=0, retrained={"trainer.rgb": runs_of([3])})
    start = RunStart(snapshot=snapshot, start={"trainer.rgb": Position(0, 0).message()})
    entries = [
        HistoryEntry(started=start),
        trained(0, replaced=3),
        saved(Position(1, 0)),
        trained(1, replaced=2),
        saved(Position(2, 0)),
        HistoryEntry(phases=[again]),
        saved(Position(2, 0)),
    ]
    first, second, third = account_of([HistorySegment(entries=entries)]).saved
    assert first.attempts == {0: {3: 1}}
    assert second.attempts == {0: {3: 1}, 1: {2: 1}}
    assert third.attempts == {0: {}, 1: {2: 1}}
    assert second.attempts[0] is first.attempts[0]
    assert third.attempts[1] is second.attempts[1]
    nine = frozenset([9])
    assert (first.skipped, third.skipped) == ({0: nine}, {0: nine, 1: nine})
    assert third.skipped[0] is first.skipped[0]


def test_a_clip_that_was_replaced_is_drawn_once_for_all_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[tuple[int, int, int]] = []
    draw = plan._Plan._clip

    def counting(self: plan._Plan, number: int, index: int, attempt: int) -> int:
        drawn.append((number, index, attempt))
        return draw(self, number, index, attempt)

    monkeypatch.setattr(plan._Plan, "_clip", counting)
    job, stores = make_job(tmp_path), adapters_in(tmp_path).stores
    attempts, skipped, places = {0: {3: 1}}, {1: {2}}, [Position(0, 6), Position(1, 4), Position(2, 0)]
    known = plan.planned(job, stores)
    digests = [known.digest(place, attempts, skipped, 2) for place in places]
    assert [drawn.count(clip) for clip in [(0, 3, 1), (0, 3, 0), (1, 2, 0)]] == [1, 2, 2], "once as planned, too"
    assert digests == [plan.planned(job, stores).digest(place, attempts, skipped, 2) for place in places]
    assert known.digest(places[0], {}, {}, 2) != digests[0]
