"""Checkpoints that go through a burst buffer on their way to the store."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import REGISTRY

from essp_common.artifacts import checkpoint, checkpoint_writer, layout
from essp_common.artifacts.checkpoint_writer import CheckpointWriter
from essp_common.artifacts.staging import Staging, parse_burst
from essp_common.errors import Unavailable
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime.metrics import CHECKPOINTS
from tests.harness.checkpoints import manifests
from tests.harness.training_jobs import Running, Stage, final_weights, job_spec, last_training_state, phase_plans, train
from tests.harness.troubled_stores import Slow, Unreliable
from tests.harness.waiting import until
from tests.lanes import often

pytestmark = pytest.mark.slow


def burst(folder: Path, size: str = "1GiB") -> str:
    return f"{folder.as_uri()}?bytes={size}"


@pytest.mark.parametrize("ranks", often([2, 1], 1))
def test_training_goes_on_while_staged_checkpoints_wait_for_the_store(tmp_path: Path, ranks: int) -> None:
    """They count once they are durable, and those that were not begun to be copied come to nothing."""
    stores = Slow()
    staged = CHECKPOINTS.labels("staged")._value.get()
    stage = Stage(job_spec(tmp_path / "slow", checkpoint={"every": 2, "keep": 9}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, ranks, burst=burst(tmp_path / "nvme")) as running, ExitStack() as leaving:
        leaving.callback(stores.allowed.set)
        stage.wait_for_trained(16)  # without a buffer no more than two batches are trained
        until(lambda: CHECKPOINTS.labels("staged")._value.get() - staged == 3)
        assert stage.reports("checkpoint") == []
        assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == len(stage.every_position())
        stores.allowed.set()
        running.join()
    assert running.error is None
    assert stage.reports("trouble") == []
    plain = Stage(job_spec(tmp_path / "plain", checkpoint={"every": 2, "keep": 9}), phase_plans(2))
    train(plain, ranks=ranks)
    assert final_weights(stage) == final_weights(plain)
    assert last_training_state(stage) == last_training_state(plain)
    steps = checkpoint.steps(stage.store, "one")
    assert {4, 10, 26, 39} <= set(steps) < set(checkpoint.steps(plain.store, "one"))
    assert stage.bus.backlog("essp.clips", "trainer.one.tiny") == 0
    assert sorted(path.name for path in (tmp_path / "nvme").rglob("*") if path.is_file()) == ["lock", "owner"]


@pytest.mark.parametrize("trouble", often(["no room", "another process", "no folder"], 1))
def test_a_burst_buffer_that_cannot_be_used_costs_no_checkpoint(tmp_path: Path, whole: Stage, trouble: str) -> None:
    CHECKPOINTS.clear()
    stage = Stage(job_spec(tmp_path / "run", checkpoint={"every": 4}), phase_plans(2))
    folder, room = tmp_path / "nvme", "1KiB" if trouble == "no room" else "1GiB"
    if trouble == "no folder":
        folder.write_text("a file")
    with ExitStack() as stack:
        if trouble == "another process":
            place = Staging(parse_burst(burst(folder)), stage.spec.output, "one", "")
            stack.enter_context(closing(place))
        stage.command(Control.START)
        stage.feed(stage.every_position())
        with Running(stage, burst=burst(folder, room)) as running:
            running.join()
    assert running.error is None
    [said] = stage.reports("trouble")
    assert "checkpoints go past the burst buffer" in said.reason
    assert not said.unsaved
    # Counted counted from 0: the increase of a counter that is born at 1 is not seen.
    assert REGISTRY.get_sample_value("essp_checkpoints_total", {"outcome": "failed"}) == 0
    assert final_weights(stage) == final_weights(whole)


def test_a_copy_that_failed_does_not_take_the_room_of_later_ones(tmp_path: Path, whole: Stage) -> None:
    """The buffer has room for one checkpoint, and what was saved past it meanwhile is newer than what it holds."""
    room = int(1.5 * max(sum(file.size_bytes for file in each.files) for each in manifests(whole)))
    stores = Unreliable(Unavailable("no answer"))
    stage = Stage(job_spec(tmp_path / "run", checkpoint={"every": 4}), phase_plans(2), stores=stores)
    positions = stage.every_position()
    stage.command(Control.START)
    stage.feed(positions[:8])
    staged = CHECKPOINTS.labels("staged")._value.get()
    with Running(stage, save_retry_s=0, burst=burst(tmp_path / "nvme", str(room))) as running:
        stage.wait_for("trouble")
        stage.wait_for_trained(8)
        assert CHECKPOINTS.labels("staged")._value.get() - staged == 1
        stores.failing = False
        stage.feed(positions[8:])
        running.join()
    assert running.error is None
    assert CHECKPOINTS.labels("staged")._value.get() - staged > 1
    assert final_weights(stage) == final_weights(whole)


@pytest.mark.parametrize("node", often(["same", "other"], 1))
def test_what_is_staged_is_resumed_from_where_it_lies(tmp_path: Path, whole: Stage, node: str) -> None:
    """The job's store refuses each checkpoint, and the process leaves. Then the store is well again."""
    stores = Unreliable(Unavailable("No space left on device"))
    stage = Stage(job_spec(tmp_path / "run", checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:8])
    with Running(stage, burst=burst(tmp_path / "same")) as running:
        stage.wait_for_trained(8)
    assert running.error is None
    assert checkpoint.read_latest(stage.store, "one") is None
    stores.failing = False
    again = Stage(stage.spec, stage.plans, stores=stores)
    again.command(Control.START)
    again.feed(again.every_position()[8 if node == "same" else 0 :])
    with Running(again, burst=burst(tmp_path / node)) as running:
        running.join()
    assert running.error is None
    assert final_weights(again) == final_weights(whole)
    assert last_training_state(again) == last_training_state(whole)


def test_a_training_that_could_not_be_taken_at_first_has_its_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, asked = checkpoint_writer.claim, list[str]()

    def away(store: ObjectStore, trainer: str, *more: Any) -> CheckpointWriter:
        asked.append(trainer)
        if len(asked) == 1:
            raise Unavailable("no answer", 0.01)
        return claim(store, trainer, *more)

    monkeypatch.setattr(checkpoint_writer, "claim", away)
    staged = CHECKPOINTS.labels("staged")._value.get()
    stage = Stage(job_spec(tmp_path / "run"), phase_plans(2))
    train(stage, burst=burst(tmp_path / "nvme"))
    assert (len(asked), stage.reports("trouble")) == (2, [])
    assert CHECKPOINTS.labels("staged")._value.get() > staged


def test_what_is_staged_of_a_training_that_ended_on_another_node_goes(tmp_path: Path) -> None:
    stores = Unreliable(Unavailable("No space left on device"))
    stage = Stage(job_spec(tmp_path / "run", checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:8])
    with Running(stage, burst=burst(tmp_path / "nvme")):
        stage.wait_for_trained(8)
    stores.failing = False
    train(Stage(stage.spec, stage.plans, stores=stores))
    back = Stage(stage.spec, stage.plans, stores=stores)
    back.command(Control.START)
    with Running(back, burst=burst(tmp_path / "nvme")) as running:
        back.wait_for_final(1)
    assert running.error is None
    assert sorted(path.name for path in (tmp_path / "nvme").rglob("*") if path.is_file()) == ["lock", "owner"]


def test_nothing_is_staged_that_follows_scores_which_the_store_has_not_taken(tmp_path: Path, whole: Stage) -> None:
    """A training that resumed from there would not make them again."""
    stores = Unreliable(Unavailable("503 Slow Down"), ["/scores/"])
    stage = Stage(job_spec(tmp_path / "run", checkpoint={"every": 4}), phase_plans(2), stores=stores)
    stage.command(Control.START)
    stage.feed(stage.every_position()[:20])
    with Running(stage, burst=burst(tmp_path / "nvme")):
        stage.wait_for_trained(20)
    stores.failing = False
    again = Stage(stage.spec, stage.plans, stores=stores)
    again.command(Control.START)
    again.feed(again.every_position()[10:])
    with Running(again, burst=burst(tmp_path / "nvme")) as running:
        running.join()
    assert running.error is None
    scores = layout.scores("one", "validation", 0)
    assert again.store.get(scores) == whole.store.get(scores)
    assert final_weights(again) == final_weights(whole)
