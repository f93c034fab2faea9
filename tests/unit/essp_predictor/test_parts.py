"""What a predictor keeps on its way, so that one that dies costs no more than the part it was in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from essp_common import topics
from essp_common.artifacts import layout, partial_scores
from essp_common.artifacts.fused_model import open_model, read_model, write_model
from essp_common.artifacts.partial_scores import PartialScores, ScoredPart
from essp_common.artifacts.scores import ScoreTable
from essp_common.artifacts.segments import read_segments
from essp_common.errors import NotFound, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import ERROR, Control
from essp_common.runtime.failpoints import Failpoints
from essp_predictor import stream as stream_module
from essp_predictor.service import Predictor
from tests.harness.predictor_bench import (
    CLASSES,
    CLIPS,
    CLIPS_PER_VIDEO,
    FEATURES,
    JOB,
    VIDEOS,
    PredictorBench,
    expected,
    job_spec,
    model_at,
    of_first_clips,
)
from tests.harness.rounding import STORED, TOLERANCE
from tests.harness.waiting import until

pytestmark = pytest.mark.slow

ROUNDING = STORED + TOLERANCE
"""Of a score that was computed in another batch and stored."""


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is one video, and saved by itself."""
    monkeypatch.setattr(topics, "BLOCK_CLIPS", CLIPS_PER_VIDEO)
    monkeypatch.setattr(stream_module, "_SAVE_S", 0.0)


def kept(bench: PredictorBench) -> int:
    """How many parts."""
    return sum(info.key.endswith("done.json") for info in bench.store.list(layout.PARTS))


@pytest.mark.usefixtures("small_parts", "double_precision")
def test_a_predictor_that_dies_goes_on_with_the_part_it_was_in(bench: PredictorBench) -> None:
    with bench.predictor():
        for index in CLIPS[:5]:
            bench.deliver("rgb", index)
        for index in CLIPS[:3]:
            bench.deliver("motion", index)
        until(lambda: kept(bench) == 3, "two parts of rgb and one of motion are kept")
    assert bench.bus.backlog(topics.CLIPS, f"predictor.rgb.{JOB}") == 1
    assert bench.bus.backlog(topics.features("flow"), f"predictor.motion.{JOB}") == 1
    with bench.predictor():
        bench.deliver("rgb", 4)
        bench.deliver("rgb", 5)
        for index in CLIPS[2:]:
            bench.deliver("motion", index)
        lost = [p.failed.clip.index for p in bench.until_finished() if p.HasField("failed")]
    assert set(lost) <= {2, 4}, "nothing that was kept is made again"
    for video, answer in enumerate(bench.answers()):
        mean = np.mean([expected(2 * video), expected(2 * video + 1)], axis=0)
        assert answer.scores == pytest.approx(mean, abs=ROUNDING)
    assert not list(bench.store.list(layout.PARTS)), "the job is complete: parts are of no more use"


@pytest.fixture
def unheard(bench: PredictorBench, monkeypatch: pytest.MonkeyPatch) -> PredictorBench:
    """A predict job whose master does not say that it is complete, and all clips of it."""
    monkeypatch.setattr("essp_predictor.service._LAST_WORD_S", 0.0)
    bench.completes = False
    bench.deliver_all(CLIPS)
    return bench


@pytest.mark.usefixtures("small_parts")
def test_parts_are_kept_until_the_job_is_complete(unheard: PredictorBench) -> None:
    """The next predictor writes the same answers from them, and clears up."""
    with unheard.predictor():
        first = unheard.ending().finished
    answers = unheard.store.get(layout.PREDICTIONS)
    assert kept(unheard) == 2 * len(VIDEOS)
    with unheard.predictor():
        assert unheard.ending().finished == first
        assert kept(unheard) == 2 * len(VIDEOS)
        unheard.control(Control.COMPLETE)
        until(lambda: unheard.bus.backlog(topics.CONTROL, "predictor") == 0, "nothing is left to do")
    assert not list(unheard.store.list(layout.PARTS))
    assert unheard.store.get(layout.PREDICTIONS) == answers


@pytest.mark.usefixtures("small_parts")
def test_a_predictor_that_dies_before_it_has_cleared_up_leaves_that_to_the_next(unheard: PredictorBench) -> None:
    with unheard.predictor():
        unheard.ending()
    assert kept(unheard)
    unheard.control(Control.COMPLETE)
    with unheard.predictor():
        until(lambda: unheard.bus.backlog(topics.CONTROL, "predictor") == 0, "nothing is left to do")
    assert not list(unheard.store.list(layout.PARTS))


@pytest.mark.usefixtures("small_parts")
def test_a_predictor_that_is_slow_to_clear_up_leaves_the_next_run_what_that_has_saved(
    unheard: PredictorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a rebalance another predictor may have the next run, which saves under the same names."""
    with unheard.predictor():
        unheard.ending()
    before, delete = kept(unheard), DirectoryStore.delete
    removed: list[str] = []
    running: list[Predictor] = []

    def slow(store: DirectoryStore, key: str) -> None:
        if not removed:
            unheard.control(Control.START, fence=3)
            until(lambda: bool(running), "the test has it, too, which works already")
            until(lambda: running[0]._control.state(JOB) == Control.START, "it has heard of the next run")
        removed.append(key)
        delete(store, key)

    unheard.control(Control.COMPLETE)
    monkeypatch.setattr(DirectoryStore, "delete", slow)
    with unheard.predictor() as predictor:
        running.append(predictor)
        until(lambda: unheard.bus.backlog(topics.CONTROL, "predictor") == 1, "it is done with the run before")
    assert len(removed) == 1
    assert kept(unheard) == before - 1


@pytest.mark.usefixtures("small_parts")
def test_a_job_that_is_stopped_at_its_end_is_not_scored_again(unheard: PredictorBench) -> None:
    with unheard.predictor():
        assert unheard.ending().fence == 2
        unheard.control(Control.STOP)
        unheard.completes = True
        unheard.control(Control.START, fence=3)
        assert unheard.ending().fence == 3
        until(lambda: unheard.bus.backlog(topics.CONTROL, "predictor") == 0, "nothing is left to do")
    assert not list(unheard.store.list(layout.PARTS))


def test_what_is_left_of_a_removal_that_broke_off_is_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(str(tmp_path))
    for stop in (2, 4):
        for name in ("done.json", "aaa.parquet", "rgb.parquet"):
            store.put(f"{layout.PARTS}{'0123' * 4}/rgb/{stop:010d}-f/{name}", b"")
    store.put(f"{layout.PARTS}notes.txt", b"mine")
    store.put(f"{layout.PARTS}{'0123' * 4}/rgb/0000000002-f/plot.png", b"mine")
    deleted: list[str] = []
    monkeypatch.setattr(DirectoryStore, "delete", lambda self, key: deleted.append(key.rpartition("/")[2]))
    partial_scores.remove(store)
    assert deleted == ["done.json"] * 2 + ["aaa.parquet", "rgb.parquet"] * 2


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("order", [CLIPS, CLIPS[::-1]])
def test_parts_change_no_answer(bench: PredictorBench, order: list[int]) -> None:
    with bench.predictor():
        for stream in FEATURES:
            for index in order:
                bench.deliver(stream, index, skipped="truncated at frame 7" if index in (1, 2, 3) else "")
        assert dict(bench.ending().finished.metrics) == {"videos": 3.0, "failed": 1.0}
    assert [(answer.video_id, answer.clips, answer.error) for answer in bench.answers()] == [
        ("a.mp4", 1, "truncated at frame 7"),
        ("b.mp4", 0, "truncated at frame 7"),
        ("c.mp4", 2, None),
    ]


@pytest.mark.usefixtures("small_parts")
def test_servers_that_fail_while_answers_are_written_fail_no_job(
    bench: PredictorBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is anything scored twice: all of it was kept."""
    monkeypatch.setattr(
        "essp_predictor.stream.failpoint", Failpoints("predictor.kept:1:raise,predictor.kept:3:raise").hit
    )
    monkeypatch.setattr("essp_predictor.job.failpoint", Failpoints("predictor.written:1:raise").hit)
    with bench.predictor():
        bench.deliver_all(CLIPS)
        reports = list(bench.until_finished())
    assert [p.failed.kind for p in reports if p.HasField("failed")] == []
    trained = sorted((p.trained.consumer, i) for p in reports for i in p.trained.indices)
    assert trained == [(f"predictor.{name}", index) for name in sorted(FEATURES) for index in CLIPS]
    assert [answer.clips for answer in bench.answers()] == [2, 2, 2]
    assert bench.bus.backlog(topics.CLIPS, f"predictor.rgb.{JOB}") == 0


@pytest.mark.usefixtures("small_parts")
def test_segments_are_written_if_asked_for(bench: PredictorBench, tmp_path: Path) -> None:
    assert bench.spec.predictor is not None
    asking = bench.spec.predictor.model_copy(update={"segments": True})
    asked = PredictorBench(tmp_path, bench.spec.model_copy(update={"predictor": asking}))
    with asked.predictor():
        for stream in FEATURES:
            for index in CLIPS:
                asked.deliver(stream, index, skipped="truncated at frame 7" if index == 3 else "")
        assert asked.ending().HasField("finished")
    rows = read_segments(asked.store, layout.SEGMENTS)
    assert [row.video_id for row in rows] == sorted(row.video_id for row in rows)
    for row in rows:
        video = VIDEOS.index(row.video_id)
        own = [index for index in (2 * video, 2 * video + 1) if index != 3]
        assert row.score <= max(expected(index)[CLASSES.index(row.class_name)] for index in own) + ROUNDING
        both = {(0, 54), (55, 110), (0, 110)}  # clips of 11 frames, at 0 and 100
        assert (row.first_frame, row.last_frame) in (both if len(own) == 2 else {(0, 10)})
    assert {row.video_id for row in rows} == set(VIDEOS)


@pytest.mark.usefixtures("small_parts")
def test_what_another_model_scored_is_not_taken(bench: PredictorBench, tmp_path: Path) -> None:
    _, model = open_model(bench.adapters.stores, f"file://{tmp_path}/model")
    table = ScoreTable(
        ("a.mp4",), np.array([-1], np.int32), np.zeros(1, np.int64), np.ones((1, 3), np.float32), CLASSES
    )
    other = PartialScores(bench.store, bench.spec, 0, model.model_copy(update={"rule": "product"}))
    other.save("rgb", [0], ScoredPart({"rgb": table}, {1: ("b.mp4", "gone")}, {0: (17, 27)}))
    assert other.saved("rgb").stop(6) == 2
    [part] = other.read_blocks("rgb", other.saved("rgb"), range(1))
    assert (part.tables["rgb"].video_id, part.errors, part.frames) == (("a.mp4",), {"b.mp4": "gone"}, {0: (17, 27)})
    same = PartialScores(bench.store, bench.spec, 0, model)
    assert [same.saved(stream).stop(6) for stream in FEATURES] == [0, 0]
    same.save("rgb", [1], ScoredPart({}, {}, {}))
    assert same.saved("rgb").stop(6) == 0, "the block before it is missing"
    same.save("rgb", [0], ScoredPart({}, {}, {}))
    assert same.saved("rgb").stop(6) == 4
    assert PartialScores(bench.store, bench.spec, 1, model).saved("rgb").stop(6) == 0, "another catalog"


@pytest.mark.usefixtures("small_parts")
def test_a_model_that_is_replaced_fails_the_run_and_the_next_one_scores_anew(
    bench: PredictorBench, tmp_path: Path
) -> None:
    """What was scored with the model before is committed: it would be waited for in vain."""
    with bench.predictor():
        bench.deliver("rgb", 0)
        bench.deliver("rgb", 1)
        until(lambda: kept(bench) == 1, "a part is kept")
    _, model = open_model(bench.adapters.stores, f"file://{tmp_path}/model")
    write_model(DirectoryStore.from_url(f"file://{tmp_path}"), model.model_copy(update={"rule": "product"}))
    with bench.predictor():
        failed = bench.ending().failed
    assert f"file://{tmp_path}/model is another model than job {JOB} has begun with" in failed.reason
    assert failed.kind == ERROR
    bench.control(Control.FAIL)
    bench.control(Control.START, fence=3)
    with bench.predictor():
        bench.deliver_all(CLIPS)
        assert bench.finished().fence == 3


def test_a_run_has_one_model(tmp_path: Path) -> None:
    """Also one whose predictor begins long after its master has looked at what is kept: it waited in the queue."""
    spec, store = job_spec(tmp_path, model_at(tmp_path)), DirectoryStore(str(tmp_path / "out"))
    model = read_model(DirectoryStore(str(tmp_path / "model")))
    now, later = (PartialScores(store, spec, 0, of) for of in (model, model.model_copy(update={"rule": "product"})))
    now.bind(7)
    now.bind(7)
    with pytest.raises(PermanentError, match=f"{tmp_path}/model is another model than job {JOB} has begun with"):
        later.bind(7)
    later.bind(8)
    now.bind(7)


@pytest.mark.usefixtures("double_precision")
def test_a_strategy_that_looks_at_clips_gets_those_of_each_video(tmp_path: Path) -> None:
    """It counts the first of two clips alone; where in a video something is, it says of each clip by itself."""
    of_first_clips(tmp_path)
    document = job_spec(tmp_path).model_dump(mode="json")
    document["predictor"]["segments"] = True
    bench = PredictorBench(tmp_path, JobSpec.model_validate(document))
    with bench.predictor():
        bench.deliver_all(CLIPS)
        assert bench.ending().HasField("finished")
    for video, answer in enumerate(bench.answers()):
        assert answer.scores == pytest.approx(expected(CLIPS_PER_VIDEO * video), abs=ROUNDING)
    read_segments(bench.store, layout.SEGMENTS)


def test_a_part_that_somebody_removed_is_named(tmp_path: Path) -> None:
    spec, store = job_spec(tmp_path, model_at(tmp_path)), DirectoryStore(str(tmp_path / "out"))
    parts = PartialScores(store, spec, 0, read_model(DirectoryStore(str(tmp_path / "model"))))
    with pytest.raises(NotFound, match=f"clip {2 * topics.BLOCK_CLIPS} is gone"):
        next(parts.read_blocks("rgb", parts.saved("rgb"), range(2, 3)))
