"""Changes of a running job as the master has them: who is told, what is kept, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from essp.account import Account, account_of
from essp.audit.invariants import check
from essp_common.artifacts.history import History
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.job.changes import MOST_CHANGES, Place
from essp_common.job.position import Position
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import (
    AGGREGATOR,
    ChangeTaken,
    CheckpointReady,
    Control,
    Finished,
    Progress,
)
from essp_common.wiring import Adapters
from essp_master.job.changes import Changes
from tests.harness.fleet import Fleet, make_job, run_to_rest
from tests.harness.masters import master_named

LR, STRATEGIES = "trainers.rgb.optimizer.lr", "aggregation.strategies"


def take(fleet: Fleet, number: int, place: Place, trainer: str = "rgb") -> None:
    """A trainer says where it takes a change."""
    taken = ChangeTaken(trainer=trainer, number=number, place=place.message())
    fleet.report(Progress(change_taken=taken, fence=1))


def told(fleet: Fleet) -> list[tuple[int, dict[str, str], dict[str, Place]]]:
    """What the last command tells of changes."""
    fleet.learn()
    return [
        (change.number, dict(change.fields), {name: Place.of(place) for name, place in change.places.items()})
        for change in fleet.commands[-1].changes
    ]


def account(fleet: Fleet) -> Account:
    return account_of(History(fleet.adapters.stores.under(fleet.job.output)).read())


def test_everybody_is_told_of_a_change_and_of_the_place_of_each_trainer(adapters: Adapters, fleet: Fleet) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    status = master.change("small", {LR: 0.001, "trainers.diff.optimizer.steps": [1]})
    fields = {LR: "0.001", "trainers.diff.optimizer.steps": "[1]"}
    assert told(fleet) == [(1, fields, {})]
    assert fleet.commands[-1].command == Control.RESUME
    assert (status.state, status.changes[0].fields[LR], status.changes[0].before[LR]) == ("running", 0.001, 0.01)
    take(fleet, 1, Place(0, 8))
    run_to_rest(master, fleet)
    assert told(fleet) == [(1, fields, {"rgb": Place(0, 8)})]
    take(fleet, 1, Place(0, 8))
    take(fleet, 1, Place(1, 0), "diff")
    run_to_rest(master, fleet)
    assert told(fleet) == [(1, fields, {"diff": Place(1, 0), "rgb": Place(0, 8)})]
    places = master.status("small").changes[0].places
    assert {name: (place.epoch, place.clip) for name, place in places.items()} == {"diff": (1, 0), "rgb": (0, 8)}
    assert [event.message for event in master.events("small") if event.kind == "change"] == [
        "job small: change 1: trainers.diff.optimizer.steps [1] instead of [], trainers.rgb.optimizer.lr 0.001 "
        "instead of 0.01",
        "rgb: change 1 counts from clip 8 of epoch 1 on: trainers.rgb.optimizer.lr 0.001 instead of 0.01",
        "diff: change 1 counts from epoch 2 on: trainers.diff.optimizer.steps [1] instead of []",
    ]


def test_what_is_so_already_is_no_change(adapters: Adapters, fleet: Fleet) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    assert master.change("small", {LR: 0.01}).changes == ()
    assert len(master.change("small", {LR: 0.5}).changes) == 1
    assert len(master.change("small", {LR: 0.5}).changes) == 1
    assert [change.number for change in master.change("small", {LR: 0.01}).changes] == [1, 2]


@pytest.mark.parametrize(
    "taken",
    [
        ChangeTaken(trainer="rgb", number=2),
        ChangeTaken(trainer="rgb", number=0),
        ChangeTaken(trainer="diff", number=1),
        ChangeTaken(trainer="nobody", number=1),
    ],
)
def test_what_nobody_can_have_taken_is_ignored(adapters: Adapters, fleet: Fleet, taken: ChangeTaken) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    master.change("small", {LR: 0.5})
    fleet.report(Progress(change_taken=taken))
    run_to_rest(master, fleet)
    assert master.status("small").changes[0].places == {}


def test_the_next_master_and_the_next_run_know_of_it(adapters: Adapters, fleet: Fleet) -> None:
    """The next master knows what was published, although the history lacks it; the next run, what is in the history."""
    first = master_named("m1", adapters)
    first.start(fleet.job)
    fleet.work()
    first.step(0)
    first._leave()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(first._history, "write", lambda *_: None)
        first.change("small", {LR: 0.5})
        take(fleet, 1, Place(0, 8))
    first._subscription.close()
    second = master_named("m2", adapters)
    assert [change.fields for change in second.status("small").changes] == [{LR: 0.5}]
    run_to_rest(second, fleet)
    assert told(fleet) == [(1, {LR: "0.5"}, {"rgb": Place(0, 8)})]
    assert second.change("small", {LR: 0.25}).changes[1].before == {LR: 0.5}
    second.stop("small")
    run_to_rest(second, fleet)
    with pytest.raises(Conflict, match="job small is stopped"):
        second.change("small", {LR: 1.0})
    second.start(fleet.job)
    assert [number for number, *_ in told(fleet)] == [1, 2], "in the same process"
    second.stop("small")
    run_to_rest(second, fleet)
    second.drain()
    second.run()
    third = master_named("m3", adapters)
    third.start(fleet.job)
    assert [number for number, *_ in told(fleet)] == [1, 2], "and in another one, by the history"
    assert told(fleet)[0][2] == {"rgb": Place(0, 8)}
    third.stop("small")
    third.start(fleet.job, fresh=True)
    assert told(fleet) == []


def test_what_cannot_be_changed_or_comes_too_late_is_refused(adapters: Adapters, fleet: Fleet) -> None:
    master = master_named("m1", adapters)
    with pytest.raises(NotFound):
        master.change("small", {LR: 0.5})
    master.start(fleet.job)
    with pytest.raises(ConfigError, match=r"aggregation\.strategies\.0: .* learns from the features"):
        master.change("small", {STRATEGIES: ["feature_linear"]})
    with pytest.raises(ConfigError, match=r"aggregation\.strategies\.0: no aggregator"):
        master.change("small", {STRATEGIES: ["mean_of_means"]})
    run_to_rest(master, fleet)
    final(fleet, "rgb")
    run_to_rest(master, fleet)
    with pytest.raises(Conflict, match="trainer rgb is done"):
        master.change("small", {LR: 0.5})
    master.change("small", {STRATEGIES: ["product"]})
    final(fleet, "diff")
    run_to_rest(master, fleet)
    with pytest.raises(Conflict, match="too late for other strategies"):
        master.change("small", {STRATEGIES: ["average"]})
    assert len(master.status("small").changes) == 1


def final(fleet: Fleet, trainer: str) -> None:
    ready = CheckpointReady(trainer=trainer, uri=f"file:///{trainer}", final=True)
    fleet.report(Progress(checkpoint=ready))


def test_changes_of_a_job_are_bounded(tmp_path: Path) -> None:
    """Each command about the job has all of them."""
    changes = Changes(make_job(tmp_path))
    for number in range(MOST_CHANGES):
        assert changes.make({"trainers.rgb.optimizer.lr": 1 / (number + 2)}, (), False, 0) is not None
    before = changes.spec
    with pytest.raises(Conflict, match=f"{MOST_CHANGES} changes were made to this job"):
        changes.make({"trainers.rgb.optimizer.lr": 0.9}, (), False, 0)
    assert (changes.spec, len(changes.made)) == (before, MOST_CHANGES)
    assert changes.make({"trainers.rgb.optimizer.lr": 1 / (MOST_CHANGES + 1)}, (), False, 0) is None, "it is so already"


@pytest.mark.parametrize(("known", "warned"), [(0, True), (1, False)])
def test_strategies_that_the_fusion_did_not_know_of_are_named(
    adapters: Adapters, fleet: Fleet, known: int, warned: bool
) -> None:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    master.change("small", {STRATEGIES: ["product"]})
    run_to_rest(master, fleet)
    fleet.report(Progress(finished=Finished(stage=AGGREGATOR, uri="file:///model", changes=known)))
    run_to_rest(master, fleet)
    assert master.status("small").state is JobState.COMPLETED
    warnings = [event.message for event in master.events("small") if "too late" in event.message]
    assert len(warnings) == warned
    assert not warned or "without aggregation.strategies" in warnings[0]


def checkpoint(fleet: Fleet, position: Position, *changes: tuple[int, Place], trainer: str = "rgb") -> None:
    held = [ChangeTaken(trainer=trainer, number=number, place=place.message()) for number, place in changes]
    ready = CheckpointReady(trainer=trainer, position=position.message(), changes=held)
    fleet.report(Progress(checkpoint=ready, fence=1))


@pytest.mark.parametrize(
    ("events", "violation"),
    [
        ([("save", Position(1, 0))], ""),
        ([("take", Place(0, 4)), ("save", Position(1, 0), (1, Place(0, 4)))], ""),
        ([("take", Place(0, 4)), ("save", Position(0, 4))], ""),
        ([("take", Place(0, 4)), ("take", Place(0, 8)), ("save", Position(0, 6)), ("save", Position(1, 0), (1, Place(0, 8)))], ""),  # noqa: E501
        ([("save", Position(1, 0)), ("take", Place(0, 4)), ("save", Position(1, 0), (1, Place(0, 4)))], ""),
        ([("take", Place(0, 4)), ("save", Position(1, 0))], "lacks change 1, taken from clip 4 of epoch 1 on"),
        ([("save", Position(1, 0), (1, Place(0, 4)))], "from clip 4 of epoch 1 on, which was never announced"),
        ([("take", Place(0, 4)), ("save", Position(1, 0), (1, Place(0, 6)))], "which was never announced"),
        ([("take", Place(1, 4)), ("save", Position(1, 0), (1, Place(1, 4)))], "which it has not reached"),
    ],
)  # fmt: skip
def test_the_audit_finds_checkpoints_that_do_not_hold_what_was_said(
    adapters: Adapters, fleet: Fleet, events: list[Any], violation: str
) -> None:
    """A trainer that died may have said several places; and one that fell back has saved before."""
    master = master_named("m1", adapters)
    master.start(fleet.job)
    master.change("small", {LR: 0.5})
    for what, where, *changes in events:
        if what == "take":
            take(fleet, 1, where)
        else:
            checkpoint(fleet, where, *changes)
    run_to_rest(master, fleet)
    master.drain()
    master.run()
    found = account(fleet)
    [resume] = [finding for finding in check(found, Anything(), None, 0) if finding.invariant == "exact resume"]
    assert "1 change of the running job" in resume.checked
    assert [violation in text for text in resume.violations] == ([True] if violation else [])
    assert found.changes[1].fields == {LR: "0.5"}


class Anything:
    """A plan in which every digest is right."""

    def digest(self, *_: Any) -> str:
        return ""
