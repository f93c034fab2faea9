"""The course of a training in bounded memory."""

from __future__ import annotations

from itertools import pairwise

from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, StepReport
from essp_master.job.curve import MOST, Curve


def test_a_curve_is_bounded_and_evenly_spaced_over_the_whole_course() -> None:
    curve = Curve()
    for clips in range(1, 10 * MOST):
        curve.add(StepReport(purpose=TRAIN, epoch=1, clips_done=clips, loss=1 / clips, top1=0.5))
    kept = [point.clips_done for point in curve.points]
    assert MOST // 2 <= len(kept) < MOST
    assert {after - before for before, after in pairwise(kept)} == {16}
    assert kept[0] == 1
    assert curve.points[0].loss == 1.0


def test_passes_that_train_nothing_have_no_point() -> None:
    curve = Curve()
    curve.add(StepReport(purpose=VALIDATION, clips_done=5, loss=1.0))
    curve.add(StepReport(purpose=TRAIN, clips_done=0))
    assert curve.points == ()
