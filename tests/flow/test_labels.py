"""Several labels a video (`data.targets: labels`): a job that learns each by itself, from catalog to predictions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import essp
from essp.api.targets import TargetReader
from essp.catalog.build import BuildOptions, build
from essp.cli.init import job_text
from essp.embedded.composition import Embedded
from essp.report.folder import write_report
from essp_common.artifacts import checkpoint, scores
from essp_common.artifacts.fused_model import open_model
from essp_common.catalog.file import read_catalog
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import preflight
from essp_engine.video.synthetic import Encoding, drifting, texture, write_video
from tests.harness.embedded_jobs import complete

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.lane("promises")]

STORES = Stores(("file:///",))
SHOWN = ((), ("bars",), ("red",), ("bars", "red"))
"""What videos show: any of both labels, or none, which is a class of its own."""
COUNTS = {"train": 4, "validation": 2, "test": 2}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Videos with a red tint or not, and with bars across or not; `dark` is a label of a video that cannot be read."""
    folder = tmp_path_factory.mktemp("labelled")
    lines = ["path,label,labels,split"]
    for split, count in COUNTS.items():
        for number in range(count):
            for shown in SHOWN:
                name = f"{split}-{number}-{'-'.join(shown) or 'none'}.mp4"
                write_video(folder / name, _frames(shown, len(split) * 100 + number), Encoding(gop=8))
                lines.append(f"{folder / name},{'' if shown else 'none'},{'|'.join(shown)},{split}")
    (folder / "damaged.mp4").write_bytes(b"no video")
    lines.append(f"{folder / 'damaged.mp4'},,dark|red,train")
    (folder / "list.csv").write_text("\n".join(lines))
    built = f"file://{folder}/catalog.parquet"
    build(f"file://{folder}/list.csv", built, ("file:///",), BuildOptions("csv"))
    return built


def _frames(shown: tuple[str, ...], seed: int) -> list[NDArray[np.uint8]]:
    frames = []
    for frame in drifting(texture(96, 80, seed), 12, (1, 0)):
        picture = (frame // 2).astype(np.uint8)
        if "red" in shown:
            picture[..., 0] += 100
        if "bars" in shown:
            picture[::8] = 255
            picture[1::8] = 255
        frames.append(picture)
    return frames


def job(catalog: str, output: Path, **fields: Any) -> JobSpec:
    trainer = {"stream": "rgb", "batch_size": 8, "threads": 1, "dropout": 0.0, "choose": "mAP"}
    trainer |= {"augment": {"crop": 32, "mixup": 0.2}, "optimizer": {"lr": 0.05}, "checkpoint": {"parallel": "thread"}}
    document = {
        "name": "labels",
        "output": f"file://{output}",
        "data": {"catalog": catalog, "targets": "labels"},
        "clip": {"frames": 2, "resize": {"mode": "crop", "height": 40, "width": 40}},
        "sampling": {"clips_per_epoch": 32, "clips_per_video": 2},
        "trainers": {"one": trainer, "other": {**trainer, "seed": 1}},
        "epochs": 6,
        "limits": {"budget": "16MiB"},
    }
    return JobSpec.model_validate({**document, **fields})


def run(spec: JobSpec) -> None:
    with Embedded(spec, Settings()) as embedded:
        complete(embedded)


def test_each_label_is_learned_by_itself(catalog: str, tmp_path: Path) -> None:
    spec = job(catalog, tmp_path / "run")
    run(spec)
    _, model = open_model(STORES, spec.output)
    assert model.independent
    assert model.classes == ("bars", "dark", "none", "red"), "also of videos that cannot be read"
    assert [tried.name for tried in model.strategies] == ["average", "best"]
    assert model.test is not None
    assert model.test.fused["mAP"] > 0.9
    assert "mean_class" not in model.test.fused

    output = STORES.under(spec.output)
    final = checkpoint.read_latest(output, "one")
    assert final is not None
    table = scores.read(output, final.scores["test"])
    assert table.labels is not None
    for video, labels, given in zip(table.video_id, table.labels, table.probabilities, strict=True):
        assert [name for name, has in zip(model.classes, labels, strict=True) if has] == _shown_in(video)
        assert given.max() <= 1
    assert table.probabilities.sum(axis=1).max() > 1.5, "they are not shares"

    page = write_report(output, STORES).page
    text = Path(page.removeprefix("file://")).read_text()
    assert "Average precision by label on the test split" in text
    assert "Confusion" not in text

    files = [str(Path(catalog.removeprefix("file://")).parent / f"test-0-{name}.mp4") for name in ("bars-red", "none")]
    both, none = essp.predict(files, spec.output)
    assert set(both.labels) == {"bars", "red"}
    assert none.labels == ("none",)
    assert sum(both.scores.values()) > 1.2
    loaded = essp.load_model(spec.output)
    assert loaded.independent
    clip = essp.decode(files[0], clip=loaded.clip)
    one = next(iter(loaded.streams.values()))
    alone = dict(zip(loaded.classes, one.score(clip), strict=True))
    assert alone["bars"] > 0.5
    assert alone["red"] > 0.5


def test_what_is_said_of_labels_that_are_no_class(catalog: str, spans: str, tmp_path: Path) -> None:
    """They may have weights, and a catalog without classes is nothing to warn of where spans are learned."""
    assert "red" in preflight(job(catalog, tmp_path), STORES).classes
    for data, name in (({"catalog": catalog}, "dark"), ({"catalog": spans}, "red")):
        kind = "spans" if data["catalog"] == spans else "labels"
        spec = job(catalog, tmp_path, data={**data, "targets": kind})
        weighted = {n: t.model_copy(update={"class_weights": {name: 2.0}}) for n, t in spec.trainers.items()}
        found = preflight(spec.model_copy(update={"trainers": weighted}), STORES)
        assert not any("nothing is learned" in warning for warning in found.warnings)
        wrong = {n: t.model_copy(update={"class_weights": {"blue": 2.0}}) for n, t in spec.trainers.items()}
        with pytest.raises(ConfigError, match="class_weights: there is no class 'blue'"):
            preflight(spec.model_copy(update={"trainers": wrong}), STORES)


def test_init_proposes_it_where_videos_have_several(catalog: str, tmp_path: Path) -> None:
    text = job_text(read_catalog(*STORES.resolve(catalog)), catalog, "job.yaml", "small")
    spec = parse_spec(text)
    assert spec.data.targets == "labels"
    assert {trainer.choose for trainer in spec.trainers.values()} == {"mAP"}
    output = {"output": f"file://{tmp_path}/run"}
    assert preflight(spec.model_copy(update=output), STORES).labels == ("bars", "dark", "none", "red")
    assert parse_spec(job_text(read_catalog(*STORES.resolve(catalog)), catalog, "job.yaml", "small", "few")).trainers


def _shown_in(video: str) -> list[str]:
    return [name for name in ("bars", "none", "red") if name in video]


@pytest.fixture(scope="module")
def spans(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Videos that are red for a third, and have bars for a third which begins in the middle of that. Their classes are
    more than these labels."""
    folder = tmp_path_factory.mktemp("spans")
    lines = ["path,label,frame_labels,split"]
    for split, count in {"train": 6, "validation": 3, "test": 3}.items():
        for number in range(count):
            begin = (7 * number + 3) % 20
            frames, names = [], []
            for at in range(48):
                shown = [("red", begin <= at < begin + 16), ("bars", begin + 8 <= at < begin + 24)]
                frames.append(_frames(tuple(name for name, there in shown if there), len(split) * 9 + number)[at % 12])
                names.append("|".join(name for name, there in shown if there))
            write_video(folder / f"{split}{number}.mp4", frames, Encoding(gop=8))
            (folder / f"{split}{number}.txt").write_text("\n".join(names))
            lines.append(f"{folder}/{split}{number}.mp4,{split} {number},{split}{number}.txt,{split}")
    (folder / "list.csv").write_text("\n".join(lines))
    built = f"file://{folder}/catalog.parquet"
    build(f"file://{folder}/list.csv", built, ("file:///",), BuildOptions("csv"))
    return built


def test_clips_have_the_labels_of_their_frames(spans: str, tmp_path: Path) -> None:
    """Those that loops of the user's own are handed with the same clips; and a model says when each is seen."""
    spec = job(
        spans,
        tmp_path / "run",
        data={"catalog": spans, "targets": "spans"},
        sampling={"clips_per_epoch": 48, "clips_per_video": 12},
    )
    run(spec)
    output = STORES.under(spec.output)
    final = checkpoint.read_latest(output, "one")
    assert final is not None
    table = scores.read(output, final.scores["validation"])
    reader = TargetReader(read_catalog(*STORES.resolve(spans)).view("validation").rows, 2, 1, {})
    videos = {row.id: place for place, row in enumerate(read_catalog(*STORES.resolve(spans)).view("validation").rows)}
    assert len(table) == 36
    assert table.labels is not None
    for name, labels in zip(table.video_id, table.labels, strict=True):
        video, _, first = name.partition(" frame ")
        wanted = reader.of([videos[video]], [int(first)]).frame_labels[0].any(dim=0)
        of_clip = dict(zip(reader.names, wanted.tolist(), strict=True))
        assert dict(zip(table.classes, labels, strict=True)) == {name: of_clip[name] for name in table.classes}
    _, model = open_model(STORES, spec.output)
    assert model.test is not None
    assert model.test.videos == 36, "each clip stands for itself"
    assert model.test.fused["mAP"] > 0.8
    file = str(Path(spans.removeprefix("file://")).parent / "test0.mp4")
    [answer] = essp.predict(file, spec.output, segments=True, every_s=0.1)
    for name, begin, end in (("red", 3, 19), ("bars", 11, 27)):
        surest = next(found for found in answer.segments if found.class_name == name)
        assert surest.start_s < end / 25
        assert surest.end_s > begin / 25


def test_jobs_that_cannot_learn_labels(catalog: str, tmp_path: Path) -> None:
    def refused(match: str, **fields: Any) -> None:
        with pytest.raises((ConfigError, ValueError), match=match):
            preflight(job(catalog, tmp_path, **fields), STORES)

    refused("aggregation.strategies.0: product computes scores that sum to 1", aggregation={"strategies": ["product"]})
    refused("sampling.background: with data.targets: labels", sampling={"background": "red"})
    refused(
        "trainers.one.model: fisher_vector learns one class",
        streams={"hog": {"feature": "hog"}},
        trainers={"one": {"stream": "hog", "model": "fisher_vector"}},
    )
    refused("data.targets: the catalog has no spans", data={"catalog": catalog, "targets": "spans"})
    refused(
        "clip.snippets: with data.targets: spans",
        data={"catalog": catalog, "targets": "spans"},
        clip={"frames": 4, "snippets": 2},
    )
    refused("data.targets: is for jobs that train", trainers={}, consumers={"loop": {"stream": "rgb"}})
    refused(
        "data.targets: a record has one label", data={"records": "file:///r", "targets": "labels"}, clip={}, sampling={}
    )
