"""How fast a job goes, as people see it."""

from __future__ import annotations

from typing import Any

import pytest

from essp_common.job import status
from essp_common.job.trainer_spec import ProbeSpec, TrainerSpec
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, Fit, PhaseReport, Progress, StepReport
from essp_master.job.activity import Activity


def activity() -> Activity:
    return Activity({"rgb": "rgb"}, {"one": TrainerSpec(stream="rgb")})


def test_clips_that_end_in_lumps_have_a_rate_between_them() -> None:
    """A batch of eight each half minute is neither 8 clips/s nor 0."""
    job = activity()
    job.goes_on(100.0)
    assert job.clips_per_s(120.0) == 0
    job.closed(8, 130.0)
    assert job.clips_per_s(130.5) == pytest.approx(8 / 30.5)
    assert job.clips_per_s(150.0) == pytest.approx(8 / 50)
    job.closed(8, 160.0)
    assert job.clips_per_s(175.0) == pytest.approx(16 / 60)
    assert job.clips_per_s(300.0) == 0


def test_a_pause_is_no_part_of_the_rate() -> None:
    job = activity()
    job.goes_on(0.0)
    job.closed(40, 10.0)
    job.goes_on(600.0)
    assert job.clips_per_s(605.0) == 0
    job.closed(8, 604.0)
    assert job.clips_per_s(608.0) == pytest.approx(1.0)


def test_what_a_trainer_learns_between_two_phases_is_shown_until_it_reports_the_phase() -> None:
    def fit_of(job: Activity) -> status.FitStatus | None:
        return job.trainer_statuses(set(), {}, waits=False)[0].fit

    job = activity()
    step = StepReport(trainer="one", purpose=TRAIN, clips_done=12)
    job.note(Progress(step=step), 0.0)
    assert fit_of(job) is None
    step.fit.CopyFrom(Fit(what="centres", done=25, most=100, left_s=75.0))
    job.note(Progress(step=step), 0.0)
    words = "learns centres: step 25 of at most 100, at most 1 min 15 s left"
    assert fit_of(job) == status.FitStatus(what="centres", done=25, most=100, left_s=75.0, words=words)
    step.fit.CopyFrom(Fit(what="a linear classifier", done=0, most=500))
    job.note(Progress(step=step), 0.0)
    words = "learns a linear classifier: step 0 of at most 500"
    assert fit_of(job) == status.FitStatus(what="a linear classifier", done=0, most=500, left_s=None, words=words)
    job.note(Progress(phase_report=PhaseReport(trainer="one", purpose=TRAIN)), 0.0)
    assert fit_of(job) is None


def test_a_pass_that_is_reported_again_counts_once() -> None:
    """A trainer that fell back to a checkpoint reports the passes after it again; a new master is told again what the
    checkpoint says already."""
    job = activity()
    job.recall("one", [status.PhaseReport(purpose="train", epoch=0, metrics={"loss": 4.0})], "file:///c", None)
    for purpose, epoch, loss in ((TRAIN, 0, 4.0), (VALIDATION, 0, 3.0), (TRAIN, 1, 2.0), (VALIDATION, 0, 2.5)):
        job.note(
            Progress(phase_report=PhaseReport(trainer="one", purpose=purpose, epoch=epoch, metrics={"loss": loss})),
            0.0,
        )
    (trainer,) = job.trainer_statuses(set(), {}, waits=False)
    told = [(report.purpose, report.epoch, report.metrics["loss"]) for report in trainer.reports]
    assert told == [("train", 0, 4.0), ("validation", 0, 2.5), ("train", 1, 2.0)]


@pytest.mark.parametrize(("fitted", "first"), [(False, (1.8, 0.25)), (True, (None, None))])
def test_there_is_no_figure_where_nothing_was_seen_or_learned(fitted: bool, first: tuple[float | None, ...]) -> None:
    """A probe guesses until its first epoch has ended: that is no loss of a training."""
    job = Activity({"rgb": "rgb"}, {"one": TrainerSpec(stream="rgb", probe=ProbeSpec() if fitted else None)})

    def figures(**step: Any) -> tuple[float | None, ...]:
        job.note(Progress(step=StepReport(trainer="one", **step)), 0.0)
        (now,) = job.trainer_statuses(set(), {}, waits=False)
        return now.loss, now.top1

    assert figures(purpose=TRAIN) == (None, None)
    assert figures(purpose=TRAIN, clips_done=4, loss=1.8, top1=0.25) == first
    assert bool(job.trainers["one"].curve.points) == (not fitted)
    job.note(Progress(phase_report=PhaseReport(trainer="one", purpose=TRAIN)), 0.0)
    assert figures(purpose=VALIDATION) == (None, None)
    assert figures(purpose=VALIDATION, clips_done=4, loss=0.5, top1=0.75) == (0.5, 0.75)
    assert figures(purpose=TRAIN, epoch=1, clips_done=4, loss=0.5, top1=0.5) == (0.5, 0.5)


def test_a_trainer_that_resumes_is_where_it_was() -> None:
    job = activity()
    job.recall("one", [status.PhaseReport(purpose="train", epoch=8, metrics={})], "", None)
    assert job.trainer_statuses(set(), {}, waits=False)[0].epoch == 8
