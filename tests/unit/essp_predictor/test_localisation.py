"""Where in a video a class is seen: runs that were planted are found, as mean average precision over overlaps tells."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp_common.artifacts.segments import Segment, read_segments, write_segments
from essp_common.errors import PermanentError
from essp_common.objects.directory import DirectoryStore
from essp_predictor.localisation import localise

CLASSES = ("dive", "jump", "run", "swim", "throw")
STEP, SPAN = 30, 11


def frames_of(clips: int) -> NDArray[np.int64]:
    first = np.arange(clips, dtype=np.int64) * STEP
    return np.stack([first, first + SPAN - 1], axis=1)


def planted(random: np.random.Generator, clips: int, noise: float) -> tuple[NDArray[np.float64], list[Segment]]:
    """Scores of a video in which some classes are seen for a while, and nothing in between; and where they are."""
    scores = np.full((clips, len(CLASSES)), 1 / len(CLASSES))
    truth, begin = [], int(random.integers(2, 8))
    while (end := begin + int(random.integers(4, 14))) < clips - 2:
        class_id = int(random.integers(len(CLASSES)))
        scores[begin:end] = 0.3 / (len(CLASSES) - 1)
        scores[begin:end, class_id] = 0.7
        truth.append(Segment("v", CLASSES[class_id], begin * STEP, end * STEP - 1, 1.0))
        begin = end + int(random.integers(6, 14))
    odds = scores * np.exp(noise * random.normal(size=scores.shape))
    return odds / odds.sum(axis=1, keepdims=True), truth


def overlap(a: Segment, b: Segment) -> float:
    """Intersection over union, counted frame by frame."""
    one, other = (set(range(s.first_frame, s.last_frame + 1)) for s in (a, b))
    return len(one & other) / len(one | other)


def mean_average_precision(found: list[list[Segment]], truth: list[list[Segment]], least: float) -> float:
    """As in ActivityNet's evaluation: each planted segment is matched once, by the surest that overlaps enough."""
    precisions = []
    for name in CLASSES:
        wanted = [(v, s) for v, segments in enumerate(truth) for s in segments if s.class_name == name]
        ranked = [(v, s) for v, segments in enumerate(found) for s in segments if s.class_name == name]
        ranked.sort(key=lambda entry: -entry[1].score)
        hits: list[int] = []
        for video, segment in ranked:
            near = [i for i, (v, s) in enumerate(wanted) if v == video and overlap(segment, s) >= least]
            hits.append(bool(near))
            if near:
                del wanted[near[0]]
        total = len(wanted) + sum(hits)
        right = np.cumsum(hits)
        precision = right / np.arange(1, len(hits) + 1)
        precisions.append(sum(precision[i:].max() for i, hit in enumerate(hits) if hit) / total if total else 1.0)
    return float(np.mean(precisions))


@pytest.mark.parametrize(("noise", "least", "expected"), [(0.0, 0.75, 0.99), (0.3, 0.5, 0.9), (0.6, 0.5, 0.45)])
def test_what_was_planted_is_found(noise: float, least: float, expected: float) -> None:
    random = np.random.Generator(np.random.Philox(9))
    videos = [planted(random, 80, noise) for _ in range(12)]
    found = [localise("v", scores, frames_of(80), CLASSES) for scores, _ in videos]
    truth = [segments for _, segments in videos]
    assert mean_average_precision(found, truth, least) > expected
    whole = [
        [Segment("v", name, 0, 80 * STEP, float(mean)) for name, mean in zip(CLASSES, scores.mean(axis=0), strict=True)]
        for scores, _ in videos
    ]
    assert mean_average_precision(whole, truth, least) == 0, "to say that it is somewhere is worth nothing"


def test_a_class_that_is_seen_throughout_is_the_whole_video() -> None:
    scores = np.tile(np.array([0.9, 0.1, 0, 0, 0]), (20, 1))
    [found] = localise("v", scores, frames_of(20), CLASSES)
    assert found == Segment("v", "dive", 0, 19 * STEP + SPAN - 1, found.score)
    assert found.score == pytest.approx(0.9)


def test_a_model_that_is_sure_of_nothing_finds_nothing() -> None:
    assert localise("v", np.full((30, 5), 0.19), frames_of(30), CLASSES) == []


def test_a_clip_speaks_for_the_frames_half_way_to_its_neighbours() -> None:
    scores = np.zeros((3, 5))
    scores[1, 2] = 1
    frames = np.array([[0, 9], [100, 109], [400, 409]])
    assert localise("v", scores, frames, CLASSES) == [Segment("v", "run", 55, 254, 1.0)]


def test_a_video_shorter_than_a_clip_ends_where_it_ends() -> None:
    """All clips of it are the same: they begin with it, and repeat its last frame."""
    scores = np.tile(np.array([0.9, 0.1, 0, 0, 0]), (4, 1))
    [found] = localise("v", scores, np.array([[0, 5]] * 4), CLASSES)
    assert (found.first_frame, found.last_frame) == (0, 5)


@given(st.integers(1, 40), st.integers(0, 2**32), st.floats(0.02, 2))
def test_segments_lie_within_the_video_and_those_of_one_class_apart(clips: int, seed: int, spread: float) -> None:
    scores = np.random.Generator(np.random.Philox(seed)).dirichlet(np.full(5, spread), clips)
    found = localise("v", scores, frames_of(clips), CLASSES)
    assert found == sorted(found, key=lambda s: -s.score)
    for number, segment in enumerate(found):
        assert 0 <= segment.first_frame <= segment.last_frame <= (clips - 1) * STEP + SPAN - 1
        assert 0.2 <= segment.score <= 1 + 1e-9
        for other in found[:number]:
            if other.class_name == segment.class_name:
                assert overlap(segment, other) <= 0.5


def test_runs_of_few_clips_are_all_tried() -> None:
    """Against each run of up to 256 clips in plain loops."""
    scores = np.random.Generator(np.random.Philox(1)).dirichlet(np.full(5, 0.3), 30)
    runs = []
    for label in range(5):
        found = []
        for begin in range(30):
            for end in range(begin + 1, 31):
                margin = -(-(end - begin) // 4)
                around = [*range(max(0, begin - margin), begin), *range(end, min(30, end + margin))]
                outer = scores[around, label].mean() if around else 0.0
                found.append((scores[begin:end, label].mean() - outer, begin, end))
        kept: list[tuple[float, int, int]] = []
        for contrast, begin, end in sorted(found, key=lambda run: (-round(run[0], 9), *run[1:])):
            common = [(min(end, e) - max(begin, b), min(end - begin, e - b)) for _, b, e in kept]
            if contrast >= 0.2 and all(shared <= 0.5 * shorter for shared, shorter in common):
                kept.append((contrast, begin, end))
        if scores[:, label].max() >= 0.2:
            runs += [(CLASSES[label], round(contrast, 6)) for contrast, _, _ in kept]
    told = [(s.class_name, round(s.score, 6)) for s in localise("v", scores, frames_of(30), CLASSES)]
    assert sorted(told) == sorted(runs)


@pytest.mark.parametrize("clips", [300, 5000, 9000])
def test_runs_of_any_length_are_found_in_videos_of_any_length(clips: int) -> None:
    """Their ends are right to a hundredth of their length."""
    random = np.random.Generator(np.random.Philox(clips))
    scores = np.full((clips, 5), 0.2)
    lengths = [length for length in (3, 20, 200, 700, 2500) if length < clips / 3]
    truth, begin = [], 30
    for label, length in enumerate(lengths):
        scores[begin : begin + length] = 0.05
        scores[begin : begin + length, label] = 0.8
        truth.append(Segment("v", CLASSES[label], begin * STEP, (begin + length) * STEP - 1, 1.0))
        begin += length + max(length // 3, 20)
    noise = scores * np.exp(0.3 * random.normal(size=scores.shape))
    found = localise("v", noise / noise.sum(axis=1, keepdims=True), frames_of(clips), CLASSES)
    for segment in truth:
        near = max((s for s in found if s.class_name == segment.class_name), key=lambda s: s.score)
        ends = ((near.first_frame, segment.first_frame), (near.last_frame, segment.last_frame))
        length = segment.last_frame - segment.first_frame + 1
        assert all(abs(told - there) <= STEP + 0.01 * length for told, there in ends), segment
    assert len(found) <= max(100, clips // 4)


def test_segments_are_kept_and_read_back(tmp_path: object) -> None:
    store = DirectoryStore.from_url(f"file://{tmp_path}")
    rows = [Segment("a", "run", 3, 9, 0.5), Segment("b", "dive", 0, 4, 0.25)]
    write_segments(store, "segments.parquet", iter([rows[:1], [], rows[1:]]))
    assert read_segments(store, "segments.parquet") == rows
    sink = io.BytesIO()
    pq.write_table(pa.table({"other": [1]}), sink)
    for damaged in (b"nothing of the kind", sink.getvalue()):
        store.put("segments.parquet", damaged)
        with pytest.raises(PermanentError, match="holds no segments"):
            read_segments(store, "segments.parquet")
