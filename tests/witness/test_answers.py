"""Evaluation, fusion and prediction against an independent witness: `answers.py` shares only plan and weights."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import essp_predictor.tasks as predictor
from essp.api.prediction import Look, find, job_of, probe
from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp.report.facts import read_run
from essp_common.artifacts import checkpoint, scores
from essp_common.artifacts.figures import confusion
from essp_common.artifacts.fused_model import FusedModel, open_model, write_model
from essp_common.artifacts.predictions import Prediction, write_predictions
from essp_common.artifacts.segments import Segment, write_segments
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import TEST, VALIDATION
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.learning.models import restore
from essp_engine.planning.phases import Phases
from essp_engine.planning.planned_clip import Plan
from essp_engine.video.synthetic import Encoding, drifting, texture, write_video
from tests.harness.command_line import essp
from tests.harness.embedded_jobs import complete
from tests.harness.rounding import STORED, in_double_precision
from tests.lanes import often
from tests.witness import answers, loop

CLOSE = 1e-9
STORES = Stores(("file:///",))
GEOMETRY = answers.Geometry(frames=5, stride=2, short_side=40)
CLASSES = {"down": (0, 2), "left": (-2, 0), "right": (2, 0), "still": (0, 0), "up": (0, -2), "zigzag": (2, 2)}
FILES = (
    ("mp4", (96, 64), Encoding(gop=8, bframes=2)),
    ("avi", (64, 96), Encoding(codec="mpeg4", gop=8)),
    ("mov", (96, 72), Encoding(gop=8, rotation=90)),
    ("mkv", (80, 80), Encoding(gop=8, intervals=(1, 1, 3), start_s=0.4)),
)
"""Wide, high, turned, and square with a varying rate."""
STREAMS: dict[str, dict[str, Any]] = {
    "rgb": {"params": {"frames": 3}},
    "stack": {"feature": "frame_stack", "params": {"length": 3}},
    "diff": {"feature": "frame_diff", "params": {"length": 2}},
    "flow": {"feature": "flow", "params": {"preset": "fast", "length": 2, "bound": 0.1}, "codec": {"name": "zstd"}},
    "both": {"feature": "flow_bidirectional", "params": {"method": "farneback", "length": 4, "bound": 0.05}},
}
TRAINERS: dict[str, dict[str, Any]] = {
    "centre": {"stream": "rgb", "augment": {"crop": 32}},
    "along": {"stream": "rgb", "augment": {"crop": 24, "evaluation_scale": 1.0, "evaluation_crops": 3}},
    "corners": {"stream": "rgb", "ema": 0.5, "augment": {"crop": 32, "evaluation_scale": 0.7, "evaluation_crops": 10}},
    "imagenet": {"stream": "rgb", "model": "mobilenet_v3_small", "augment": {"crop": 32, "evaluation_crops": 3}},
    "stack": {"stream": "stack", "augment": {"crop": 32, "evaluation_crops": 10}},
    "diff": {"stream": "diff", "augment": {"crop": 32, "evaluation_crops": 10}},
    "flow": {"stream": "flow", "augment": {"crop": 32, "evaluation_crops": 10}},
    "flow_along": {"stream": "flow", "augment": {"crop": 32, "evaluation_scale": 0.66, "evaluation_crops": 3}},
    "both": {"stream": "both", "augment": {"crop": 40, "evaluation_scale": 1.0, "evaluation_crops": 10}},
}
EVERYDAY = ("corners", "imagenet", "flow_along")
"""Averaged weights, a network of pictures, and flow. The test split of all is looked at in any case."""


def make_videos(root: Path) -> None:
    """Six classes in files of all kinds. Some classes have fewer test videos than others, and one has none."""
    for split, counts in (("train", [1] * 6), ("validation", [2] * 6), ("test", [3, 2, 1, 0, 2, 1])):
        for number, (name, count) in enumerate(zip(CLASSES, counts, strict=True)):
            for take in range(count):
                suffix, size, encoding = FILES[(number + take) % len(FILES)]
                path = root / split / name / f"{take}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                picture = texture(*size, 100 * len(split) + 10 * number + take)
                write_video(path, drifting(picture, 24 + take, CLASSES[name]), encoding)


def job_on(root: Path) -> JobSpec:
    """One trainer for each way to look at a clip."""
    make_videos(root / "videos")
    build(f"file://{root}/videos", f"file://{root}/catalog.parquet", ("file:///",), BuildOptions("folders"))
    own: dict[str, Any] = {
        "batch_size": 4,
        "threads": 1,
        "checkpoint": {"keep": 9, "parallel": "thread"},
        "optimizer": {"lr": 0.02},
    }
    return JobSpec.model_validate(
        {
            "name": "answers",
            "output": f"file://{root}/out",
            "data": {"catalog": f"file://{root}/catalog.parquet"},
            "clip": {
                "frames": GEOMETRY.frames,
                "stride": GEOMETRY.stride,
                "resize": {"mode": "short_side", "height": GEOMETRY.short_side, "interpolation": "bicubic"},
            },
            "sampling": {"clips_per_epoch": 8, "clips_per_video": 2, "seed": 3},
            "streams": STREAMS,
            "trainers": {name: own | trainer for name, trainer in TRAINERS.items()},
            "epochs": 2,
            "limits": {"coupled": True},
        }
    )


class Answered:
    """A finished job: what it says, and what the witness needs to say the same."""

    def __init__(self, spec: JobSpec) -> None:
        self.spec = spec
        self.store = STORES.under(spec.output)
        self._phases = Phases(spec, read_catalog(*STORES.resolve(spec.data.catalog)))
        self._rows: dict[tuple[str, int, bytes], answers.Rows] = {}

    def clips(self, purpose: int) -> list[loop.Clip]:
        """The plan of a phase."""
        number = self._phases.order.index((purpose, 0))
        return planned(self._phases.plan(number), [row.uri for row in self._phases.view(number).rows])

    def member(self, name: str, step: int) -> answers.Member:
        """A trainer as the job describes it, with the weights of one checkpoint."""
        trainer = self.spec.trainers[name]
        stream, seen = self.spec.streams[trainer.stream], trainer.augment
        with in_double_precision():
            weights = restore(self.store, checkpoint.read(self.store, name, step)).state_dict().values()
        kind = (trainer.model, list(weights), len(CLASSES), stream.feature, stream.params)
        return answers.Member(*kind, seen.crop, seen.evaluation_scale, seen.evaluation_crops)

    def rows(self, name: str, purpose: int, step: int | None = None) -> answers.Rows:
        """The witness's scores of each clip, by the weights of a checkpoint, or by the final ones.

        The final ones are those of the best epoch, so they are not scored twice.
        """
        member = self.member(name, checkpoint.steps(self.store, name)[-1] if step is None else step)
        weights = hashlib.sha256(b"".join(tensor.numpy().tobytes() for tensor in member.weights)).digest()
        if (name, purpose, weights) not in self._rows:
            self._rows[name, purpose, weights] = answers.probabilities(member, self.clips(purpose), GEOMETRY)
        return self._rows[name, purpose, weights]


def planned(plan: Plan, uris: Sequence[str]) -> list[loop.Clip]:
    """The clips of a plan."""
    clips = [plan.clip(index) for index in range(len(plan))]
    return [loop.Clip(uris[c.video].removeprefix("file://"), c.class_id, c.first_frame) for c in clips]


def by_clip_and_video(clips: Sequence[loop.Clip], rows: answers.Rows) -> dict[str, float]:
    """The figures of a phase."""
    labels, means = videos_of(clips, rows)
    by_video = answers.figures(labels, means)
    by_clip = answers.figures(np.array([clip.label for clip in clips]), rows)
    return by_clip | {f"video_{name}": value for name, value in by_video.items()}


def videos_of(clips: Sequence[loop.Clip], rows: answers.Rows) -> tuple[Any, answers.Rows]:
    """Labels and scores by video, in the order of their paths."""
    found = [pair for _, pair in sorted(answers.by_video(clips, rows).items())]
    return np.array([label for label, _ in found]), np.stack([row for _, row in found])


@pytest.fixture(scope="module")
def answered(tmp_path_factory: pytest.TempPathFactory) -> Answered:
    """All trainers, trained and evaluated in one job in double precision."""
    spec = job_on(tmp_path_factory.mktemp("answers"))
    with in_double_precision(), Embedded(spec, Settings()) as job:
        complete(job)
    return Answered(spec)


@pytest.mark.processes
@pytest.mark.parametrize("name", often(sorted(TRAINERS, key=lambda name: name not in EVERYDAY), len(EVERYDAY)))
def test_an_independent_evaluation_gives_the_same_figures_after_each_epoch(answered: Answered, name: str) -> None:
    final = checkpoint.read_latest(answered.store, name)
    assert final is not None
    trained = [step for step in checkpoint.steps(answered.store, name) if step < final.step]
    validated = [record.metrics for record in final.history if record.purpose == "validation"]
    assert len(trained) == len(validated) == answered.spec.epochs
    clips = answered.clips(VALIDATION)
    for step, found in zip(trained, validated, strict=True):
        expected = by_clip_and_video(clips, answered.rows(name, VALIDATION, step))
        assert {figure: found[figure] for figure in expected} == pytest.approx(expected, rel=CLOSE, abs=CLOSE)


@pytest.mark.processes
@pytest.mark.parametrize("name", TRAINERS)
def test_an_independent_evaluation_gives_the_same_test(answered: Answered, name: str) -> None:
    """Every score of every clip, and the figures."""
    final = checkpoint.read_latest(answered.store, name)
    assert final is not None
    clips = answered.clips(TEST)
    rows = answered.rows(name, TEST)
    table = scores.read(answered.store, final.scores["test"])
    assert table.clip_index.tolist() == list(range(len(clips)))
    np.testing.assert_allclose(table.probabilities, rows, rtol=CLOSE, atol=CLOSE)
    [found] = [record.metrics for record in final.history if record.purpose == "test"]
    expected = by_clip_and_video(clips, rows)
    assert {figure: found[figure] for figure in expected} == pytest.approx(expected, rel=CLOSE, abs=CLOSE)


@pytest.mark.processes
def test_an_independent_fusion_gives_the_same_figures(answered: Answered) -> None:
    """Of the model, with its weights, by trainer and fused; and by class, as the report tells them."""
    _, model = open_model(STORES, answered.spec.output)
    for purpose, found in ((VALIDATION, model.validation), (TEST, model.test)):
        assert found is not None
        parts = {name: videos_of(answered.clips(purpose), answered.rows(name, purpose)) for name in TRAINERS}
        labels = next(iter(parts.values()))[0]
        assert model.rule is not None
        rows = answers.fused([row for _, row in parts.values()], [model.weights[name] for name in parts], model.rule)
        for figures, own in ((found.fused, rows), *((found.members[name], parts[name][1]) for name in parts)):
            expected = answers.figures(labels, own)
            assert {**figures, "loss": figures["log_loss"]} == pytest.approx(
                {**expected, "log_loss": expected["loss"]}, rel=CLOSE, abs=CLOSE
            )
    run = read_run(answered.store, STORES)
    counts = np.zeros((len(CLASSES), len(CLASSES)), int)
    for label, row in zip(labels, rows, strict=True):
        counts[label, row.argmax()] += 1
    np.testing.assert_array_equal(confusion(run.fused.class_id, run.fused.probabilities), counts)


ENSEMBLES: dict[str, tuple[str, dict[str, float], int]] = {
    "one_centre": ("mean", {"centre": 1.0}, 2),
    "mean": ("mean", {"corners": 0.3, "both": 0.6, "diff": 0.1, "flow": 0.0}, 3),
    "product": ("product", {"along": 0.2, "imagenet": 0.3, "flow": 0.1, "flow_along": 0.4}, 1),
}
"""Rule, weights and clips of each video."""


def ensemble(answered: Answered, name: str) -> FusedModel:
    """A model of some of the trainers, written into a folder of its own."""
    rule, weights, clips = ENSEMBLES[name]
    folder, made = open_model(STORES, answered.spec.output)
    members = tuple(m.model_copy(update={"weight": weights[m.trainer]}) for m in made.members if m.trainer in weights)
    model = made.model_copy(update={"rule": rule, "members": members, "clips_per_video": clips})
    store = STORES.under(f"{answered.spec.output}/ensembles/{name}")
    for member in members:
        store.put(f"model/{member.file}", folder.get(member.file))
    write_model(store, model)
    return model


class Said:
    """What a predict job says before it is stored in single precision."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.predictions: list[Prediction] = []
        self.segments: list[Segment] = []
        patch.setattr(predictor, "write_predictions", self._predictions)
        patch.setattr(predictor, "write_segments", self._segments)

    def _predictions(
        self, store: ObjectStore, key: str, parts: Iterable[Sequence[Prediction]], classes: Sequence[str]
    ) -> None:
        found = list(parts)
        self.predictions = [row for part in found for row in part]
        write_predictions(store, key, found, classes)

    def _segments(self, store: ObjectStore, key: str, parts: Iterable[Sequence[Segment]]) -> None:
        found = list(parts)
        self.segments = [row for part in found for row in part]
        write_segments(store, key, found)


@pytest.mark.processes
@pytest.mark.parametrize(("name", "every_s"), often([("product", 0.11), ("mean", None), ("one_centre", None)], 2))
def test_an_independent_prediction_gives_the_same_answers(
    answered: Answered, name: str, every_s: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of `essp predict`, on trimmed videos, on one shorter than a clip, and on one that shows several classes."""
    model = ensemble(answered, name)
    uri, folder = f"{answered.spec.output}/ensembles/{name}", answered.spec.output.removeprefix("file://")
    said = Said(monkeypatch)
    extra = untrimmed(Path(folder).parent)
    given = [str(Path(folder).parent / "videos" / "test" / "left"), *map(str, extra)]
    options = ["--json", "--top", "4", *(["--segments", "--every", f"{every_s}s"] if every_s else [])]
    with in_double_precision():
        done = essp("predict", *given, "--model", uri.removeprefix("file://"), *options)
    assert done.exit_code == 0, done.output
    shown = json.loads(done.stdout)["videos"]

    rows = probe(find(given, STORES), Settings())
    assert [video["video"] for video in shown] == [row.id for row in rows]
    look = Look(segments=every_s is not None, every_s=every_s)
    phases = Phases(job_of(model, uri, "file:///nowhere", look), Catalog(tuple(rows)))
    order = [row.id for row in phases.view(0).rows]
    clips = planned(phases.plan(0), [row.uri for row in phases.view(0).rows])
    paths = [clip.path for clip in clips]
    edges = np.cumsum([0, *(paths.count(path) for path in dict.fromkeys(paths))])
    own = dict(zip(order, map(slice, edges[:-1], edges[1:]), strict=True))
    rule, weights, per_video = ENSEMBLES[name]
    if every_s is None:
        assert set(np.diff(edges)) == {per_video}
    else:
        assert len(set(np.diff(edges))) > 1, "longer videos have more clips"
    deciding = {trainer: weight for trainer, weight in weights.items() if weight}
    final = {trainer: checkpoint.steps(answered.store, trainer)[-1] for trainer in deciding}
    members = [answered.member(trainer, step) for trainer, step in final.items()]
    by_clip = [answers.probabilities(member, clips, GEOMETRY) for member in members]
    means = [np.stack([part[clips].mean(axis=0) for clips in own.values()]) for part in by_clip]
    expected = answers.fused(means, list(deciding.values()), rule)

    found = {row.video_id: row for row in said.predictions}
    np.testing.assert_allclose([found[video].scores for video in order], expected, rtol=CLOSE, atol=CLOSE)
    for video in shown:
        row = expected[order.index(video["video"])]
        best = np.argsort(-row)[:4]
        assert video["class"] == video["top"][0]["class"]
        assert video["clips"] == len(paths[own[video["video"]]])
        assert [top["class"] for top in video["top"]] == [list(CLASSES)[c] for c in best]
        assert [top["score"] for top in video["top"]] == pytest.approx(row[best], rel=STORED)

    if every_s is not None:
        windows = answers.fused(by_clip, list(deciding.values()), rule)
        for video, at in own.items():
            starts = [clip.first_frame for clip in clips[at]]
            _, seconds = answers.video(video, GEOMETRY.short_side)
            span = (GEOMETRY.frames - 1) * GEOMETRY.stride
            frames = [(first, min(first + span, len(seconds) - 1)) for first in starts]
            runs = answers.segments(windows[at], frames)
            told = [s for s in said.segments if s.video_id == video]
            assert [(s.class_name, s.first_frame, s.last_frame + 1) for s in told] == [
                (list(CLASSES)[label], first, end) for label, first, end, _ in runs
            ]
            assert [s.score for s in told] == pytest.approx([score for *_, score in runs], rel=CLOSE, abs=CLOSE)
            [spoken] = [each["segments"] for each in shown if each["video"] == video]
            assert [s["start_s"] for s in spoken] == pytest.approx([seconds[first] for _, first, *_ in runs], abs=2e-3)
            inner = [(s["end_s"], end) for s, (_, _, end, _) in zip(spoken, runs, strict=True) if end < len(seconds)]
            assert [end_s for end_s, _ in inner] == pytest.approx([seconds[end] for _, end in inner], abs=2e-3)
        assert {s.last_frame for s in said.segments if s.video_id == str(extra[1])} == {5}, "it has six frames"


def untrimmed(root: Path) -> list[Path]:
    """A recording of varying rate that shows three classes in turn, and a video shorter than a clip."""
    picture = texture(96, 64, 7)
    parts = [list(drifting(picture, 20, CLASSES[name])) for name in ("still", "left", "down")]
    encoding = Encoding(gop=8, bframes=2, intervals=(1, 2, 1, 4), start_s=0.5)
    return [
        write_video(root / "untrimmed.mkv", [frame for part in parts for frame in part], encoding),
        write_video(root / "short.mp4", drifting(texture(64, 96, 8), 6, CLASSES["up"]), Encoding(gop=8)),
    ]
