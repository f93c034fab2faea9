"""`essp predict` before and after the job: which files are meant, what the job is, how answers are shown."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from essp.api.prediction import Answers, Look, Segment, _where, find, job_of, predict, probe
from essp.cli.predict import _progress, classify_watched, document, table
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.predictions import Prediction, predictions, read_predictions, write_predictions
from essp_common.artifacts.scores import VideoScores
from essp_common.artifacts.segments import Segment as StoredSegment
from essp_common.cache.memory import MemoryCache
from essp_common.catalog.rows import VideoRow
from essp_common.errors import NotFound
from essp_common.job.spec import HighlightSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.video.synthetic import numbered, write_video
from tests.harness import statuses
from tests.harness.command_line import essp
from tests.harness.finished_job import JOB, finished_job
from tests.harness.refused import Refusal, refused

STORES = Stores(("file:///",))
CLASSES = ("left", "right", "up")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    (root / "more").mkdir()
    for name in ("a.mp4", "more/b.avi"):
        write_video(root / name, numbered(8, 64, 48))
    (root / "notes.txt").write_text("no video")
    (root / "broken.mp4").write_bytes(b"not a video at all")
    return root


@pytest.fixture(scope="module")
def model_uri(tmp_path_factory: pytest.TempPathFactory) -> str:
    job = finished_job(tmp_path_factory.mktemp("model"))
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES)
    return job.spec.output


def test_files_folders_and_uris_are_found_as_often_as_they_are_named(folder: Path) -> None:
    rows = find([f"{folder}/a.mp4", str(folder), f"file://{folder}/more/b.avi"], STORES)
    names = [f"{folder}/{name}" for name in ("a.mp4", "a.mp4", "broken.mp4", "more/b.avi", "more/b.avi")]
    assert [row.id for row in rows] == [*names[:-1], f"file://{names[-1]}"]
    assert [row.uri for row in rows] == [f"file://{name}" for name in names]
    assert all(row.size_bytes > 0 for row in rows)


def test_what_is_not_there_is_said_by_its_name(folder: Path) -> None:
    rows = find([f"{folder}/absent.mp4", f"{folder}/a.mp4", "s3://elsewhere/c.mp4"], STORES)
    assert [(row.id, row.error is None) for row in rows] == [
        (f"{folder}/absent.mp4", False),
        (f"{folder}/a.mp4", True),
        ("s3://elsewhere/c.mp4", False),
    ]
    assert (rows[0].error or "").startswith("missing: ")
    assert "configured store" in (rows[2].error or "")


@pytest.mark.processes
def test_a_named_file_needs_no_known_suffix(tmp_path: Path) -> None:
    path = write_video(tmp_path / "x.mp4", numbered(4, 64, 48)).rename(tmp_path / "upload")
    (row,) = probe(find([str(path)], STORES), Settings())
    assert (row.error, row.frame_count) == (None, 4)


@pytest.mark.processes
def test_probing_fills_in_the_facts_or_the_reason(folder: Path) -> None:
    found = {Path(row.id).name: row for row in probe(find([str(folder), f"{folder}/absent"], STORES), Settings())}
    assert (found["a.mp4"].frame_count, found["a.mp4"].last_frame, found["a.mp4"].width) == (8, 7, 64)
    assert (found["broken.mp4"].error or "").startswith("not_video: ")
    assert (found["absent"].error or "").startswith("missing: ")


def test_the_job_sees_clips_as_training_did(model_uri: str) -> None:
    _, model = open_model(STORES, model_uri)
    spec = job_of(model, model_uri, "file:///tmp/out")
    assert (spec.clip, spec.streams) == (model.clip, model.streams)
    assert spec.sampling.clips_per_video == model.clips_per_video
    assert spec.predictor is not None
    assert spec.predictor.model == model_uri
    assert spec.limits.dead_ratio == 1, "bad videos do not spoil the others"


def test_streams_without_a_say_are_not_extracted(model_uri: str) -> None:
    _, model = open_model(STORES, model_uri)
    rgb, flow = model.members
    alone = model.model_copy(
        update={"members": (rgb.model_copy(update={"weight": 1.0}), flow.model_copy(update={"weight": 0.0}))}
    )
    assert list(job_of(alone, model_uri, "file:///tmp/out").streams) == ["rgb"]


@pytest.mark.processes
def test_videos_of_which_none_can_be_read_need_no_job(folder: Path, model_uri: str) -> None:
    answers = classify_watched([f"{folder}/broken.mp4"], model_uri, Settings(), Console(file=io.StringIO()))
    assert not answers.complete
    (row,) = answers.rows
    assert (row.class_name, row.clips) == (None, 0)
    assert (row.error or "").startswith("not_video: ")


def test_without_a_model_nothing_is_read(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no model"):
        classify_watched([str(folder)], f"file://{tmp_path}", Settings(), Console(file=io.StringIO()))


ANSWERS = Answers(
    "file:///m",
    CLASSES,
    (
        Prediction("a.mp4", "up", 3, (0.1, 0.2, 0.7), None),
        Prediction("[b].mp4", None, 0, (), "truncated: ends early"),
        Prediction("c.mp4", "left", 1, (0.6, 0.3, 0.1), "damaged: frame 9"),
    ),
)


def test_answers_are_a_table() -> None:
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(table(ANSWERS, top=2))
    lines = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert lines == [
        ["video", "class", "score"],
        ["a.mp4", "up", "70.0", "%"],
        ["right", "20.0", "%"],
        ["[b].mp4", "truncated:", "ends", "early"],
        ["c.mp4", "left", "60.0", "%"],
        ["right", "30.0", "%"],
        ["from", "1", "clips", "only:", "damaged:", "frame", "9"],
    ]


def test_segments_of_a_video_are_shown_and_documented() -> None:
    rows = [VideoRow("a.mp4", "", "", "", 0, "", fps=25.0), VideoRow("c.mp4", "", "", "", 0, "", fps=10.0)]
    where = _where([StoredSegment("a.mp4", "up", 50, 99, 0.75)], rows)
    assert where == {"a.mp4": (Segment("up", 2.0, 4.0, 0.75),), "c.mp4": ()}
    answers = replace(ANSWERS, segments=where)
    first = document(answers, top=1)["videos"][0]
    assert first["segments"] == [{"class": "up", "start_s": 2.0, "end_s": 4.0, "score": 0.75}]
    console = Console(file=io.StringIO(), width=80, color_system=None)
    console.print(table(answers, top=1))
    assert "2.0 to 4.0 s: up" in console.file.getvalue()  # type: ignore[attr-defined]


def test_how_far_it_is_and_how_long_it_takes_are_shown() -> None:
    found = _progress(statuses.status(), 7)
    progress = statuses.status().progress
    assert progress.eta_s is not None
    assert found.startswith(f"classifying 7 videos: {progress.done} of {progress.total} clips, about ")
    assert found.endswith(" to go")


@pytest.mark.parametrize(
    ("look", "every_s"),
    [(Look(), None), (Look(segments=True), 1.0), (Look(segments=True, every_s=0.25), 0.25), (Look(every_s=2), 2.0)],
)
def test_clips_are_as_far_apart_as_asked(model_uri: str, look: Look, every_s: float | None) -> None:
    _, model = open_model(STORES, model_uri)
    spec = job_of(model, model_uri, "file:///tmp/out", look)
    assert spec.predictor is not None
    assert (spec.sampling.every_s, spec.predictor.segments) == (every_s, look.segments)
    assert spec.predictor.highlight is None


def test_a_highlight_goes_into_the_job(model_uri: str) -> None:
    _, model = open_model(STORES, model_uri)
    spec = job_of(model, model_uri, "file:///tmp/out", Look(highlight="contrast", floor=0.3))
    assert spec.predictor is not None
    assert spec.predictor.highlight == HighlightSpec(weight="contrast", floor=0.3)
    with refused("predictor.highlight.floor", "conflict"):
        job_of(model, model_uri, "file:///tmp/out", Look(floor=0.3))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--every", "often"], ("--every", "type")),
        (["--every", "0s"], ("--every", "range")),
        (["--highlight", "contrast", "--floor", "2"], ("--floor", "range")),
    ],
)
@pytest.mark.processes
def test_options_that_make_no_sense_are_refused(
    folder: Path, model_uri: str, options: list[str], said: Refusal
) -> None:
    with refused(*said):
        essp("predict", f"{folder}/a.mp4", "--model", model_uri, *options)


@pytest.mark.processes
def test_arguments_that_make_no_sense_are_refused(folder: Path, model_uri: str) -> None:
    with refused("every_s", "range"):
        predict(folder / "a.mp4", model_uri, every_s=0)
    with refused("floor", "range"):
        predict(folder / "a.mp4", model_uri, highlight="contrast", floor=2)


def test_answers_are_a_document() -> None:
    assert document(ANSWERS, top=1) == {
        "model": "file:///m",
        "videos": [
            {
                "video": "a.mp4",
                "class": "up",
                "top": [{"class": "up", "score": 0.7}],
                "clips": 3,
                "error": None,
                "segments": [],
            },
            {
                "video": "[b].mp4",
                "class": None,
                "top": [],
                "clips": 0,
                "error": "truncated: ends early",
                "segments": [],
            },
            {
                "video": "c.mp4",
                "class": "left",
                "top": [{"class": "left", "score": 0.6}],
                "clips": 1,
                "error": "damaged: frame 9",
                "segments": [],
            },
        ],
    }


def test_scores_become_answers_with_the_reason_for_what_is_missing() -> None:
    scores = VideoScores(("a", "c"), np.zeros(2, np.int32), np.array([[0.2, 0.8], [0.5, 0.5]]), ("x", "y"))
    rows = predictions(scores, {"a": 2, "c": 1}, {"b": "gone", "c": "damaged"})
    assert rows == [
        Prediction("a", "y", 2, (0.2, 0.8), None),
        Prediction("b", None, 0, (), "gone"),
        Prediction("c", "x", 1, (0.5, 0.5), "damaged"),
    ]


def test_the_class_of_an_answer_is_the_first_of_its_top_also_after_it_was_stored(tmp_path: Path) -> None:
    almost = 0.5 - 1e-12  # in single precision 0.5
    scores = VideoScores(("a",), np.zeros(1, np.int32), np.array([[almost, 1 - almost]]), ("x", "y"))
    store = DirectoryStore(str(tmp_path))
    write_predictions(store, "p", [predictions(scores, {"a": 1}, {})], scores.classes)
    [row], classes = read_predictions(store, "p")
    assert row.class_name == row.top(classes, 1)[0][0]


def test_answers_of_a_version_that_named_no_records_are_read(tmp_path: Path) -> None:
    store = DirectoryStore.from_url(tmp_path.as_uri())
    written = Prediction("train/000000000000", "y", 1, (0.25, 0.75), None, "cat.png")
    write_predictions(store, "p", [[written]], ("x", "y"))
    assert read_predictions(store, "p")[0] == [written]
    pq.write_table(pq.read_table(tmp_path / "p").drop_columns("name"), tmp_path / "p")
    assert read_predictions(store, "p") == ([replace(written, name=None)], ("x", "y"))
