"""The course of a job, and of its trainers, in bounded memory."""

from __future__ import annotations

from itertools import pairwise

import pytest

from essp_common.job.timeline import JobTimeline, TimelineSeries
from essp_common.job.usage import PoolUsage
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION, StepReport
from essp_master.job.timeline import MOST, MOST_POINTS, SAMPLE_S, Curve, Key, Timeline

DAY_S = 1.8e9


def pool(name: str = "decoder", **figures: float) -> PoolUsage:
    none = dict.fromkeys(PoolUsage.model_fields) | {"pool": name, "workers": 1, "gpus": 1}
    return PoolUsage.model_validate(none | figures)


def sampled(timeline: Timeline, seconds: float, begin_s: float = 0.0) -> Timeline:
    """A course whose rate grows by one each second; in its second half, a trainer has a rate."""
    for k in range(round(seconds / SAMPLE_S)):
        now_s = begin_s + SAMPLE_S * k
        values: dict[Key, float | None] = {
            ("clips_per_s", ""): now_s,
            ("lr", "rgb"): 0.5 if now_s > seconds / 2 else None,
        }
        assert timeline.due(now_s)
        timeline.add(values, [pool(cpu_cores=2.0, memory_bytes=round(now_s))], now_s, DAY_S + now_s)
        assert not timeline.due(now_s + SAMPLE_S / 2)
    return timeline


def series(found: JobTimeline, figure: str) -> TimelineSeries:
    return next(each for each in found.series if each.figure == figure)


@pytest.fixture(scope="module")
def hours() -> JobTimeline:
    return sampled(Timeline(), 14_400).model()


def test_hours_take_as_little_as_minutes_and_lack_nothing(hours: JobTimeline) -> None:
    for found, seconds in ((sampled(Timeline(), 600).model(), 600), (hours, 14_400)):
        assert MOST // 2 <= len(found.times) <= MOST or len(found.times) == seconds / SAMPLE_S
        steps = {round(after - before) for before, after in pairwise(found.times[:-1])}
        assert steps == {round(found.every_s)}, "evenly spaced"
        rate = series(found, "clips_per_s").values
        assert all(
            value == pytest.approx(at - DAY_S, rel=1e-3, abs=1)
            for value, at in zip(rate, found.times, strict=True)
            if value is not None
        ), "each value is the mean of its stretch"
    assert len(hours.model_dump_json()) < 60_000
    lr = series(hours, "lr").values
    assert lr[0] is None
    assert lr[-1] == 0.5


def test_what_workers_used_is_summed_up(hours: JobTimeline) -> None:
    (total,) = hours.totals
    assert (total.pool, total.cpu_cores, total.peak_memory_bytes) == ("decoder", 2.0, 14_398)
    assert total.gpu_joules is None
    assert total.seconds == pytest.approx(14_398)


def test_energy_is_power_times_time_and_a_silence_costs_none() -> None:
    timeline = Timeline()
    for now_s in (0.0, 2.0, 4.0, 3600.0):
        timeline.add({}, [pool(gpu_watts=300.0, gpu_busy=0.5)], now_s, DAY_S + now_s)
    (total,) = timeline.model().totals
    assert (total.gpu_joules, total.gpu_busy) == (300.0 * (2 + 2 + 4), 0.5)


def test_the_next_master_goes_on_where_this_one_ended() -> None:
    timeline = sampled(Timeline(), 3600)
    before = timeline.changed
    stored = timeline.stored(())
    assert (before, timeline.changed) == (True, False)
    second = Timeline()
    second.recall(type(stored).model_validate_json(stored.model_dump_json()).timeline)
    assert second.model() == stored.timeline
    sampled(second, 3600, begin_s=7200)
    found = second.model()
    assert len(found.times) <= MOST
    assert found.times[0] < DAY_S + 60
    assert found.times[-1] > DAY_S + 10_000
    gap = max(after - before for before, after in pairwise(found.times))
    assert gap == pytest.approx(3600, abs=2 * found.every_s), "where no master ran, nothing is made up"
    assert found.totals[0].seconds == pytest.approx(2 * 3598)


def test_a_clock_that_was_set_back_and_many_pools_do_no_harm() -> None:
    timeline = Timeline()
    for k in range(5):
        many = [pool(f"extractor.{number}", cpu_cores=1.0) for number in range(1000)]
        timeline.add({("clips_per_s", ""): 1.0}, many, 2.0 * k, DAY_S - 50 * k)
    found = timeline.model()
    assert list(found.times) == sorted(found.times)
    assert max(len(found.series), len(found.totals)) <= 256


def test_a_curve_is_bounded_and_evenly_spaced_over_the_whole_course() -> None:
    curve = Curve()
    for clips in range(1, 10 * MOST_POINTS):
        curve.add(StepReport(purpose=TRAIN, epoch=1, clips_done=clips, loss=1 / clips, top1=0.5))
    kept = [point.clips_done for point in curve.points]
    assert MOST_POINTS // 2 <= len(kept) < MOST_POINTS
    assert {after - before for before, after in pairwise(kept)} == {16}
    assert kept[0] == 1
    assert curve.points[0].loss == 1.0


def test_passes_that_train_nothing_have_no_point() -> None:
    curve = Curve()
    curve.add(StepReport(purpose=VALIDATION, clips_done=5, loss=1.0))
    curve.add(StepReport(purpose=TRAIN, clips_done=0))
    assert curve.points == ()
