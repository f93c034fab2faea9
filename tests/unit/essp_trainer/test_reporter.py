"""What a trainer reports while the bus does not answer."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.bus.memory import MemoryBus
from essp_common.errors import FlowUnavailable
from essp_common.pb.v1.messages_pb2 import Control
from essp_trainer.assignment import Assignment
from essp_trainer.model.meter import Meter
from essp_trainer.reporter import Reporter
from tests.harness.training_jobs import Stage, job_spec, phase_plans


class Away(MemoryBus):
    """Takes nothing while it is away, as Kafka's once it has given up what it held."""

    def __init__(self) -> None:
        super().__init__()
        self.away = False

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        if self.away:
            raise FlowUnavailable("no broker answers")
        super().publish(topic, key, value, partition)


def test_an_outage_of_the_bus_costs_live_figures_and_no_training(tmp_path: Path) -> None:
    bus = Away()
    stage = Stage(job_spec(tmp_path), phase_plans(1), bus=bus)
    assignment = Assignment.of(stage.control(Control.START), "one")
    reporter = Reporter(bus, assignment, "w", 0.0, lambda: 0.0)
    [plan, *_] = assignment.phases
    bus.away = True
    reporter.step(plan, Meter(place=4), 0)
    reporter.step(plan, Meter(place=8), 0, last=True)
    with pytest.raises(FlowUnavailable):
        reporter.phase_over(plan, {})
    bus.away = False
    reporter.step(plan, Meter(place=10), 0)
    assert [report.clips_done for report in stage.reports("step")] == [10]
