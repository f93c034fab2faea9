"""The installed wheel runs the quick start, even if the user has folders called `services`, `tests` and so on.

The wheel is built from a copy of the sources, so that the build leaves no files in them, and installed into a new
environment. The libraries that ESSP needs come from the environment of the tests, as a folder on the path. Whether pip
finds libraries with which ESSP runs is not shown here, but by `make test-install`. Python does not read the .pth files
of such a folder, so the editable installation of ESSP in it has no effect.

The user's folder is first on the path, as it is for a script in that folder. Each package in it raises on import.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pytest
import yaml

from essp_engine.video.synthetic import numbered, write_video
from tests.harness.waiting import LONGEST_S

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("essp", "essp_common", "essp_engine", "services")
PROJECT_FILES = ("pyproject.toml", "README.md", "LICENSE")
FOLDERS_OF_THE_USER = ("services", "tests", "benchmarks", "tools")
PAGE = ("api", "chart", "create", "dom", "events", "flow", "job", "jobs", "page", "pools", "words")
DATA = {
    "essp/py.typed",
    "essp/pages/page.css",
    "essp_common/py.typed",
    "essp_common/pb/v1/messages_pb2.pyi",
    "essp_master/page/index.html",
    "essp_master/page/page.css",
    "essp_master/page/icon.svg",
    *(f"essp_master/page/{name}.js" for name in PAGE),
    "essp_master/py.typed",
}


@dataclass(frozen=True, slots=True)
class Installation:
    """A new environment with the wheel, and the user's folder, in which commands run."""

    environment: Path
    packages: Path
    work: Path

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a program of the environment in the user's folder."""
        return finished(self.environment / "bin" / program, *arguments, cwd=self.work, PYTHONPATH=str(self.work))

    def essp(self, *arguments: str) -> str:
        """What `essp ...` writes to stdout; it has to succeed."""
        done = self.run("essp", *arguments)
        assert done.returncode == 0, f"essp {' '.join(arguments)}\n{done.stdout}\n{done.stderr}"
        return done.stdout


def finished(*command: str | Path, cwd: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with no settings of ESSP or of the tests' Python but these."""
    ours = ("ESSP_", "PYTHON", "VIRTUAL_ENV")
    return subprocess.run(
        command,
        cwd=cwd,
        env={**{name: value for name, value in os.environ.items() if not name.startswith(ours)}, **settings},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=LONGEST_S,
    )


def python_module(*arguments: str | Path, cwd: Path) -> None:
    """Run a module with the Python of the tests; it has to succeed."""
    done = finished(sys.executable, "-m", *arguments, cwd=cwd)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    project = folder / "project"
    for name in SOURCES:
        shutil.copytree(ROOT / name, project / name, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in PROJECT_FILES:
        shutil.copy(ROOT / name, project)
    options = ("--no-deps", "--no-build-isolation", "--no-index", "--no-cache-dir", "--disable-pip-version-check")
    python_module("pip", "wheel", *options, "--wheel-dir", folder, project, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installation(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installation:
    environment = tmp_path_factory.mktemp("environment")
    python_module("venv", "--without-pip", environment, cwd=environment)
    python = environment / "bin" / "python"
    options = ("--no-deps", "--no-index", "--no-compile", "--no-cache-dir", "--disable-pip-version-check")
    python_module("pip", "--python", python, "install", *options, wheel, cwd=environment)
    (packages,) = environment.glob("lib/python*/site-packages")
    libraries = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    (packages / "libraries.pth").write_text("\n".join(libraries) + "\n", encoding="utf-8")

    work = tmp_path_factory.mktemp("work")
    for name in FOLDERS_OF_THE_USER:
        (work / name).mkdir()
        (work / name / "__init__.py").write_text(f"raise RuntimeError('the {name} of the user')\n", encoding="utf-8")
    for path in videos(work / "videos"):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_video(path, numbered(8, 64, 48, seed=len(path.parent.name)))
    return Installation(environment, packages, work)


def videos(root: Path) -> Iterator[Path]:
    """Two classes in folders of their splits."""
    for split, count in (("train", 2), ("validation", 1), ("test", 1)):
        for label in ("left", "right"):
            yield from (root / split / label / f"{number}.mp4" for number in range(count))


def make_small(job: Path) -> None:
    """Keep the job that `essp init` wrote, with one epoch of four clips of few and small frames."""
    spec = yaml.safe_load(job.read_text(encoding="utf-8"))
    spec["epochs"] = 1
    spec["clip"] |= {"frames": 3, "resize": {"mode": "crop", "height": 32, "width": 32}}
    spec["sampling"] |= {"clips_per_epoch": 4, "clips_per_video": 1}
    spec["streams"]["flow"]["params"]["length"] = 2
    for trainer in spec["trainers"].values():
        trainer |= {"batch_size": 2, "threads": 1, "augment": {"crop": 32, "flip": False}}
    job.write_text(yaml.safe_dump(spec), encoding="utf-8")


def test_the_wheel_installs_only_names_that_begin_with_essp(installation: Installation) -> None:
    (record,) = installation.packages.glob("essp_video-*.dist-info/RECORD")
    files = {PurePosixPath(line.split(",")[0]) for line in record.read_text(encoding="utf-8").splitlines()}
    inside = {path for path in files if path.parts[0] != ".."}  # not the console script
    assert {"essp", "essp_common", "essp_engine", "essp_master", "essp_trainer"} <= {path.parts[0] for path in inside}
    assert [path for path in inside if not path.parts[0].startswith("essp")] == []


def test_the_wheel_has_every_file_of_the_packages(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    roots = (ROOT, ROOT / "services")
    sources = {
        path.relative_to(root).as_posix()
        for root, pattern in zip(roots, ("essp*", "essp_*"), strict=True)
        for package in root.glob(pattern)
        if (package / "__init__.py").is_file()
        for path in package.rglob("*")
        if path.is_file() and path.suffix not in (".md", ".pyc")
    }
    assert packed >= DATA
    assert packed == sources


def test_essp_comes_from_the_wheel_and_the_users_packages_come_first(installation: Installation) -> None:
    """Else the quick start below would show nothing."""
    names = ("essp", "essp_common", "essp_engine", "essp_master", "essp_decoder", "essp_extractor", "essp_trainer")
    code = f"import json, {', '.join(names)}; print(json.dumps([{', '.join(f'{n}.__file__' for n in names)}]))"
    done = installation.run("python", "-c", code)
    assert done.returncode == 0, done.stderr
    assert [Path(file).parent for file in json.loads(done.stdout)] == [installation.packages / name for name in names]
    for name in FOLDERS_OF_THE_USER:
        assert f"the {name} of the user" in installation.run("python", "-c", f"import {name}").stderr


@pytest.mark.lane("long")
def test_the_quick_start_runs_from_the_wheel(installation: Installation) -> None:
    work, essp = installation.work, installation.essp
    essp("catalog", "build", "videos", "--out", "catalog.parquet")
    shown = essp("catalog", "show", "catalog.parquet")
    assert "8 videos" in shown
    essp("init", "catalog.parquet", "--for", "scratch", "--out", "job.yaml")
    make_small(work / "job.yaml")
    essp("validate", "job.yaml")
    essp("run", "job.yaml")
    assert (work / "runs" / "catalog" / "report" / "report.html").is_file()

    video = "videos/test/left/0.mp4"
    (answer,) = json.loads(essp("predict", video, "--model", "runs/catalog", "--json"))["videos"]
    assert answer["error"] is None
    scores = {row["class"]: row["score"] for row in answer["top"]}
    assert set(scores) == {"left", "right"}
    assert sum(scores.values()) == pytest.approx(1, abs=1e-3)
    assert answer["class"] == max(scores, key=scores.__getitem__)
