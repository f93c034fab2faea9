"""Answers from saved scores: those of whole videos, wherever parts end; a background class is never one of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.partial_scores import PartialScores, ScoredPart
from essp_common.artifacts.predictions import Prediction
from essp_common.artifacts.scores import ClipScores, ScoreTable, VideoScores, fuse
from essp_common.artifacts.segments import Segment
from essp_common.errors import PermanentError
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_predictor.answers import FusedAnswers
from essp_predictor.localisation import localise
from tests.lanes import across, often

CLASSES = ("jump", "nothing", "run")
VIDEOS = {"a": 3, "b": 40, "c": 1, "d": 17, "e": 2}
"""Video -> its clips."""
STEP, SPAN = 10, 6
SKIPPED = {(name, index) for name, indices in (("rgb", (4, 43)), ("flow", (43, 60, 61, 62))) for index in indices}
WEIGHTS = {"rgb": 0.25, "flow": 0.75}
Scores = dict[str, NDArray[np.float64]]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block is one clip."""
    monkeypatch.setattr(topics, "BLOCK_CLIPS", 1)


def job(**predictor: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "p",
            "output": "file:///out",
            "sampling": {"every_s": 1},
            "streams": {"flow": {"feature": "flow"}, "rgb": {}},
            "predictor": {"model": "file:///m", **predictor},
        }
    )


def model(background: str | None = None) -> FusedModel:
    return FusedModel(
        job="t", classes=CLASSES, background=background, clip=job().clip, clips_per_video=3, streams={}, members=(),
        strategy="weighted", rule="mean", strategies=(), validation=None, test=None, versions={},
    )  # fmt: skip


def scores() -> Scores:
    """Trainer -> `(clips, classes)` of all videos, one after the other; runs of clips are alike."""
    random = np.random.Generator(np.random.Philox(3))
    clips = sum(VIDEOS.values())
    return {name: np.repeat(random.dirichlet([0.4] * 3, -(-clips // 5)), 5, axis=0)[:clips] for name in WEIGHTS}


def answers(root: Path, spec: JobSpec, of: FusedModel, part_clips: int) -> FusedAnswers:
    """Of scores that are saved in parts of so many clips."""
    saved = PartialScores(DirectoryStore(str(root / f"{part_clips}")), spec, 0, of)
    video_of = [video for video, clips in VIDEOS.items() for _ in range(clips)]
    place = [number for clips in VIDEOS.values() for number in range(clips)]
    for name, rows in scores().items():
        for start in range(0, len(rows), part_clips):
            stop = min(start + part_clips, len(rows))
            kept = np.array([i for i in range(start, stop) if (name, i) not in SKIPPED], dtype=np.int64)
            missing = {i: (video_of[i], "damaged") for i in range(start, stop) if (name, i) in SKIPPED}
            names, labels = tuple(video_of[i] for i in kept), np.full(len(kept), -1, np.int32)
            table = ScoreTable(names, labels, kept, rows[kept].astype(np.float32), CLASSES)
            frames = {i: (place[i] * STEP, place[i] * STEP + SPAN - 1) for i in kept.tolist()}
            saved.save(name, range(start, stop), ScoredPart({name: table} if len(kept) else {}, missing, frames))

    def fused(parts: Mapping[str, ClipScores]) -> VideoScores:
        return fuse({n: p.means for n, p in parts.items()}, WEIGHTS, "mean")

    return FusedAnswers(saved, spec, of, fused, len(video_of), together=part_clips)


def said(root: Path, spec: JobSpec, of: FusedModel, part_clips: int) -> tuple[list[Prediction], list[Segment]]:
    made = answers(root, spec, of, part_clips)
    return [row for part in made.predictions() for row in part], [row for part in made.segments() for row in part]


@pytest.mark.parametrize(
    ("part_clips", "weight"), often(across([1, 43, 7, 62, 2], [None, "contrast", "actionness"]), 4)
)
def test_where_parts_end_makes_no_difference(tmp_path: Path, part_clips: int, weight: str | None) -> None:
    highlight = None if weight is None else {"weight": weight}
    spec, of = job(highlight=highlight), model(background="nothing")
    whole = said(tmp_path, spec, of, 63)
    assert said(tmp_path, spec, of, part_clips) == whole
    predictions, _ = whole
    assert [row.video_id for row in predictions] == list(VIDEOS)
    assert [row.clips for row in predictions] == [3, 40, 0, 17, 2]
    assert [row.error for row in predictions] == [None, "damaged", "damaged", "damaged", "damaged"]


DEEP = b"[" * 100_000


def instead(odd: object) -> Callable[[dict[str, Any]], object]:
    return lambda rest: odd


def without(name: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda rest: {key: value for key, value in rest.items() if key != name}


@pytest.mark.parametrize(
    "change",
    [
        *map(instead, (None, [], {}, "x", 3)),
        without("missing"),
        without("frames"),
        *(lambda rest, odd=odd: rest | {"missing": odd} for odd in ({"a": 3}, [[1, "a"]], [[1, None, "gone"]])),
        *(lambda rest, odd=odd: rest | {"frames": odd} for odd in ([], [1], [[0, 1]], [[0, None, 3]], [[7, 0, 5]])),
    ],
)
def test_what_is_damaged_of_a_part_is_named_with_what_to_do(tmp_path: Path, change: Callable[[Any], Any]) -> None:
    made = answers(tmp_path, job(), model(), 7)
    store = DirectoryStore(str(tmp_path / "7"))
    [done, *_] = sorted(info.key for info in store.list(layout.PARTS) if info.key.endswith("done.json"))
    store.put(done, json.dumps(change(json.loads(store.get(done)))).encode())
    with pytest.raises(PermanentError, match=f"{re.escape(store.uri(done))} .*start the job again"):
        list(made.predictions())


@pytest.mark.parametrize("damage", [b"", b"{", DEEP, b"\xff"])
@pytest.mark.parametrize("name", ["done.json", "rgb.parquet"])
def test_bytes_that_are_no_part_are_named_with_what_to_do(tmp_path: Path, name: str, damage: bytes) -> None:
    made = answers(tmp_path, job(), model(), 7)
    store = DirectoryStore(str(tmp_path / "7"))
    key = next(info.key for info in store.list(layout.PARTS) if info.key.endswith(name))
    store.put(key, damage)
    done = re.escape(store.uri(f"{key.rpartition('/')[0]}/done.json"))
    with pytest.raises(PermanentError, match=f"{re.escape(key)} .*remove {done} and start the job again"):
        list(made.predictions())


def test_the_table_of_another_part_is_not_taken(tmp_path: Path) -> None:
    made = answers(tmp_path, job(), model(), 7)
    store = DirectoryStore(str(tmp_path / "7"))
    first, second, *_ = sorted(info.key for info in store.list(layout.PARTS) if info.key.endswith("rgb.parquet"))
    store.put(first, store.get(second))
    with pytest.raises(PermanentError, match="has other clips than the other tables"):
        list(made.predictions())


def test_what_people_leave_beside_parts_does_not_matter(tmp_path: Path) -> None:
    whole = said(tmp_path, job(), model(), 63)
    made = answers(tmp_path, job(), model(), 7)
    store = DirectoryStore(str(tmp_path / "7"))
    for info in list(store.list(layout.PARTS)):
        store.put(f"{info.key.rpartition('/')[0]}/.DS_Store", b"x")
    assert [row for part in made.predictions() for row in part] == whole[0]


def test_scores_are_the_fused_means_and_segments_those_of_fused_clips(tmp_path: Path) -> None:
    predictions, segments = said(tmp_path, job(), model(), 13)
    own = {name: rows[3:43].astype(np.float32).astype(np.float64) for name, rows in scores().items()}
    rgb = np.delete(own["rgb"], 1, axis=0)  # clip 4 of all is skipped
    assert predictions[1].scores == pytest.approx(0.25 * rgb.mean(axis=0) + 0.75 * own["flow"].mean(axis=0))
    clips = 0.25 * own["rgb"] + 0.75 * own["flow"]
    clips[1] = own["flow"][1]
    first = np.arange(40) * STEP
    found = localise("b", clips, np.stack([first, first + SPAN - 1], axis=1), CLASSES)
    assert found
    of_b = [segment for segment in segments if segment.video_id == "b"]
    assert [(s.class_name, s.first_frame, s.last_frame) for s in of_b] == [
        (s.class_name, s.first_frame, s.last_frame) for s in found
    ]


def test_no_video_is_answered_with_the_background(tmp_path: Path) -> None:
    plain, segments = said(tmp_path, job(), model(), 63)
    assert {row.class_name for row in plain} >= {"nothing"}
    assert "nothing" in {segment.class_name for segment in segments}
    spec, of = job(), model(background="nothing")
    assert answers(tmp_path, spec, of, 63).classes == ("jump", "run")
    predictions, segments = said(tmp_path, spec, of, 63)
    assert "nothing" not in {segment.class_name for segment in segments}
    for row, before in zip(predictions, plain, strict=True):
        if before.class_name is None:
            assert row == before
            continue
        jump, _, run = before.scores
        assert row.scores == pytest.approx((jump / (jump + run), run / (jump + run)))
        assert row.class_name == ("jump" if jump > run else "run")


def test_a_video_that_is_nothing_but_background_may_be_of_any_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nothing = np.tile([0.0, 1.0, 0.0], (sum(VIDEOS.values()), 1))
    monkeypatch.setattr(f"{__name__}.scores", lambda: {"rgb": nothing, "flow": nothing})
    predictions, segments = said(tmp_path, job(), model(background="nothing"), 63)
    assert {row.scores for row in predictions} == {(), (0.5, 0.5)}
    assert not segments


def test_highlights_change_the_means_alone(tmp_path: Path) -> None:
    of = model(background="nothing")
    plain, segments = said(tmp_path, job(), of, 20)
    for floor, same in ((1.0, True), (0.1, False)):
        found, where = said(tmp_path, job(highlight={"weight": "actionness", "floor": floor}), of, 20)
        assert where == segments
        equal = [row.scores == pytest.approx(before.scores) for row, before in zip(found, plain, strict=True)]
        assert all(equal) == same


def test_blocks_are_read_in_order_from_whatever_parts_hold_them(tmp_path: Path) -> None:
    """Predictors save what they have scored, in any order, and after one has died, two may have saved the same."""
    saved = PartialScores(DirectoryStore(str(tmp_path)), job(), 0, model())

    def scored(blocks: list[int]) -> ScoredPart:
        rows = np.array(blocks, dtype=np.int64)
        shown = np.full((len(rows), 3), 1 / 3, np.float32)
        table = ScoreTable(tuple(f"v{i}" for i in blocks), np.full(len(rows), -1, np.int32), rows, shown, CLASSES)
        return ScoredPart({"rgb": table}, {}, {i: (i, i) for i in blocks})

    for blocks in ([1, 3, 4], [0], [2, 3, 7]):
        saved.save("rgb", blocks, scored(blocks))
    (tmp_path / "predictor" / "notes").mkdir()
    found = saved.saved("rgb")
    assert (sorted(found.blocks), found.stop(8), found.stop(4)) == ([0, 1, 2, 3, 4, 7], 5, 4)
    assert [list(part.frames) for part in saved.read_blocks("rgb", found, range(5))] == [[0], [1], [2], [3], [4]]
