"""Which jobs a master starts, and where: refused, gone on with, taken for the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from essp_common import topics
from essp_common.artifacts import checkpoint
from essp_common.artifacts.checkpoint_files import in_memory
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.job.feature_layout import COLOURS
from essp_common.objects.directory import DirectoryStore
from essp_common.pb.v1.messages_pb2 import TRAIN, VALIDATION
from essp_common.planning.position import Position
from essp_common.wiring import Adapters
from tests.harness.fleet import FleetOf, make_job, master_over


def test_a_job_that_runs_is_not_started_again(adapters: Adapters, fleet_of: FleetOf) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    with pytest.raises(Conflict, match="running"):
        master.start(fleet.job)
    with pytest.raises(NotFound, match="there are: small"):
        master.status("other")


def test_a_stopped_job_goes_on_at_its_checkpoints(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    store = DirectoryStore(str(tmp_path / "out"))
    for trainer, position in (("rgb", Position(0, 6)), ("diff", Position(1, 2))):
        save_checkpoint(store, trainer, position)
    fleet.decode()
    fleet.units.clear()
    status = master.start(fleet.job)
    assert status.phases[0].done == {"trainer.rgb": 6, "trainer.diff": 10}
    fleet.decode()
    wanted = {
        (unit.purpose, unit.epoch, seed.index): {name for stream in unit.recipe.streams for name in stream.consumers}
        for unit in fleet.units
        for seed in unit.seeds
    }
    assert min(index for purpose, epoch, index in wanted if (purpose, epoch) == (TRAIN, 0)) == 6
    assert wanted[TRAIN, 0, 6] == {"trainer.rgb"}
    assert wanted[VALIDATION, 0, 2] == {"trainer.rgb", "trainer.diff"}
    assert fleet.units[-1].fence == 2


def save_checkpoint(store: DirectoryStore, trainer: str, position: Position, final: bool = False) -> None:
    model = checkpoint.ModelDescription(
        name="small", feature="rgb", layout=COLOURS, channels=3, classes=("c0", "c1"), dropout=0.5, crop=16,
        evaluation_scale=0.875,
    )  # fmt: skip
    manifest = checkpoint.Manifest(
        job="small", trainer=trainer, step=position.index + 1, updates=1, epoch=0, position=position,
        spec_digest="", model=model, final=final, epochs=2,
    )  # fmt: skip
    checkpoint.claim(store, trainer).save(manifest, in_memory({checkpoint.MODEL_FILE: b"weights"}), keep=2)


def test_an_output_of_another_job_is_refused(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    other = make_job(tmp_path, epochs=5, sampling={"clips_per_video": 2, "clips_per_epoch": 10, "seed": 1})
    with pytest.raises(
        ConfigError, match=r"differs in sampling.seed; choose another name and output, or start with --fresh"
    ):
        master.start(other)
    save_checkpoint(DirectoryStore(str(tmp_path / "out")), "rgb", Position(0, 6))
    assert len(master.start(other, fresh=True).phases) == 11
    assert master.status("small").phases[0].done == {"trainer.rgb": 0, "trainer.diff": 0}
    assert json.loads((tmp_path / "out" / "spec.json").read_bytes())["epochs"] == 5
    assert (tmp_path / "catalog.parquet").exists()


def test_a_larger_budget_is_the_same_job(adapters: Adapters, fleet_of: FleetOf, tmp_path: Path) -> None:
    master, fleet = master_over(adapters), fleet_of()
    master.start(fleet.job)
    master.stop("small")
    assert master.start(make_job(tmp_path, limits={"budget": "1MiB"})).credits.budget_bytes == 2**20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"data": {}}, r"data\.catalog: is required"),
        ({"data": {"catalog": "file:///nowhere/c.parquet"}}, r"data\.catalog: .*essp catalog build"),
        ({"limits": {"budget": "3KB"}}, r"limits\.budget: .* hold 0 clips"),
        ({"streams": {"rgb": {}, "diff": {"feature": "no_such"}}}, "no extractor 'no_such'"),
    ],
)
def test_what_is_wrong_is_said_before_anything_begins(
    adapters: Adapters, tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    master = master_over(adapters)
    with pytest.raises(ConfigError, match=message):
        master.start(make_job(tmp_path, **change))
    assert master.jobs() == []
    assert adapters.bus.backlog(topics.SEEDS, "decoder") == 0
    assert not (tmp_path / "out" / "spec.json").exists()


def test_an_output_that_is_a_file_is_refused_before_anything_begins(adapters: Adapters, tmp_path: Path) -> None:
    job = make_job(tmp_path)
    (tmp_path / "out").write_bytes(b"notes")
    master = master_over(adapters)
    with pytest.raises(ConfigError, match=r"^output: .*/out is a file; give a folder"):
        master.start(job)
    assert (tmp_path / "out").read_bytes() == b"notes"
