"""The demonstration's video set: real files, balanced, the same every time; no frame tells the motion."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from essp.demo import dataset as dataset_module
from essp.demo.dataset import CLASSES, MANIFEST, make_dataset
from essp.demo.job import job_text, prediction_text
from essp.demo.photographs import BACKGROUNDS, TEXTURES, photograph
from essp.demo.scene import MOTIONS, Scene, render
from essp_common.errors import ConfigError, Conflict, EsspError
from essp_common.job.spec import parse_spec
from essp_engine.features import registry
from essp_engine.video.probe import VideoFacts, probe
from tests.harness.quantization import dequantize

pytestmark = pytest.mark.lane("promises")

PER_CLASS = 6


class Told(Exception):
    """The test knows enough."""


def _die(*_: object) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("set") / "videos", PER_CLASS, seed=3)


@pytest.fixture(scope="module")
def facts(dataset: Path) -> dict[Path, VideoFacts]:
    return {path: probe(str(path)) for path in files_of(dataset)}


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.name != MANIFEST)


def scene(texture: str = "grass", motion: str = "left", split: str = "train", take: int = 0) -> Scene:
    return Scene(texture, motion, split, take, 160, 128)


def frames_of(scene: Scene, seed: int = 0) -> NDArray[np.uint8]:
    return np.stack(list(render(scene, seed)))


@pytest.mark.processes
def test_every_class_is_in_every_split_as_often(dataset: Path) -> None:
    places = Counter(tuple(path.relative_to(dataset).parts[:2]) for path in files_of(dataset))
    shares = {"train": 4, "validation": 1, "test": 1}
    assert places == {(split, label): count for split, count in shares.items() for label in CLASSES}
    assert len(CLASSES) == 12


@pytest.mark.processes
def test_files_are_of_several_kinds_and_decode(facts: dict[Path, VideoFacts]) -> None:
    assert {f.codec for f in facts.values()} == {"h264", "mpeg4"}
    assert {path.suffix for path in facts} == {".mp4", ".mov", ".mkv", ".avi"}
    assert len({(f.width, f.height) for f in facts.values()}) > 3
    assert len({round(f.fps) for f in facts.values()}) > 2
    assert all(24 <= f.frame_count <= 40 and f.seekable for f in facts.values())


@pytest.mark.processes
def test_formats_do_not_tell_the_class(facts: dict[Path, VideoFacts]) -> None:
    kinds: dict[str, list[object]] = {label: [] for label in CLASSES}
    for path, found in facts.items():
        kinds[path.parent.name].append((path.name, found.codec, found.width, found.fps, found.frame_count))
    assert all(kinds[label] == kinds[CLASSES[0]] for label in CLASSES)


@pytest.mark.lane("long")
@pytest.mark.processes
def test_another_seed_makes_other_bytes(dataset: Path, tmp_path: Path) -> None:
    """The same seed makes the same: below, of one take in every class, and of every format in an interrupted set."""
    names = [path.relative_to(tmp_path) for path in files_of(make_dataset(tmp_path, 1, seed=4))]
    assert len(names) == len(CLASSES)
    assert all((dataset / name).read_bytes() != (tmp_path / name).read_bytes() for name in names)


@pytest.mark.processes
def test_interrupted_set_is_completed_and_nothing_made_twice(dataset: Path, tmp_path: Path) -> None:
    root = Path(shutil.copytree(dataset, tmp_path / "videos"))
    files = files_of(root)
    contents = {path: path.read_bytes() for path in files}
    missing = files[::5]
    assert {path.name for path in missing} == {path.name for path in files}, "takes in all formats"
    for path in missing:
        path.unlink()
    (root / ".partial").mkdir()
    (root / ".partial" / "grass-left-0000.mp4").write_bytes(b"half a file")
    (root / ".partial" / "notes.txt").write_text("mine")
    kept = {path: path.stat().st_mtime_ns for path in files_of(root) if path.parent.name != ".partial"}
    told: list[tuple[int, int]] = []
    make_dataset(root, PER_CLASS, seed=3, progress=lambda done, total: told.append((done, total)))
    made = (path for path in files_of(root) if path.parent.name != ".partial")
    assert {path: path.read_bytes() for path in made} == contents
    assert all(path.stat().st_mtime_ns == time for path, time in kept.items())
    assert told[0] == (len(kept), len(files))
    assert told[-1] == (len(files), len(files))
    assert told == sorted(told)
    assert [path.name for path in (root / ".partial").iterdir()] == ["notes.txt"]


@pytest.mark.processes
def test_directory_of_something_else_is_refused(dataset: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="holds another video set"):
        make_dataset(dataset, PER_CLASS, seed=4)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(ConfigError, match="is not empty"):
        make_dataset(tmp_path, PER_CLASS, seed=3)
    assert json.loads((dataset / MANIFEST).read_text())["seed"] == 3


def test_one_process_at_a_time_makes_a_set(tmp_path: Path) -> None:
    def meanwhile(done: int, total: int) -> None:
        with pytest.raises(Conflict, match="another process is making"):
            make_dataset(tmp_path / "videos", 1)
        raise Told

    with pytest.raises(Told):
        make_dataset(tmp_path / "videos", 1, progress=meanwhile)


@pytest.mark.lane("long")
@pytest.mark.processes
def test_a_process_that_is_killed_is_told_of_and_the_set_goes_on(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(dataset_module, "_make", _die)
        with pytest.raises(EsspError, match="was killed; see that there is memory"):
            make_dataset(tmp_path, 1, seed=3)
    names = [path.relative_to(tmp_path) for path in files_of(make_dataset(tmp_path, 1, seed=3))]
    assert len(names) == len(CLASSES)
    assert all((dataset / name).read_bytes() == (tmp_path / name).read_bytes() for name in names)


def test_no_more_processes_than_the_container_has_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def pool(workers: int, **options: Any) -> None:
        asked.append(workers)
        raise Told

    monkeypatch.setattr(dataset_module, "cpu_count", lambda: 1)
    monkeypatch.setattr(dataset_module, "ProcessPoolExecutor", pool)
    with pytest.raises(Told):
        make_dataset(tmp_path, 6)
    assert asked == [1]


def test_a_directory_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "letter.txt").write_text("dear")
    letter, long = tmp_path / "letter.txt", tmp_path / ("x" * 300)
    for directory in (Path("/proc/demo/videos"), letter, letter / "videos", long):
        with pytest.raises(ConfigError, match=f"{directory} cannot be made .*; choose another directory"):
            make_dataset(directory, PER_CLASS, seed=3)


@pytest.mark.parametrize("name", ["b: c", "it's", '"quoted"', "{x}", "*", "größe"])
def test_jobs_say_where_they_are_whatever_the_name_of_the_folder(name: str) -> None:
    root = f"file:///data/{name}"
    spec = parse_spec(job_text(root, 2, 96))
    assert (spec.output, spec.data.catalog) == (f"{root}/run", f"{root}/catalog.parquet")
    spec = parse_spec(prediction_text(root))
    assert (spec.output, spec.data.catalog) == (f"{root}/predict", f"{root}/unseen.parquet")
    assert spec.predictor is not None
    assert spec.predictor.model == f"{root}/run/model"
    assert "streams" not in spec.model_fields_set, "the model may lack one of the training's: the fusion decides"


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[" * 100_000])
def test_a_set_whose_description_is_damaged_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(ConfigError, match=f"{MANIFEST} cannot be read .*; remove {tmp_path} or choose another"):
        make_dataset(tmp_path, PER_CLASS, seed=3)


@pytest.mark.parametrize("motion", MOTIONS)
@pytest.mark.parametrize("texture", TEXTURES)
def test_flow_shows_the_motion(texture: str, motion: str) -> None:
    flow = registry.create("flow", {"length": 5, "bound": 10.0 / 128})
    flow.setup()
    for take in range(3):
        field = dequantize(flow.extract(frames_of(scene(texture, motion, take=take)))[0], 10.0)
        right, down = field[..., 0::2].mean(), field[..., 1::2].mean()
        seen = max({"left": -right, "right": right, "up": -down, "down": down}.items(), key=lambda item: item[1])[0]
        assert seen == motion


def test_videos_of_a_take_differ_in_texture_motion_and_noise_alone() -> None:
    """Half-way, the same texture lies at the same place whatever the motion; the surroundings always do."""
    for texture in TEXTURES:
        clips = [frames_of(scene(texture, motion)).astype(int) for motion in MOTIONS]
        middle = len(clips[0]) // 2 if len(clips[0]) % 2 == 0 else None
        for clip in clips[1:]:
            assert clip.shape == clips[0].shape
            still = np.abs(clip.mean(axis=0) - clips[0].mean(axis=0)).mean(axis=-1)
            assert np.median(still) < 3, "the surroundings are the same"
            if middle is not None:
                assert np.abs(clip[middle] - clips[0][middle]).mean() < 5, "noise apart, the same picture"


def test_splits_show_different_parts_of_the_photographs() -> None:
    for name in (*TEXTURES, *BACKGROUNDS):
        parts = {split: photograph(name, split) for split in ("train", "validation", "test")}
        whole = photograph(name, "train").shape[0]
        assert all(part.size for part in parts.values())
        assert parts["validation"].shape[0] + parts["test"].shape[0] == whole
        assert not np.array_equal(parts["validation"][:50, :50], parts["test"][:50, :50])


@pytest.mark.processes
def test_encoded_file_shows_its_scene(dataset: Path) -> None:
    path = dataset / "train" / "gravel-up" / "0000.mp4"
    with av.open(str(path)) as container:
        shown = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
    made = frames_of(Scene("gravel", "up", "train", 0, 176, 144), seed=3)
    assert shown.shape == made.shape
    assert np.abs(shown.astype(int) - made).mean() < 8
