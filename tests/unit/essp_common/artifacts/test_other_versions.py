"""An upgrade while a job is under way: what another version writes is understood, though it says more, or less."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from essp_common import topics
from essp_common.artifacts import layout
from essp_common.bus.memory import MemoryBus
from essp_common.job.status import JobState
from essp_common.pb.v1.messages_pb2 import Control, JobSnapshot
from essp_common.wiring import Adapters
from essp_trainer.assignment import Assignment
from tests.harness.fleet import Fleet, adapters_in, run_to_rest
from tests.harness.masters import BOTH, die, master_named, written

pytestmark = pytest.mark.slow

UNKNOWN = bytes.fromhex("c23e056e65776572")
"""Field 1000 of a message: "newer"."""


def more(document: str) -> str:
    """The specification of a job as a later version writes it."""
    fields = json.loads(document)
    return json.dumps({**fields, "newer": 1, "limits": {**fields["limits"], "newer": [1]}})


def less(document: str) -> str:
    """As an earlier version wrote it, which had not so many fields."""
    fields = json.loads(document)
    return json.dumps({**fields, "limits": {"budget": fields["limits"]["budget"], "dead_ratio": 0.9}})


class OtherBus(MemoryBus):
    """Every message is one of another version."""

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        if topic == topics.CONTROL:
            command = Control.FromString(value)
            if command.HasField("snapshot"):
                command.snapshot.MergeFrom(JobSnapshot(spec_json=more(command.snapshot.spec_json)))
                value = command.SerializeToString()
        super().publish(topic, key, value + UNKNOWN, partition)


@pytest.fixture
def adapters(tmp_path: Path) -> Iterator[Adapters]:
    bus = OtherBus()
    bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
    made = replace(adapters_in(tmp_path), bus=bus)
    yield made
    made.close()


@pytest.mark.parametrize("other", [more, less])
def test_a_job_is_taken_over_from_another_version_and_comes_to_its_end(
    adapters: Adapters, fleet: Fleet, other: Any
) -> None:
    first = master_named("m1", adapters)
    first.start(fleet.job)
    fleet.work()
    written(first, fleet)
    die(first)
    output = adapters.stores.under(fleet.job.output)
    output.put(layout.SPEC, other(output.get(layout.SPEC).decode()).encode())
    second = master_named("m2", adapters)
    assert second.status("small").state is JobState.RUNNING
    run_to_rest(second, fleet)
    assert fleet.trained == BOTH


def test_a_trainer_understands_the_command_of_another_version(fleet: Fleet) -> None:
    master = master_named("m1", fleet.adapters)
    master.start(fleet.job)
    [command] = fleet.learn()
    assert "newer" in command.snapshot.spec_json
    assert Assignment.of(command, "rgb").spec == fleet.job
