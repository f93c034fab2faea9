"""A small labelled set and jobs on it, in folders."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Unpack

import numpy as np
import pytest
from numpy.typing import NDArray

import essp
from essp.catalog.build import BuildOptions, build
from essp_common.catalog.catalog import Catalog
from essp_common.job.spec import JobSpec, parse_spec
from essp_engine.planning.even import Uniform
from tests.harness.journeys import JobOptions, job_text, make_videos


@pytest.fixture(scope="session")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the small set."""
    root = tmp_path_factory.mktemp("videos")
    make_videos(root)
    return root


@pytest.fixture(scope="session")
def catalog(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("catalog") / "catalog.parquet"
    build(f"file://{videos}", f"file://{path}", ("file:///",), BuildOptions("folders"))
    return path


@pytest.fixture
def own_set(videos: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the small set for this test alone, which may damage it: the folder, and its catalog."""
    folder, path = tmp_path / "videos", tmp_path / "catalog.parquet"
    shutil.copytree(videos, folder)
    build(f"file://{folder}", f"file://{path}", ("file:///",), BuildOptions("folders"))
    return folder, path


MakeJob = Callable[..., JobSpec]


@pytest.fixture
def make_job(catalog: Path, tmp_path: Path) -> MakeJob:
    """Writes `<name>.yaml` below `tmp_path` and gives what it says. Takes the options of `job_text`."""

    def make(name: str = "tiny", **options: Unpack[JobOptions]) -> JobSpec:
        text = job_text(name, output=f"file://{tmp_path / name}", catalog=f"file://{catalog}", **options)
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
        return parse_spec(text)

    return make


def asked_clips(spec: JobSpec, video: Path) -> NDArray[np.uint8]:
    """The clips of a video that the model of a job is asked with, `(N, T, H, W, 3)`, planned and decoded apart from the
    predictor."""
    model = essp.load_model(spec.output)
    row = next(row for row in essp.open_catalog(spec.data.catalog).rows if row.uri == video.as_uri())
    plan = Uniform(Catalog((row,)).view(None), model.clip, model.clips_per_video)
    return essp.decode(row, [plan.clip(index).first_frame for index in range(len(plan))], clip=model.clip)


EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"

RunExample = Callable[..., list[str]]


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunExample:
    """Runs an example as it stands, in a folder of its own; the lines that it prints."""
    monkeypatch.chdir(tmp_path)

    def run(name: str, *arguments: str) -> list[str]:
        monkeypatch.setattr(sys, "argv", [name, *arguments])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return run
