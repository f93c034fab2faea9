"""Bounds hold for the worst data, and a budget that could not move a job is refused with the remedy."""

from __future__ import annotations

from dataclasses import replace

import pytest

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import PREDICT, TEST, TRAIN, VALIDATION
from essp_engine.planning.phases import Phases
from essp_engine.preflight.budget import Budget, lead_clips
from essp_engine.preflight.checks import check
from essp_engine.preflight.resolve import resolve_on
from essp_engine.preflight.sizing import parts_of
from tests.harness.refused import Refusal, refusals, refused


def catalog(*splits: str, sizes: tuple[tuple[int, int], ...] = ((64, 48),)) -> Catalog:
    rows = []
    for split in splits:
        for n in range(8):
            width, height = sizes[n % len(sizes)]
            rows.append(
                VideoRow(f"{split}{n}", f"file:///{split}{n}", f"c{n % 2}", split, 1, "e", width=width, height=height,
                         frame_count=50, last_frame=49)
            )  # fmt: skip
    return Catalog(tuple(rows))


def job(**more: object) -> JobSpec:
    base: dict[str, object] = {
        "name": "j",
        "output": "file:///out",
        "clip": {"frames": 11, "resize": {"height": 32, "width": 32}},
        "streams": {"rgb": {}, "flow": {"feature": "flow", "params": {"length": 10}}},
        "trainers": {"rgb": {"stream": "rgb", "batch_size": 4}, "flow": {"stream": "flow", "batch_size": 8}},
        "epochs": 2,
    }
    return JobSpec.model_validate(base | more)


def refusal(spec: JobSpec, videos: Catalog) -> list[Refusal]:
    with pytest.raises(ConfigError) as error:
        check(resolve_on(videos, spec))
    return refusals(error.value)


def test_the_passes_of_a_training_end_with_the_test() -> None:
    order = Phases(job(), catalog("train", "validation", "test")).order
    assert order == ((TRAIN, 0), (VALIDATION, 0), (TRAIN, 1), (VALIDATION, 1), (TEST, 0))
    assert Phases(job(), catalog("train")).order == order[:-1]


def test_a_prediction_is_one_pass_over_everything() -> None:
    spec = job(trainers={}, predictor={"model": "file:///model"})
    phases = Phases(spec, catalog("train", "other"))
    assert phases.order == ((PREDICT, 0),)
    assert phases.plans[0].clips == 16 * spec.sampling.clips_per_video


def test_the_digest_tells_plans_apart() -> None:
    videos = catalog("train", "test")
    assert Phases(job(), videos).digest == Phases(job(), videos).digest
    assert Phases(job(), videos).digest != Phases(job(sampling={"seed": 1}), videos).digest


def test_the_digest_of_a_training_is_that_of_its_data_whatever_the_number_of_epochs() -> None:
    videos = catalog("train", "validation", "test")
    found = Phases(job(), videos).training_digest
    assert Phases(job(epochs=9), videos).training_digest == found
    for split in ("train", "validation"):
        mended = [replace(row, class_name="c1") if row.id == f"{split}0" else row for row in videos.rows]
        assert Phases(job(), Catalog(tuple(mended))).training_digest != found
    tested = [replace(row, class_name="c1") if row.id == "test0" else row for row in videos.rows]
    assert Phases(job(), Catalog(tuple(tested))).training_digest == found


def test_bounds_cover_each_part() -> None:
    clip, flow = resolve_on(catalog("train"), job()).bounds[0]
    assert clip == 128 + 11 * 32 * 32 * 3
    assert flow >= 10 * 32 * 32 * 2


def test_the_largest_video_counts_where_sizes_differ() -> None:
    spec = job(clip={"frames": 11, "resize": {"mode": "none"}})
    bounds = resolve_on(catalog("train", sizes=((64, 48), (320, 240))), spec).bounds
    assert bounds[0][0] == 128 + 11 * 320 * 240 * 3


def test_a_stream_without_a_consumer_costs_nothing() -> None:
    spec = job(trainers={"rgb": {"stream": "rgb"}})
    assert parts_of(spec).streams == ()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({}, ["trainers.flow.batch_size = 8", "8 at once"]),
        ({"sampling": {"locality": 100}}, ["sampling.locality = 100", "107 at once"]),
        ({"trainers": {}, "predictor": {"model": "file:///m"}}, ["the predictor's batch = 16"]),
    ],
)
def test_a_budget_that_is_too_small_is_refused_with_the_remedy(change: dict[str, object], words: list[str]) -> None:
    spec = job(limits={"budget": "200KiB"}, **change)
    problem = resolve_on(catalog("train"), spec).budget.problem
    assert problem is not None
    assert refusals(problem) == [("limits.budget", "range")]
    assert all(word in problem.problem for word in [*words, "raise it to"])


def test_units_leave_room_for_a_batch() -> None:
    spec = job()
    bounds = resolve_on(catalog("train"), spec).bounds
    largest = sum(bounds[0])
    tight = spec.model_copy(update={"limits": spec.limits.model_copy(update={"budget": 10 * largest})})
    assert Budget(tight, bounds).unit_clips == 3, "7 of a batch of 8, and 3 more"
    assert Budget(spec, bounds).unit_clips == 46, "clips of 11 frames: 506"
    longer = job(clip={"frames": 32, "resize": {"height": 32, "width": 32}})
    assert Budget(longer, bounds).unit_clips == 32


def test_a_catch_up_queue_holds_two_batches_or_there_is_none() -> None:
    spec = job()
    bounds = resolve_on(catalog("train"), spec).bounds

    def share(clips: int, **limits: object) -> int:
        given = {"budget": clips * sum(bounds[0]), **limits}
        return Budget(job(limits=given), bounds).catch_up_bytes // sum(bounds[0])

    assert share(32) == 16
    assert share(31) == 0
    assert share(1000) == 500
    assert share(1000, coupled=True) == 0
    one = job(trainers={"rgb": {"stream": "rgb", "batch_size": 4}}, limits={"budget": "1GiB"})
    assert Budget(one, bounds).catch_up_bytes == 0, "there is nobody to lag behind"
    tight = job(limits={"budget": 34 * sum(bounds[0])})
    assert Budget(tight, bounds).unit_clips == 17 - 8 + 1, "a unit and the rest of a batch fit a share"


def test_the_lead_is_counted_in_passes_and_holds_back_no_phase() -> None:
    videos = catalog("train", "validation", "test")

    def clips(lead: int, a_video: int, **more: object) -> int:
        sampling = {"clips_per_video": a_video, "clips_per_epoch": 5}
        return lead_clips(Phases(job(sampling=sampling, limits={"lead": lead}, **more), videos))

    assert clips(lead=1, a_video=1) == 5 + 8
    assert clips(lead=3, a_video=2) == 3 * (5 + 16)
    assert clips(lead=1, a_video=2, trainers={}, predictor={"model": "file:///model"}) == 0
    small = Catalog((*catalog("train", "validation").rows[6:10], *catalog("test").rows))
    spec = job(sampling={"clips_per_video": 1, "clips_per_epoch": 1}, limits={"lead": 1})
    assert lead_clips(Phases(spec, small)) == 8, "the test is longer than a pass"


def test_clips_too_short_for_a_feature_are_refused() -> None:
    spec = job(clip={"frames": 5, "resize": {"height": 32, "width": 32}})
    assert refusal(spec, catalog("train")) == [("streams.flow", "range")]


@pytest.mark.parametrize(
    ("feature", "field", "code"),
    [
        ("rgb", "streams.flow.params.length", "unknown"),
        ("hog", "streams.flow", "conflict"),
        ("huff", "streams.flow.feature", "unknown"),
    ],
)
def test_what_is_wrong_with_a_feature_names_its_stream(feature: str, field: str, code: str) -> None:
    """Two streams may have the same feature."""
    spec = job(streams={"rgb": {}, "flow": {"feature": feature, "params": {"length": 10}}})
    assert refusal(spec, catalog("train")) == [(field, code)]


def test_all_streams_that_cannot_be_made_are_named() -> None:
    spec = job(streams={"rgb": {"feature": "huff"}, "flow": {"feature": "flow", "params": {"lenght": 10}}})
    assert refusal(spec, catalog("train")) == [
        ("streams.rgb.feature", "unknown"),
        ("streams.flow.params.lenght", "unknown"),
    ]


def test_a_budget_holds_twice_as_many_clips_of_yuv_and_three_times_as_many_of_luma() -> None:
    def bounds(pixels: str) -> list[int]:
        clip = {"frames": 11, "resize": {"height": 32, "width": 32}, "pixels": pixels}
        streams = {"flow": {"feature": "flow", "params": {"length": 10}}}
        spec = job(clip=clip, streams=streams, trainers={"flow": {"stream": "flow"}})
        return list(resolve_on(catalog("train"), spec).bounds[0])

    header, samples = 128, 11 * 32 * 32
    flow = bounds("rgb")[1]
    assert bounds("rgb") == [header + 3 * samples, flow]
    assert bounds("yuv420") == [header + 3 * samples // 2, flow]
    assert bounds("gray") == [header + samples, flow]


@pytest.mark.parametrize(
    ("clip", "refusal"),
    [
        ({"codec": {"name": "jpeg"}}, ("clip.codec.name", "conflict")),
        ({"resize": {"height": 33, "width": 32}}, ("clip.resize.height", "conflict")),
        ({"resize": {"mode": "exact", "height": 32, "width": 31}}, ("clip.resize.width", "conflict")),
        ({"resize": {"mode": "short_side", "height": 31}}, ("clip.resize.height", "conflict")),
    ],
)
def test_yuv_is_refused_where_it_cannot_be(clip: dict[str, object], refusal: Refusal) -> None:
    with refused(*refusal):
        job(clip={"pixels": "yuv420", **clip})
    job(clip={"pixels": "gray", **clip})


def test_yuv_is_refused_for_videos_of_odd_sides_that_are_not_resized() -> None:
    spec = job(clip={"frames": 11, "resize": {"mode": "none"}, "pixels": "yuv420"})
    with pytest.raises(ConfigError, match=r"65 x 48 .*\(video train\d\)") as error:
        resolve_on(catalog("train", sizes=((64, 48), (65, 48))), spec)
    assert refusals(error.value) == [("clip.pixels", "conflict")]


def test_colours_are_not_made_of_luma() -> None:
    gray = {"frames": 11, "pixels": "gray"}
    videos, enough = catalog("train"), {"limits": {"budget": "1GiB"}}
    assert refusal(job(clip=gray, **enough), videos) == [("clip.pixels", "conflict")]
    flow = {"flow": {"feature": "flow", "params": {"length": 10}}}
    check(resolve_on(videos, job(clip=gray, streams=flow, trainers={"flow": {"stream": "flow"}}, **enough)))
    loop = {"streams": {"rgb": {}}, "trainers": {}, "consumers": {"loop": {"stream": "rgb"}}}
    check(resolve_on(videos, job(clip=gray, **loop, **enough)))
    differences = job(
        clip=gray, streams={"d": {"feature": "frame_diff"}}, trainers={}, consumers={"loop": {"stream": "d"}}
    )
    assert refusal(differences, videos) == [("clip.pixels", "conflict")]


def test_16_bits_are_for_loops_and_take_twice_the_room() -> None:
    videos, loop = catalog("train"), {"streams": {"rgb": {}}, "trainers": {}, "consumers": {"loop": {"stream": "rgb"}}}
    rooms = [resolve_on(videos, job(clip={"pixels": pixels}, **loop)).bounds[0][0] for pixels in ("gray", "gray16")]
    assert rooms[1] - rooms[0] == 11 * 256 * 256
    flow = {"flow": {"feature": "flow", "params": {"length": 10}}}
    trained = job(clip={"pixels": "gray16"}, streams=flow, trainers={"flow": {"stream": "flow"}})
    assert refusal(trained, videos) == [("clip.pixels", "conflict")]


@pytest.mark.parametrize("loops", [1, 2, 8])
@pytest.mark.parametrize("window", [0, 8, 12, 64])
def test_each_loop_has_room_to_catch_up_in_the_smallest_budget(loops: int, window: int) -> None:
    sampling = {"kind": "pooled", "clips_per_visit": 4, "window": window} if window else {}
    consumers = {f"loop-{number}": {"stream": "rgb", "batch_size": 4} for number in range(loops)}
    spec = job(trainers={}, consumers=consumers, sampling=sampling)
    bounds = [[100]]
    small = spec.model_copy(update={"limits": spec.limits.model_copy(update={"budget": 100})})
    needed = int(str(Budget(small, bounds).problem).partition(" at once")[0].rpartition(" ")[2])
    assert needed <= 2 * max(window + 3, 4 * loops)
    least = spec.model_copy(update={"limits": spec.limits.model_copy(update={"budget": 100 * needed})})
    share = Budget(least, bounds).catch_up_bytes // 100
    part = Budget(least, bounds).catch_up_window or max(window, 1)
    assert share >= part + 4 - 1, "a batch, and what is issued together with it"
    assert not window or window % part == 0
    assert Budget(least, bounds).unit_clips >= 1
