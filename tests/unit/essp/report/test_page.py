"""The page of a report: its figures agree with the model's, and it escapes names."""

from __future__ import annotations

import io
import re
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from essp.report import plots
from essp.report.facts import Run, read_run
from essp.report.notes import PastRun
from essp.report.page import render
from essp.report.plots import LIGHT
from essp.report.sweeps import best_of_sweeps
from essp_common.artifacts.manifest import PhaseRecord
from essp_common.artifacts.scores import VideoScores
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import StopSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.quantities import percent
from essp_common.records.chunk import Record
from essp_common.records.names import RecordNames
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from tests.harness.finished_job import CLASSES, VERSIONS
from tests.unit.essp.report.pages import STORES, Page, fused

pytestmark = pytest.mark.slow
NOTHING = VideoScores((), np.zeros(0, np.int32), np.zeros((0, len(CLASSES))), CLASSES)


def test_the_figures_are_those_of_the_model(run: Run) -> None:
    page = Page(render(run, {}, {}))
    evaluation = run.model.test
    assert evaluation is not None
    tested = {row[0]: row for row in page.rows if row[4:5] == ["test"]}
    for member in run.model.members:
        row = tested[member.trainer]
        assert row[1:4] == ["small", f"{member.weight:.3f}", str(member.epoch + 1)]
        assert row[5] == percent(evaluation.members[member.trainer]["top1"])
    assert tested["fused"][5] == percent(evaluation.fused["top1"])
    assert page.row("average")[1:3] == ["0.500", "0.500"]
    for name in CLASSES:
        label = CLASSES.index(name)
        of_class = run.fused.class_id == label
        assert page.row(name)[1] == str(of_class.sum())
        assert page.row(name)[4] == percent(float((run.predicted[of_class] == label).mean()))
    assert all(page.row(name) == [name, version] for name, version in VERSIONS.items())
    assert '"name": "two-stream"' in page.text, "the job as it ran"


def test_the_page_says_that_few_videos_chose_the_strategy(run: Run) -> None:
    assert run.model.doubt
    assert f"Note: {run.model.doubt}." in Page(render(run, {}, {})).text


def test_mistakes_are_listed_the_surest_first(tmp_path: Path) -> None:
    run = read_run(fused(tmp_path).store, STORES)
    alone = Run(**{**vars(run), "fused": run.scores["rgb"]})
    wrong = np.flatnonzero(alone.predicted != alone.fused.class_id)
    assert len(wrong) > 3
    page = Page(render(alone, {}, {}))
    listed = [row for row in page.rows if row[0] in alone.fused.video_id]
    assert {row[0] for row in listed} == {alone.fused.video_id[v] for v in wrong}
    assert f"{len(wrong)} of {len(alone.fused)} test videos" in page.text
    shown = [float(row[3].removesuffix(" %")) for row in listed]
    assert shown == sorted(shown, reverse=True)
    assert all(row[1] != row[2] for row in listed)


def test_what_matters_is_said_at_the_top(run: Run) -> None:
    page = Page(render(run, {}, {"time": "1 h 02 min"}))
    assert "100.0 %fused top-1, test (95 % interval: 83.9 to 100.0 %)" in page.text
    assert "40.0 %rgb, the best by itself" in page.text
    assert "1 h 02 mintaken by the run" in page.text
    assert run.model.test
    alone = run.model.test.model_copy(update={"members": {"rgb": run.model.test.members["rgb"]}})
    members = tuple(member for member in run.model.members if member.trainer == "rgb")
    model = run.model.model_copy(update={"test": alone, "validation": None, "members": members})
    assert "by itself" not in Page(render(replace(run, model=model), {}, {})).text, "there is no other"


def test_records_are_called_by_the_files_that_they_were_made_from(run: Run, tmp_path: Path) -> None:
    data_set = DataSet(DirectoryStore.from_url(tmp_path.as_uri()))
    with Writer(data_set, ()) as writer:
        for name in ("cat/0 <é>.png", ""):
            writer.add(Record(b"x", -1), name)
    data = run.spec.data.model_copy(update={"catalog": "", "records": tmp_path.as_uri(), "versions": {"train": 1}})
    known = {"train": RecordNames(data_set, data_set.version()[1])}
    run = replace(run, fused=run.scores["rgb"])
    wrong = int(np.flatnonzero(~run.fused.right)[0])
    ids = list(run.fused.video_id)
    ids[wrong] = "train/000000000000"
    records = replace(
        run,
        spec=run.spec.model_copy(update={"data": data}),
        names=known,
        fused=replace(run.fused, video_id=tuple(ids)),
    )
    assert records.called("train/000000000000") == "cat/0 <é>.png (record 0)"
    assert records.called("train/000000000001") == "train/000000000001", "it has no name"
    assert records.called("test/000000000000") == "test/000000000000", "its names are not known"
    page = render(records, {}, {})
    assert "cat/0 &lt;é&gt;.png (record 0)" in page
    assert "All figures are by record" in page
    assert "All figures are by video" in render(run, {}, {})
    assert run.called(run.fused.video_id[wrong]) == run.fused.video_id[wrong]


def test_of_so_few_classes_no_table_has_top_5(run: Run) -> None:
    assert len(run.model.classes) <= 5
    page = render(run, {}, {})
    assert "mean class" in page
    assert "top-5" not in page


def test_classes_that_are_taken_for_another_are_named(run: Run) -> None:
    """Two videos of the first class and three of the second are taken for the last one, and one for the third."""
    predicted = np.array([0, 3, 3, 3, 3, 3, 1, 2])
    label = np.array([0, 0, 0, 1, 1, 1, 1, 1], np.int32)
    names = tuple(f"{video}.mp4" for video in range(8))
    page = Page(render(replace(run, fused=VideoScores(names, label, np.eye(4)[predicted], CLASSES)), {}, {}))
    at = page.rows.index(["label", "taken for", "videos", "of thelabel's"])
    assert page.rows[at + 1 : at + 4] == [
        [CLASSES[1], CLASSES[3], "3", "60.0 %"],
        [CLASSES[0], CLASSES[3], "2", "66.7 %"],
        ["class", "videos", "rgb", "flow", "fused", ""],
    ], "once is chance, and stands below"
    assert "Most often taken" not in Page(render(run, {}, {})).text


def test_of_long_lists_the_first_rows_are_seen_at_once(run: Run) -> None:
    classes = tuple(f"class-{number:02}" for number in range(40))
    truth = np.arange(40, dtype=np.int32)
    scores_of = VideoScores(classes, truth, np.eye(40)[np.minimum(truth + 1, 39)], classes)
    model = run.model.model_copy(update={"classes": classes})
    page = render(replace(run, model=model, fused=scores_of, scores={}), {}, {})
    assert "10 classes more" in page
    assert "9 videos more" in page
    shown = [row[0] for row in Page(re.sub("<details>.*?</details>", "", page, flags=re.S)).rows]
    assert [name for name in classes if name in shown] == list(classes[:30])


def test_mistakes_about_labels_are_told_by_labels(run: Run) -> None:
    """A video has several, or, as a clip of a span of none, no label at all; then there is no score of it."""
    labels = np.zeros((2, len(CLASSES)), np.bool_)
    labels[0, [1, 3]] = True
    probabilities = np.array([[0.9, 0.2, 0.1, 0.6], [0.1, 0.2, 0.8, 0.3]])
    found = VideoScores(("two", "none"), np.array([1, 1], np.int32), probabilities, CLASSES, labels)
    model = run.model.model_copy(update={"independent": True})
    page = Page(render(replace(run, model=model, fused=found, scores={}), {}, {}))
    assert page.row("two") == ["two", f"{CLASSES[1]}, {CLASSES[3]}", CLASSES[0], percent(0.9), percent(0.6)]
    assert page.row("none") == ["none", "none", CLASSES[2], percent(0.8), ""]


def test_strategies_and_sweeps_are_shown_by_what_they_are_judged_by(run: Run) -> None:
    tried = run.model.strategies[0].model_copy(
        update={"name": "median", "params": {"of": "a&b"}, "validation": {"top1": 0.75, "mAP": 0.25, "log_loss": 1.0}}
    )
    pictures = {"sweeps": (b"", b"")}
    for independent, figure, words in ((False, 0.75, "top-1"), (True, 0.25, "mAP")):
        model = run.model.model_copy(update={"independent": independent, "strategies": (tried,)})
        page = Page(render(replace(run, model=model, fused=NOTHING), pictures, {}))
        assert percent(figure) in page.row(tried.label)
        assert f"{words} on the validation split, by video".lower() in page.text.lower()
        assert f"validation{words}" in page.text


def test_names_cannot_inject_markup(run: Run) -> None:
    evil = "<script>alert(1)</script>"
    classes = (evil, *CLASSES[1:])
    model = run.model.model_copy(update={"classes": classes})
    page = render(Run(**{**vars(run), "model": model}), {}, {evil: evil})
    assert evil not in page
    assert evil in Page(page).text


def test_a_training_that_resumed_from_rounded_numbers_is_named(run: Run) -> None:
    assert "approximate" not in render(run, {}, {})
    page = Page(render(Run(**{**vars(run), "approximate": {"rgb": (4, 2000)}}), {}, {}))
    assert "trainer rgb is approximate: it resumed from rounded numbers at step 4, 2,000" in page.text


def test_a_training_that_stopped_early_is_named(run: Run) -> None:
    """The same figures, epoch after epoch: none is better than the first."""
    assert "stopped early" not in render(run, {}, {})
    figures = {"video_top1": 0.5, "video_loss": 1.0, "loss": 1.0, "top1": 0.5}
    history = tuple(PhaseRecord(purpose="validation", epoch=epoch, metrics=figures) for epoch in range(3))
    trainer = run.spec.trainers["rgb"].model_copy(update={"stop": StopSpec(patience=2)})
    spec = run.spec.model_copy(update={"epochs": 9, "trainers": {**run.spec.trainers, "rgb": trainer}})
    stopped = Run(**{**vars(run), "spec": spec, "histories": {**run.histories, "rgb": history}})
    page = Page(render(stopped, {}, {}))
    assert "rgb stopped early, after epoch 3: its last 2 epochs were no better than epoch 1." in page.text


def test_reports_of_earlier_runs_are_kept_and_linked(run: Run) -> None:
    began = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    past = [PastRun(began, 3700.0, 1234, "run-1.html"), PastRun(began, 10.0, 5), PastRun(began, 20.0, 6)]
    page = Page(render(run, {}, {}, past))
    assert page.row("1") == ["1", "2026-05-01 12:30 UTC", "1 h 01 min", "1,234", ""]
    assert page.references == ["run-1.html"]
    assert page.row("2")[-1] == ""
    assert page.row("3")[-1] == "this one"
    assert "Runs of this job" not in render(run, {}, {}, past[:1])


def test_members_of_a_sweep_are_compared_and_the_best_is_named(run: Run) -> None:
    """By top-1 on validation, of equal ones by log loss, and of labels by mAP; a job without sweeps has no such
    part."""
    assert run.model.validation is not None
    document = run.spec.model_dump()
    document["trainers"]["lr"] = {"stream": "rgb", "sweep": {"optimizer.lr": [0.5, 0.25, 0.125]}}
    measured = dict(zip(("lr-1", "lr-2", "lr-3"), ((0.5, 0.9), (0.75, 0.8), (0.75, 0.7)), strict=True))
    members = {
        name: {**run.model.validation.fused, "top1": top1, "log_loss": loss} for name, (top1, loss) in measured.items()
    }
    validation = run.model.validation.model_copy(update={"members": {**run.model.validation.members, **members}})
    model = run.model.model_copy(update={"validation": validation})
    swept = replace(run, spec=JobSpec.model_validate(document), model=model)

    assert best_of_sweeps(swept) == (
        f"best of 3 in sweep lr: lr-3 (optimizer.lr 0.125), top-1 {percent(0.75)} on validation",
    )
    page = Page(render(swept, {}, {}))
    rows = [row[:3] for row in page.rows if row[0] in measured]
    assert rows == [
        ["lr-3", "0.125", percent(0.75)],
        ["lr-2", "0.25", percent(0.75)],
        ["lr-1", "0.5", percent(0.5)],
    ]
    labels = {name: {"top1": top1, "mAP": 1 - top1, "log_loss": loss} for name, (top1, loss) in measured.items()}
    validation = validation.model_copy(update={"members": {**validation.members, **labels}})
    of_labels = replace(swept, model=model.model_copy(update={"validation": validation}))
    assert best_of_sweeps(of_labels) == (
        f"best of 3 in sweep lr: lr-1 (optimizer.lr 0.5), mAP {percent(0.5)} on validation",
    )
    picture = plots.sweeps({"lr": [("lr-3", 0.75), ("lr-2", 0.75), ("lr-1", 0.5)]}, LIGHT)
    assert imread(io.BytesIO(picture)).std() > 0
    assert best_of_sweeps(run) == ()
    assert "Sweep" not in Page(render(run, {}, {})).text
