"""The report: figures agree with the model's, pictures show the data, the page stands alone and escapes names."""

from __future__ import annotations

import base64
import dataclasses
import io
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.image import imread

from essp.api.features import compute_feature
from essp.catalog.build import file_row
from essp.catalog.probing import Outcome
from essp.report import folder, plots
from essp.report.facts import Run, read_run
from essp.report.folder import write_report
from essp.report.notes import PastRun
from essp.report.page import PAGE, render
from essp.report.plots import DARK, LIGHT
from essp.report.samples import choose, code_shares, draw_samples, read_clip, read_samples
from essp.report.sweeps import best_of_sweeps
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.artifacts import layout, scores
from essp_common.artifacts.history import History
from essp_common.artifacts.manifest import PhaseRecord, TakenChange
from essp_common.artifacts.scores import ScoreTable, VideoScores
from essp_common.cache.memory import MemoryCache
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import NotFound, PermanentError
from essp_common.job.clip_spec import StreamSpec
from essp_common.job.feature_layout import DESCRIPTOR
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import StopSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import HistoryEntry, HistorySegment, JobSnapshot, PhasePlan, RunStart
from essp_common.planning.position import Position
from essp_common.quantities import percent
from essp_common.records.chunk import Record
from essp_common.records.names import RecordNames
from essp_common.records.versions import DataSet
from essp_common.records.writer import Writer
from essp_common.video.probe import probe
from essp_common.video.synthetic import drifting, numbered, read_number, texture, write_video
from essp_common.wiring import Stores
from tests.harness.finished_job import CLASSES, JOB, VERSIONS, FinishedJob, finished_job, score_table, swept

pytestmark = pytest.mark.slow

STORES = Stores(("file:///",))
PURPOSES = ("train", "validation")
NOTHING = VideoScores((), np.zeros(0, np.int32), np.zeros((0, len(CLASSES))), CLASSES)


def fused(root: Path, catalog: str = "file:///absent.parquet", test: bool = True) -> FinishedJob:
    job = finished_job(root, catalog=catalog, test=test)
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES)
    return job


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> FinishedJob:
    """A finished job whose catalog has a real file for the first test video of each class."""
    root = tmp_path_factory.mktemp("report")
    catalog = f"file://{root}/catalog.parquet"
    job = fused(root / "run", catalog)
    rows = []
    for number, name in enumerate(CLASSES):
        path = root / f"{name}.mp4"
        write_video(path, drifting(texture(96, 72, number), 20, (3, 0)))
        facts = probe(str(path))
        file = VideoRow(f"test/{name}/0.mp4", f"file://{path}", name, "test", path.stat().st_size, "")
        rows.append(file_row(file, Outcome(file.uri, {f: getattr(facts, f) for f in facts.__slots__})))
    write_catalog(*STORES.resolve(catalog), Catalog(tuple(rows)))
    return job


@pytest.fixture(scope="module")
def run(job: FinishedJob) -> Run:
    return read_run(job.store, STORES)


@pytest.fixture(scope="module")
def written(job: FinishedJob) -> Page:
    """The page of the report that `job` has in its store."""
    write_report(job.store, STORES)
    return page_of(job)


class Page(HTMLParser):
    """The text, the tables and the references of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""
        self.references: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.references += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag, "every tag is closed, in order"

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.text += data
        if self.open and self.open[-1] in ("td", "th"):
            self.rows[-1][-1] += data

    def row(self, first: str) -> list[str]:
        return next(row for row in self.rows if row[0] == first)


def page_of(job: FinishedJob) -> Page:
    return Page(job.store.get("report/report.html").decode())


def test_the_folder_holds_the_page_and_its_pictures(job: FinishedJob, written: Page) -> None:
    keys = {info.key for info in job.store.list(layout.REPORT)}
    assert keys == {
        f"report/{name}" for name in ("report.html", "loss.png", "accuracy.png", "confusion.png", "samples.png")
    }
    first = {key: job.store.get(key) for key in keys}
    assert write_report(job.store, STORES) == f"{job.spec.output}/report/report.html"
    assert {key: job.store.get(key) for key in keys} == first, "made again, it is the same"


def test_the_page_stands_alone(job: FinishedJob, written: Page) -> None:
    assert written.open == []
    assert len(written.references) == 8, "four pictures, light and dark"
    assert all(reference.startswith("data:image/png;base64,") for reference in written.references)
    assert "http" not in re.sub(r"base64,[^\"]*", "", job.store.get("report/report.html").decode())


def test_the_figures_are_those_of_the_model(written: Page, run: Run) -> None:
    page = written
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


def test_the_page_says_that_few_videos_chose_the_strategy(written: Page, run: Run) -> None:
    assert run.model.doubt
    assert f"Note: {run.model.doubt}." in written.text


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


def test_without_a_test_split_the_report_is_of_validation(tmp_path: Path) -> None:
    job = fused(tmp_path, test=False)
    run = read_run(job.store, STORES)
    assert run.split == "validation"
    page = Page(render(run, {}, {}))
    assert "fused top-1, validation" in page.text
    assert {row[4] for row in page.rows if row[0] == "fused" and len(row) > 6} == {"validation"}


def test_without_a_catalog_there_are_no_samples_but_a_report(tmp_path: Path) -> None:
    job = fused(tmp_path)
    write_report(job.store, STORES)
    assert {info.key for info in job.store.list("report/samples")} == set()
    assert page_of(job).open == []


def test_a_job_that_has_not_completed_has_no_report(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="has not completed"):
        write_report(finished_job(tmp_path).store, STORES)


def test_a_folder_without_a_job_is_told_from_a_job_that_is_not_done(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"there is no file .*: give the output of a job"):
        write_report(DirectoryStore(str(tmp_path / "nowhere")), STORES)


def test_samples_are_the_frames_that_the_models_see(tmp_path: Path, job: FinishedJob) -> None:
    path = write_video(tmp_path / "n.mp4", numbered(40, 128, 96))
    facts = probe(str(path))
    file = VideoRow("n.mp4", f"file://{path}", "", "", 0, "")
    row = file_row(file, Outcome(file.uri, {f: getattr(facts, f) for f in facts.__slots__}))
    clip = read_clip(job.spec, row, STORES)
    assert clip.shape == (6, 48, 64, 3)
    assert [read_number(frame) for frame in clip] == [17, 18, 19, 20, 21, 22], "the middle of the video"
    of_the_end = job.spec.model_copy(update={"clip": job.spec.clip.model_copy(update={"part": (0.6, 1.0)})})
    clip = read_clip(of_the_end, row, STORES)
    assert [read_number(frame) for frame in clip] == [29, 30, 31, 32, 33, 34], "the middle of frames 24 to 39"


def test_samples_are_spread_over_the_classes_and_show_a_mistake(run: Run) -> None:
    chosen = choose(run)
    assert len({int(c) for c in run.fused.class_id[chosen]}) == len(CLASSES)
    alone = Run(**{**vars(run), "fused": run.scores["rgb"]})
    assert set(choose(alone)) & set(np.flatnonzero(alone.predicted != alone.fused.class_id).tolist())


def test_the_page_says_how_flow_uses_its_codes(run: Run, job: FinishedJob) -> None:
    """Its codes are 1 to 255, and 128 is no motion; every fourth row is looked at."""
    stream, positions = job.spec.streams["motion"], choose(run)
    clips = [read_clip(job.spec, run.videos[run.fused.video_id[position]], STORES) for position in positions]
    codes = np.concatenate([compute_feature(c, stream.feature, **stream.params)[:, ::4].ravel() for c in clips])
    (words,) = code_shares(read_samples(run, STORES, positions)).values()
    at_bound, still = np.mean((codes == 1) | (codes == 255)), np.mean(codes == 128)
    assert still > 0
    assert words.startswith(f"{100 * at_bound:.1f} % of its codes are at the bound (")
    assert words.endswith(f"), {100 * still:.0f} % are no motion")
    write_report(job.store, STORES)
    assert words in job.store.get("report/report.html").decode()


def test_samples_that_cannot_be_read_are_left_out(run: Run) -> None:
    positions = choose(run)
    samples = read_samples(run, STORES, positions)
    assert [s.label for s in samples] == list(CLASSES)
    assert all(list(s.features) == ["motion"] for s in samples)
    broken = {**run.videos}
    first = run.fused.video_id[positions[0]]
    broken[first] = VideoRow(first, "file:///gone.mp4", "", "test", 0, "")
    assert len(read_samples(Run(**{**vars(run), "videos": broken}), STORES, positions)) == len(samples) - 1


def test_a_stream_that_is_no_picture_is_not_drawn_and_the_page_says_so(run: Run) -> None:
    described = [
        member.model_copy(update={"model": member.model.model_copy(update={"layout": DESCRIPTOR})})
        if member.stream == "motion"
        else member
        for member in run.model.members
    ]
    streams = {**run.model.streams, "motion": StreamSpec(feature="hog", params={"length": 3})}
    model = run.model.model_copy(update={"members": tuple(described), "streams": streams})
    of_hog = replace(run, model=model)
    (sample,) = read_samples(of_hog, STORES, choose(run)[:1])
    assert not sample.features
    pictures = {"samples": (b"", b"")}
    assert "Stream motion is not drawn: hog describes a clip" in Page(render(of_hog, pictures, {})).text
    assert "is not drawn" not in Page(render(run, pictures, {})).text
    assert "is not drawn" not in Page(render(of_hog, {}, {})).text, "there are no samples at all"


def test_names_that_no_font_has_are_numbers_in_pictures_and_explained_once(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A private letter, which means nothing and is in no font."""
    strange = "\U000f1234"
    of_strange = replace(run, model=run.model.model_copy(update={"classes": (strange, *CLASSES[1:])}))
    samples = read_samples(of_strange, STORES, choose(run))
    assert [sample.label for sample in samples] == ["#0", *CLASSES[1:]]
    monkeypatch.setattr(folder, "read_run", lambda *_: of_strange)
    monkeypatch.setattr(folder, "read_samples", lambda *_: [])
    output = DirectoryStore(str(tmp_path))
    for name, explained in (("samples", 1), ("confusion", 1), ("loss", 0)):
        monkeypatch.setattr(folder, "draw", lambda *_, name=name: {name: (b"", b"")})
        write_report(output, STORES)
        page = Page(output.get(PAGE).decode())
        assert page.text.count("Classes by number") == explained
        assert (["#0", strange] in page.rows) == bool(explained)


def test_samples_of_clips_that_stand_for_themselves_are_those_that_were_judged(run: Run) -> None:
    position = choose(run)[0]
    video = run.fused.video_id[position]
    names = tuple(f"{video} frame {place}" for place in range(len(run.fused)))
    spans = run.spec.model_copy(update={"data": run.spec.data.model_copy(update={"targets": "spans"})})
    facts = {**vars(run), "spec": spans, "fused": replace(run.fused, video_id=names)}
    first, second = read_samples(Run(**facts), STORES, [0, 5])
    assert (first.video_id, second.video_id) == (names[0], names[5])
    whole = run.spec.model_copy(update={"clip": run.spec.clip.model_copy(update={"frames": 11})})
    row = replace(run.videos[video], first_frame=0, last_frame=10)
    frames = read_clip(whole, row, STORES)
    np.testing.assert_array_equal(first.clip, frames[:6])
    np.testing.assert_array_equal(second.clip, frames[5:])


def pixels(png: bytes) -> np.ndarray:
    return np.asarray(imread(io.BytesIO(png)))[..., :3]


def test_pictures_have_the_colours_of_their_theme(job: FinishedJob, written: Page) -> None:
    shown = [base64.b64decode(reference.partition(",")[2]) for reference in written.references]
    for dark, light in zip(shown[0::2], shown[1::2], strict=True):
        assert pixels(light)[0, 0] == pytest.approx([1, 1, 1])
        assert pixels(dark)[0, 0].max() < 0.2
    assert job.store.get("report/samples.png") in shown[1::2]


def test_each_sample_is_a_row(run: Run) -> None:
    samples = read_samples(run, STORES, choose(run)[:2])
    assert pixels(draw_samples(samples[:1], LIGHT)).shape[0] < pixels(draw_samples(samples, LIGHT)).shape[0]


def test_a_confusion_matrix_is_dark_where_the_videos_are() -> None:
    diagonal = plots.confusion(np.diag([5, 5, 5, 5]), CLASSES, LIGHT)
    nothing = plots.confusion(np.zeros((4, 4), np.int64), CLASSES, LIGHT)
    strong = np.array([0x08, 0x51, 0x9C]) / 255
    shares = [(np.abs(pixels(png) - strong).max(axis=2) < 0.02).mean() for png in (diagonal, nothing)]
    assert shares[0] > shares[1] + 0.05


@pytest.mark.parametrize("name", ["win_$5_to_$10", "$a^$", "cash $_$"])
def test_names_of_classes_are_no_formulas(run: Run, name: str) -> None:
    assert pixels(plots.confusion(np.eye(4, dtype=np.int64), [name, *CLASSES[1:]], LIGHT)).size
    samples = [replace(each, label=name) for each in read_samples(run, STORES, choose(run)[:1])]
    assert pixels(draw_samples(samples, LIGHT)).size


def test_a_confusion_matrix_of_many_classes_fits() -> None:
    classes = [f"class {i}" for i in range(101)]
    assert pixels(plots.confusion(np.eye(101, dtype=np.int64), classes, DARK)).shape[0] < 1200


def test_curves_need_only_what_is_there(run: Run) -> None:
    trained_only = {name: [r for r in records if r.purpose == "train"] for name, records in run.histories.items()}
    picture = plots.accuracy(trained_only, {}, LIGHT)
    assert pixels(picture).size
    assert plots.accuracy({"rgb": []}, {}, LIGHT) != picture
    assert plots.loss({"rgb": []}, LIGHT) != plots.loss(trained_only, LIGHT)


@pytest.mark.parametrize("epochs", [1, 2, 3, 40])
def test_epochs_are_counted_in_whole_numbers(epochs: int) -> None:
    history = [PhaseRecord(purpose="train", epoch=k, metrics={"loss": 1.0}) for k in range(epochs)]
    _, axes = plots._over_epochs({"rgb": history}, ("loss",), LIGHT, {})
    low, high = axes.get_xlim()
    ticks = [tick for tick in axes.get_xticks().tolist() if low <= tick <= high]
    assert ticks
    assert ticks == [round(tick) for tick in ticks]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_curves_of_a_large_sweep_are_as_high_and_told_apart(theme: plots.Theme) -> None:
    def drawn(trainers: int) -> np.ndarray:
        losses = {f"rgb-{i}": [1.0 + i, 0.5 + i] for i in range(trainers)}
        histories = {
            name: [PhaseRecord(purpose=p, epoch=e, metrics={"loss": v}) for p in PURPOSES for e, v in enumerate(values)]
            for name, values in losses.items()
        }
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return pixels(plots.loss(histories, theme))

    few, many = drawn(2), drawn(24)
    assert len(many) > len(few) + 22 * 20, "a row of the legend for each"
    for trainers in (1, 5, 6, 24):
        assert len(set(plots.line_colours(theme, trainers))) == trainers


def test_changes_of_the_running_job_are_marked_where_they_were_taken(run: Run) -> None:
    name = next(iter(run.histories))
    history = [PhaseRecord(purpose="train", epoch=epoch, metrics={"loss": 1.0, "clips": 8}) for epoch in range(2)]
    change = TakenChange(number=1, epoch=1, clip=2, fields={f"trainers.{name}.optimizer.lr": 0.5})
    assert plots.epochs_at(history, change) == 1.25
    assert plots.epochs_at(history, change.model_copy(update={"epoch": 9, "clip": 0})) == 9
    drawn = [plots.loss(run.histories, LIGHT, marked) for marked in ({}, {name: [change]})]
    assert drawn[0] != drawn[1]
    changed = dataclasses.replace(run, changes={name: (change,)})
    assert "changed while it ran" in Page(render(changed, {}, {})).text
    assert "changed while it ran" not in Page(render(run, {}, {})).text


@pytest.mark.parametrize("values", [[0.0], [0.0, 0.0], [1e-9, 0.0], [0.01, 2.0], [2.0, 2.0], [0.5], [0.1, 0.2, 9.0]])
def test_no_loss_is_below_zero(values: list[float], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plots, "png", lambda figure, theme: figure)
    history = [PhaseRecord(purpose="train", epoch=e, metrics={"loss": value}) for e, value in enumerate(values)]
    figure: Any = plots.loss({"rgb": history}, LIGHT)
    low, high = figure.axes[0].get_ylim()
    assert 0 <= low <= min(values)
    assert high > low
    assert high >= plots.bounds(values)[1]


def test_an_outlier_does_not_squash_the_curve() -> None:
    falling = [4.6 * 0.8**epoch for epoch in range(40)]
    assert plots.bounds(falling) == (falling[-1], falling[0], 0)
    assert plots.bounds([*falling, 500.0, 900.0]) == (falling[-1], falling[0], 2)
    assert plots.bounds([2.0, 2.0]) == (2.0, 2.0, 0)
    assert plots.bounds([float("nan"), float("inf")]) == (0.0, 1.0, 0)

    def highest(values: list[float]) -> float:
        """How far up the curve is in the first quarter of the picture."""
        history = [PhaseRecord(purpose="train", epoch=k, metrics={"loss": v}) for k, v in enumerate(values)]
        blue = np.abs(pixels(plots.loss({"rgb": history}, LIGHT)) - np.array([0x00, 0x72, 0xB2]) / 255).max(axis=2)
        rows = np.flatnonzero((blue < 0.1)[:, : blue.shape[1] // 4].any(axis=1))
        return 1 - int(rows[0]) / len(blue)

    assert highest([*falling, 500.0]) == pytest.approx(highest([*falling, falling[-1]]), abs=0.1)


def test_reports_of_earlier_runs_are_kept_and_linked(run: Run) -> None:
    began = datetime(2026, 5, 1, 12, 30, tzinfo=UTC)
    past = [PastRun(began, 3700.0, 1234, "run-1.html"), PastRun(began, 10.0, 5), PastRun(began, 20.0, 6)]
    page = Page(render(run, {}, {}, past))
    assert page.row("1") == ["1", "2026-05-01 12:30 UTC", "1 h 01 min", "1,234", ""]
    assert page.references == ["run-1.html"]
    assert page.row("2")[-1] == ""
    assert page.row("3")[-1] == "this one"
    assert "Runs of this job" not in render(run, {}, {}, past[:1])


def test_a_report_is_kept_when_the_job_has_run_again(tmp_path: Path) -> None:
    job = fused(tmp_path)
    write_report(job.store, STORES)
    first = job.store.get("report/report.html")
    segment = HistorySegment(first=1, last=1)
    snapshot = JobSnapshot(spec_json=job.spec.model_dump_json(), phases=[PhasePlan(clips=10)])
    start = {name: Position(0, 0).message() for name in job.spec.readers()}
    for time_ms in (1000, 2000):
        segment.entries.append(HistoryEntry(time_ms=time_ms, started=RunStart(snapshot=snapshot, start=start)))
    job.store.put("report/report.html", first.replace(b'"essp-runs" content="0"', b'"essp-runs" content="1"'))
    History(job.store).append(segment)
    for _ in range(2):
        write_report(job.store, STORES)
        assert "run-1.html" in page_of(job).references
    assert Page(job.store.get("report/run-1.html").decode()).text == Page(first.decode()).text


def test_a_job_of_an_earlier_version_has_a_report(tmp_path: Path) -> None:
    job = fused(tmp_path)
    text = job.store.get(layout.SPEC).decode()
    job.store.put(layout.SPEC, text.replace('"name":', '"a_field_that_is_no_more": 1, "name":', 1).encode())
    assert read_run(job.store, STORES).spec == job.spec


def test_members_that_a_sweep_does_not_keep_are_reported_and_not_fused(tmp_path: Path) -> None:
    job = swept(tmp_path, keep=1)
    job.store.put(layout.SPEC, job.spec.model_dump_json().encode())
    finals = final_checkpoints(job.store, job.spec)
    assert finals is not None
    model = assemble(job.store, MemoryCache(), JOB, job.spec, finals, STORES)
    told = read_run(job.store, STORES)
    assert told.scores.keys() == job.spec.trainers.keys()
    assert model.test is not None
    assert np.mean(told.predicted == told.fused.class_id) == pytest.approx(model.test.fused["top1"])
    text = Page(render(told, {}, {})).text
    assert all(name in text for name in job.spec.trainers)


def test_scores_that_the_model_takes_and_that_are_lost_are_named(tmp_path: Path) -> None:
    """Rather than fused from those that are left, which would be figures of no model."""
    job = fused(tmp_path)
    shutil.rmtree(tmp_path / "trainers" / "flow")
    with pytest.raises(NotFound, match=r"test scores that are gone; restore from a backup: file://.*/trainers/flow$"):
        read_run(job.store, STORES)


OTHERS: dict[str, Callable[[ScoreTable], ScoreTable]] = {
    "of another trainer": lambda _: score_table("flow", "test"),
    "of another split": lambda _: score_table("rgb", "validation"),
    "of other classes": lambda table: replace(table, classes=("w", "x", "y", "z")),
    "of other videos": lambda table: replace(table, video_id=tuple(f"other/{name}" for name in table.video_id)),
    "of no video": lambda table: table.at(np.arange(0)),
    "of half of the videos": lambda table: table.at(np.arange(len(table) // 2)),
    "without labels": lambda table: replace(table, class_id=np.full_like(table.class_id, -1)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_other_scores_than_those_of_the_model_are_named(tmp_path: Path, other: str) -> None:
    """Rather than shown beside figures that are not theirs."""
    job, key = fused(tmp_path), layout.scores("rgb", "test", 0)
    scores.write(job.store, key, OTHERS[other](score_table("rgb", "test")))
    with pytest.raises(PermanentError, match=f"{re.escape(job.store.uri(key))} holds other scores"):
        read_run(job.store, STORES)


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
