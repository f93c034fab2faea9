"""What a report says of the whole job, from the history of all its runs."""

from __future__ import annotations

from essp.account import account_of
from essp.report.notes import notes
from essp_common.artifacts.history import runs_of
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import (
    DECODER,
    LOST,
    TRUNCATED,
    ClipFailure,
    HistoryEntry,
    HistorySegment,
    JobSnapshot,
    PhaseEvents,
    PhasePlan,
    RunStart,
)

SPEC = JobSpec.model_validate({"name": "j", "output": "file:///j", "trainers": {"rgb": {"stream": "rgb"}}})


def started(time_ms: int, at: Position) -> HistoryEntry:
    snapshot = JobSnapshot(spec_json=SPEC.model_dump_json(), phases=[PhasePlan(clips=10)])
    return HistoryEntry(time_ms=time_ms, started=RunStart(snapshot=snapshot, start={"trainer.rgb": at.message()}))


def made(time_ms: int, clips: range, *failures: ClipFailure) -> HistoryEntry:
    runs = runs_of(clips)
    events = PhaseEvents(phase_index=0, issued=runs, decoded=runs, trained={"trainer.rgb": runs})
    return HistoryEntry(time_ms=time_ms, phases=[events], failures=failures)


def failed(video: str) -> ClipFailure:
    return ClipFailure(stage=DECODER, kind=TRUNCATED, video=video)


def test_all_runs_count_also_one_in_which_nothing_was_done() -> None:
    segment = HistorySegment(
        entries=[
            started(1_000, Position(0, 0)),
            made(31_000, range(6), failed("a.mp4"), failed("b.mp4")),
            made(41_000, range(4, 6), ClipFailure(stage=DECODER, kind=LOST)),
            started(90_000, Position(0, 6)),
            made(100_000, range(6, 10), failed("a.mp4")),
            started(200_000, Position(1, 0)),
            HistoryEntry(time_ms=201_000, state="completed"),
        ]
    )
    found = notes(account_of([segment]))
    assert found["began"] == "1970-01-01 00:00 UTC"
    assert found["time"] == "51.0 s in 3 runs"
    assert found["clips decoded"] == "12"
    assert found["clips left out"] == "3 (nothing could replace them)"
    assert found["clips made again"] == "2 (1 because their bytes were lost)"
    assert found["failed in the decoder: truncated"] == "3, for example a.mp4, b.mp4"


def test_without_a_history_nothing_is_told() -> None:
    assert notes(account_of([])) == {}


def test_videos_that_failed_are_each_an_example_once() -> None:
    segment = HistorySegment(
        entries=[
            started(1_000, Position(0, 0)),
            made(2_000, range(6), *(failed(video) for video in ("a.mp4", "a.mp4", "a.mp4", "b.mp4", "c.mp4", "d.mp4"))),
        ]
    )
    found = notes(account_of([segment]))
    assert found["failed in the decoder: truncated"] == "6, for example a.mp4, b.mp4, c.mp4"
