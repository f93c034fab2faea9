"""The samples of a report: frames as the models see them, of each class, with a mistake."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from essp.api.features import compute_feature
from essp.catalog.build import file_row
from essp.report.facts import Run
from essp.report.folder import write_report
from essp.report.page import render
from essp.report.plots import LIGHT
from essp.report.samples import choose, code_shares, draw_samples, read_clip, read_samples
from essp_common.catalog.rows import VideoRow
from essp_common.errors import BadVideo
from essp_common.job.clip_spec import StreamSpec
from essp_common.job.feature_layout import DESCRIPTOR
from essp_engine.decoding.probing import Outcome
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import numbered, read_number, write_video
from tests.harness.finished_job import CLASSES, FinishedJob
from tests.unit.essp.report.pages import STORES, Page, pixels

pytestmark = [pytest.mark.slow, pytest.mark.lane("promises")]


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
    with pytest.raises(BadVideo, match="its index declares 64x96"):
        read_clip(job.spec, replace(row, width=64, unproven="pixels"), STORES)


def test_samples_are_spread_over_the_classes_and_show_the_worst_mistakes(run: Run) -> None:
    chosen = choose(run)
    assert len({int(c) for c in run.fused.class_id[chosen]}) == len(CLASSES)
    alone = Run(**{**vars(run), "fused": run.scores["rgb"]})
    wrong = np.flatnonzero(alone.predicted != alone.fused.class_id)
    worst = wrong[np.argsort(-alone.fused.probabilities[wrong].max(axis=1))][:3]
    assert set(choose(alone)) >= set(worst.tolist())
    assert len(choose(alone)) == len(set(choose(alone)))


def test_the_page_says_how_flow_uses_its_codes(run: Run, job: FinishedJob) -> None:
    """Its codes are 1 to 255, and 128 is no motion; every fourth row is looked at."""
    stream, positions = job.spec.streams["motion"], choose(run)
    clips = [read_clip(job.spec, run.videos[run.fused.video_id[position]], STORES) for position in positions]
    codes = np.concatenate([compute_feature(c, stream.feature, **stream.params)[:, ::4].ravel() for c in clips])
    (words,) = code_shares(read_samples(run, STORES, positions)).values()
    at_bound, still = np.mean((codes == 1) | (codes == 255)), np.mean(codes == 128)
    assert still > 0
    assert words.startswith(f"{100 * at_bound:.1f} % of its codes are at the bound (")
    assert words.endswith(f"), {100 * still:.0f} % show no motion")
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


def test_each_sample_is_a_row(run: Run) -> None:
    samples = read_samples(run, STORES, choose(run)[:2])
    assert pixels(draw_samples(samples[:1], LIGHT)).shape[0] < pixels(draw_samples(samples, LIGHT)).shape[0]
