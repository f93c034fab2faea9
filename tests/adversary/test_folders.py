"""What a job left in its output, with one file damaged, missing or too many: a clear error, or the same result."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.account import account_of
from essp.audit.invariants import check
from essp.report.facts import read_run
from essp_aggregator.assembly import assemble, final_checkpoints
from essp_common.artifacts import checkpoint
from essp_common.artifacts.fused_model import member_weights, open_model
from essp_common.artifacts.history import History
from essp_common.cache.memory import MemoryCache
from essp_common.errors import EsspError
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.wiring import Stores
from essp_engine.preflight.preflight import preflight
from tests.adversary.storms import damaged, storm
from tests.harness.finished_job import save_final
from tests.harness.fleet import Fleet, adapters_in, make_job, master_over, run_to_rest
from tests.harness.training_jobs import Running, Stage, final_weights, job_spec, phase_plans

STORES = Stores(("file:///",))
NAMES = ("zzz", ".DS_Store", "0000000009", "9999999999", "0000000099-0000000001", "manifest.json", "\u00b2", "a.b~")


@dataclass(frozen=True)
class Finished:
    """A finished job's output, and the job."""

    root: Path
    spec: JobSpec


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """A job that came to its end with a real master, checkpoints of trainers and a fused model."""
    folder = tmp_path_factory.mktemp("folders")
    with closing(adapters_in(folder)) as adapters:
        spec = make_job(folder)
        master = master_over(adapters, history_s=0.0)
        with closing(Fleet(adapters, spec)) as fleet:
            master.start(spec)
            run_to_rest(master, fleet)
            fleet.finish()
            run_to_rest(master, fleet)
            master.drain()
            master.run()
    store = DirectoryStore(str(folder / "out"))
    for trainer in spec.trainers:
        save_final(store, spec, trainer)
    finals = final_checkpoints(store, spec)
    assert finals is not None
    assemble(store, MemoryCache(), spec.name, spec, finals, STORES)
    return Finished(folder / "out", spec)


@st.composite
def harmed(draw: st.DrawFn, root: Path) -> str:
    """Damage, remove or add one file below a folder; what was done."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    path = draw(st.sampled_from(files))
    match draw(st.sampled_from(["damage", "damage", "damage", "remove", "add", "folder"])):
        case "damage":
            path.write_bytes(draw(damaged(path.read_bytes())))
            return f"damaged {path.relative_to(root)}"
        case "remove":
            path.unlink()
            return f"removed {path.relative_to(root)}"
        case "folder":
            path.unlink()
            path.mkdir()
            return f"a folder is at {path.relative_to(root)}"
    stray = path.parent / draw(st.sampled_from(NAMES))
    if not stray.exists():
        stray.write_bytes(draw(st.sampled_from([b"", b"x", path.read_bytes()])))
    return f"added {stray.relative_to(root)}"


def facts(root: Path, spec: JobSpec) -> Mapping[str, Callable[[], Any]]:
    """What the readers of an output make of it, in a form that can be compared."""
    store = DirectoryStore(str(root))

    def audit() -> Any:
        findings = check(account_of(History(store).read()), None, None, 10**13)
        return [(found.invariant, found.holds, found.checked) for found in findings]

    def report() -> Any:
        run = read_run(store, STORES)
        return run.model, run.histories, np.asarray(run.fused.probabilities).tolist(), run.fused.video_id

    def model() -> Any:
        folder, found = open_model(STORES, f"file://{root}")
        return found, [member_weights(folder, member) for member in found.members]

    def training() -> Any:
        return {name: checkpoint.find(store, name) for name in spec.trainers}

    def start() -> Any:
        moved = spec.model_copy(update={"output": f"file://{root}"})
        return preflight(moved, STORES).resume.start

    return {"audit": audit, "report": report, "model": model, "training": training, "start": start}


@given(data=st.data())
@storm(40)
def test_every_reader_of_an_output_says_the_same_or_what_is_wrong(
    finished: Finished, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    whole = {name: read() for name, read in facts(finished.root, finished.spec).items() if name != "start"}
    root = tmp_path_factory.mktemp("harmed") / "out"
    shutil.copytree(finished.root, root)
    done = data.draw(harmed(root))
    for name, read in facts(root, finished.spec).items():
        try:
            found = read()
        except EsspError:
            continue
        if ("/latest/" in done or done.partition(" history/")[1]) and not done.startswith("damaged"):
            continue  # a log without its end is one that had not come so far
        if name in whole:
            assert found == whole[name], f"{done}: {name}"
    shutil.rmtree(root)


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of a training that was drained within its second epoch."""
    root = tmp_path_factory.mktemp("interrupted")
    with closing(Stage(job_spec(root, checkpoint={"every": 4, "keep": 9}), phase_plans(2))) as stage:
        stage.command(Control.START)
        stage.feed(stage.every_position()[:21])
        with Running(stage):
            stage.wait_for("phase_report", 2)
    return root


def resumed(root: Path) -> bytes:
    """The weights at the end. Raises what stopped the trainer."""
    with closing(Stage(job_spec(root, checkpoint={"every": 4, "keep": 9}), phase_plans(2))) as stage:
        stage.command(Control.START)
        stage.feed(stage.every_position())
        with Running(stage) as running:
            running.join()
        if running.error is not None:
            raise running.error
        return final_weights(stage)


def test_a_trainer_resumes_to_the_same_weights_or_says_what_is_wrong(
    interrupted: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def copied() -> Path:
        root = tmp_path_factory.mktemp("resumed") / "out"
        shutil.copytree(interrupted, root)
        return root

    undisturbed = resumed(copied())

    @given(data=st.data())
    @storm(6)
    def resumes(data: st.DataObject) -> None:
        root = copied()
        done = data.draw(harmed(root))
        try:
            weights = resumed(root)
        except EsspError:
            weights = undisturbed
        assert weights == undisturbed, done
        shutil.rmtree(root)

    resumes()
