"""What an intake tells the master of its clips, without a bus or a clock."""

from __future__ import annotations

from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, ClipRef
from essp_engine.intake.reports import LOOK_AHEAD, IntakeReports
from tests.unit.essp_engine.intake.ordered_bench import plan

PHASES = [plan(TRAIN, 0, 1000), plan(VALIDATION, 0, 4)]


def reports() -> IntakeReports:
    return IntakeReports(PHASES, "job-1", "trainer.rgb", "rgb", "w1", fence=3)


def clip(index: int, attempt: int = 0, phase_index: int = 0) -> ClipRef:
    phase = PHASES[phase_index]
    return ClipRef(job="job-1", purpose=phase.purpose, epoch=phase.epoch, index=index, attempt=attempt)


def test_a_late_clip_is_asked_for_again_and_again_but_not_before_it_is_late() -> None:
    told = reports()
    missing = [Position(0, index) for index in range(1000)]

    def asked(index: int, now_s: float) -> int:
        return len(list(told.late(Position(0, index), missing, now_s)))

    assert [asked(0, now_s) for now_s in (0, 29, 30, 59, 60)] == [0, 0, LOOK_AHEAD, 0, LOOK_AHEAD]
    assert [asked(1, now_s) for now_s in (80, 100, 110)] == [0, 0, LOOK_AHEAD], "each clip has a time of its own"


def test_only_what_was_published_is_reported_again() -> None:
    told = reports()
    messages = told.trained([clip(0), clip(1, attempt=2), clip(0, phase_index=1)])
    first = next(messages)
    assert (list(first.trained.indices), list(first.trained.attempts)) == ([0, 1], [0, 2])
    next(messages)  # the bus does not take this one
    assert list(told.late(Position(1, 1), [], 0)) == []
    for now_s in (30, 60):
        (again,) = (progress.trained for progress in told.late(Position(1, 1), [], now_s))
        assert (again.purpose, list(again.indices), again.again) == (TRAIN, [0, 1], True)


def test_a_range_is_rebuilt_across_phases_as_far_as_this_rank_owns_it() -> None:
    asked = list(reports().rebuild(Position(0, 996), Position(1, 3), lambda index: index % 2 == 0))
    places = [(each.failed.clip.purpose, each.failed.clip.index) for each in asked]
    assert places == [(TRAIN, 996), (TRAIN, 998), (VALIDATION, 0), (VALIDATION, 2)]


def test_a_report_bears_the_fence_of_the_bytes_where_that_is_known() -> None:
    told = reports()
    known, unknown = told.lost(clip(1), "gone", 2), told.lost(clip(1), "gone")
    assert (known.fence, unknown.fence) == (2, 3)
    assert (known.worker, known.failed.consumer, known.failed.stream) == ("w1", "trainer.rgb", "rgb")
