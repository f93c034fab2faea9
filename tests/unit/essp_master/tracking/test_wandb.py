"""Figures of trainings on Weights & Biases: one run for each, whatever happens to the master and the connection."""

from __future__ import annotations

import subprocess
import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

import pytest

from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import VALIDATION
from essp_master.tracking.tracking import Begin, End, Item, Point, run_name
from essp_master.tracking.wandb import WandB
from tests.harness.refused import refused
from tests.unit.essp_master.tracking.test_tracking import SPEC, phase, run, step

RUN = run_name(SPEC, "rgb")


class Cloud:
    """A stand-in for the library and its server."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, Any]] = {}
        self.down = False
        self.refuses = False

    def init(self, **asked: Any) -> Any:
        if self.refuses:
            raise PermissionError13("no such entity")
        if self.down:
            raise self.errors.CommError("no answer")
        kept = self.runs.setdefault(asked["id"], {"asked": asked, "points": [], "summary": {}, "exit": None})
        cloud = self

        class Run:
            summary = kept["summary"]

            def define_metric(self, *_: object, **__: object) -> None:
                pass

            def log(self, values: dict[str, float]) -> None:
                if cloud.down:
                    raise cloud.errors.CommError("no answer")
                kept["points"].append(dict(values))
                kept["summary"].update(values)

            def finish(self, exit_code: int | None = None, quiet: bool = False) -> None:
                kept["exit"] = exit_code

        return Run()

    class errors:  # noqa: N801  as the library calls it
        class CommError(Exception):
            pass

    def api(self, **_: object) -> Any:
        cloud = self

        class Found:
            def runs(self, path: str, filters: dict[str, str], **_: object) -> list[Any]:
                if not cloud.runs:
                    raise ValueError(f"there is no project {path}")
                ((field, key),) = filters.items()
                name = field.split(".")[1]
                return [
                    types.SimpleNamespace(id=identity)
                    for identity, one in reversed(cloud.runs.items())
                    if one["asked"]["config"][name] == key
                ]

        return Found()


class PermissionError13(Exception):
    """An error of the request."""


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cloud:
    made = Cloud()
    library = types.ModuleType("wandb")
    library.__spec__ = ModuleSpec("wandb", None)
    library.init, library.Api, library.Settings = made.init, made.api, dict  # type: ignore[attr-defined]
    library.errors = types.ModuleType("wandb.errors")  # type: ignore[attr-defined]
    library.errors.CommError = made.errors.CommError
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setitem(sys.modules, "wandb.errors", library.errors)
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return made


def test_a_training_has_one_run_and_goes_on_in_it(cloud: Cloud) -> None:
    run(WandB("team/videos"), [step(0, 32, 0.9), step(0, 64, 0.8)])
    run(WandB("team/videos"), [step(0, 64, 0.8), step(0, 96, 0.7), phase(VALIDATION, 0, loss=1.0)], resumed=True)
    (only,) = cloud.runs.values()
    assert [point["clips"] for point in only["points"]] == [32, 64, 96, 100]
    assert [point.get("train/loss") for point in only["points"]] == pytest.approx([0.9, 0.8, 0.7, None])
    assert only["points"][-1]["validation/loss"] == 1.0
    asked = only["asked"]
    assert (asked["entity"], asked["project"], asked["group"], asked["name"]) == (
        "team",
        "videos",
        "seven",
        "seven/rgb",
    )
    assert asked["config"]["optimizer.lr"] == "0.25"


def test_a_training_that_starts_over_gets_another_run(cloud: Cloud) -> None:
    run(WandB("videos"), [step(0, 32, 0.9)], state=JobState.FAILED)
    run(WandB("videos"), [step(0, 32, 0.4)], state=JobState.COMPLETED)
    assert [one["exit"] for one in cloud.runs.values()] == [1, 0]
    assert [len(one["points"]) for one in cloud.runs.values()] == [1, 1]


def test_no_point_is_lost_or_doubled_while_nothing_answers(cloud: Cloud) -> None:
    tracker = WandB("videos")
    items: list[Item] = [Begin(RUN, {}, True), *(Point(RUN, "train/loss", clips, 0.5, 1.0) for clips in (1, 2, 3))]
    cloud.down = True
    with pytest.raises(cloud.errors.CommError):
        tracker.write(items)
    cloud.down = False
    tracker.write(items)
    cloud.down = True
    more: list[Item] = [*items, Point(RUN, "train/loss", 4, 0.5, 1.0), End(RUN, JobState.COMPLETED)]
    with pytest.raises(cloud.errors.CommError):
        tracker.write(more)
    cloud.down = False
    tracker.write(more)
    (only,) = cloud.runs.values()
    assert [point["clips"] for point in only["points"]] == [1, 2, 3, 4]
    assert only["exit"] == 0


def test_a_run_that_is_refused_is_named_once_and_begins_again(cloud: Cloud, caplog: pytest.LogCaptureFixture) -> None:
    tracker = WandB("videos")
    cloud.refuses = True
    tracker.write([Begin(RUN, {}, True), *(Point(RUN, "train/loss", clips, 0.5, 1.0) for clips in (1, 2))])
    assert len([record for record in caplog.records if "not tracked any more" in record.message]) == 1
    cloud.refuses = False
    tracker.write([Begin(RUN, {}, True), Point(RUN, "train/loss", 3, 0.5, 1.0)])
    assert [one["points"] for one in cloud.runs.values()] == [[{"clips": 3, "train/loss": 0.5}]]


@pytest.mark.parametrize("project", ["a/b/c", "/a", "a/", " "])
def test_what_is_no_project_is_refused(cloud: Cloud, project: str) -> None:
    with refused("ESSP_WANDB"):
        WandB(project)


_OFFLINE = """
from essp_common.job.status import JobState
from essp_master.tracking.wandb import WandB
from tests.unit.essp_master.tracking.test_tracking import run, step
run(WandB("videos"), [step(0, 32, 0.9), step(0, 64, 0.8)], state=JobState.COMPLETED)
"""


@pytest.mark.slow
def test_without_a_connection_a_run_is_written_to_a_folder(tmp_path: Path) -> None:
    """With the library itself, in a process of its own: it leaves threads and hooks behind."""
    settings = {"WANDB_MODE": "offline", "WANDB_DIR": str(tmp_path), "HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, "-c", _OFFLINE], env=settings, cwd=Path.cwd(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (log,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    assert b"train/loss" in log.read_bytes()
