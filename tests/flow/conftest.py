"""A small labelled set and jobs on it, shared by the tests of whole journeys."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from essp_common.catalog.build import BuildOptions, build
from essp_common.spec import JobSpec, parse_spec
from essp_common.testing.videos import Encoding, drifting, texture, write_video

JOB = """
name: {name}
output: file://{output}
epochs: {epochs}
data: {{catalog: "file://{catalog}"}}
clip: {{frames: 4, resize: {{mode: crop, height: 40, width: 40}}}}
sampling: {{clips_per_epoch: {clips}, clips_per_video: 2, seed: 3}}
streams:
  rgb: {{feature: rgb}}
  flow: {{feature: flow, params: {{method: dis, length: 3}}}}
trainers:
  rgb: {{stream: rgb, batch_size: 4, augment: {{crop: 32, flip: false}}}}
  flow: {{stream: flow, batch_size: 4, augment: {{crop: 32, flip: false}}}}
limits: {{budget: {budget}}}
"""


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes, told apart by their motion, in both codecs."""
    root = tmp_path_factory.mktemp("videos")
    for split, count in (("train", 6), ("validation", 2), ("test", 2)):
        for label, velocity in (("left", (-2, 0)), ("right", (2, 0))):
            for number in range(count):
                codec, suffix = (("h264", "mp4"), ("mpeg4", "avi"))[number % 2]
                path = root / split / label / f"{number}.{suffix}"
                path.parent.mkdir(parents=True, exist_ok=True)
                seed = len(split) * 100 + number
                write_video(path, drifting(texture(96, 80, seed), 24, velocity), Encoding(codec=codec, gop=8))
    return root


@pytest.fixture(scope="session")
def catalog(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalog") / "catalog.parquet"
    build(f"file://{videos}", f"file://{path}", ("file:///",), BuildOptions("folders"))
    return path


MakeJob = Callable[..., JobSpec]


@pytest.fixture
def make_job(catalog: Path, tmp_path: Path) -> MakeJob:
    """Writes `<name>.yaml` below `tmp_path` and gives what it says."""

    def make(name: str = "tiny", *, epochs: int = 2, clips: int = 12, budget: str = "4MiB", extra: str = "") -> JobSpec:
        text = JOB.format(name=name, output=tmp_path / name, epochs=epochs, clips=clips, budget=budget, catalog=catalog)
        (tmp_path / f"{name}.yaml").write_text(text + extra, encoding="utf-8")
        return parse_spec(text + extra)

    return make
