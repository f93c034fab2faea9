"""Links that fail during a job: between the workers and each server, and between the master and each server.

Requests and answers are lost, bytes are delayed for longer than the bus's session timeout, connections are reset and
refused, links are slow. Each test requires that the fault happened and that the result is the same as without it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from tests.faults.conftest import Begin
from tests.faults.deployment import SESSION_TIMEOUT_MS, Deployment
from tests.harness.proxy import Proxy
from tests.harness.waiting import LONGEST_S
from tests.lanes import often

pytestmark = pytest.mark.integration

HOLD_AT = 3
STEP = 4
"""Clips that go on under each fault."""


@dataclass(frozen=True)
class Fault:
    """What is done to links, and how one knows that it happened."""

    begin: Callable[[Proxy], None]
    counted: str
    times: int
    lasts_s: float = 0.0
    """How long it goes on after it has happened so often."""


LOST_REQUESTS = Fault(lambda link: link.lose_requests(2), "lost request", 2)
LOST_RESPONSES = Fault(lambda link: link.lose_responses(2), "lost response", 2)
SLOW = Fault(lambda link: link.slow(0.02), "delayed", 5)
CUT = Fault(Proxy.cut, "refused", 2, 0.5)
PARTITION = Fault(Proxy.partition, "held", 1, 1.25 * SESSION_TIMEOUT_MS / 1000)

WORKER = ("kafka", "redis", "s3")
MASTER = ("kafka", "redis")

ROWS: dict[str, tuple[str, list[tuple[tuple[str, ...], Fault]]]] = {
    "worker: loss and delay": ("worker", [(WORKER, LOST_REQUESTS), (WORKER, LOST_RESPONSES), (WORKER, SLOW)]),
    "worker: partition": ("worker", [(("kafka",), PARTITION), (("redis",), PARTITION), (("s3",), PARTITION)]),
    "master: loss and delay": ("master", [(MASTER, LOST_REQUESTS), (MASTER, LOST_RESPONSES), (MASTER, SLOW)]),
    "master: cut and partition": ("master", [(("kafka",), CUT), (("redis",), CUT), (MASTER, PARTITION)]),
    "worker: cut": ("worker", [(("kafka",), CUT), (("redis",), CUT), (("s3",), CUT)]),
}


@pytest.mark.parametrize("row", often(ROWS, 4))
def test_a_job_outlives(row: str, deployment: Deployment, begin: Begin) -> None:
    side, faults = ROWS[row]
    run = begin(hold_at=HOLD_AT).held()
    for number, (servers, fault) in enumerate(faults, start=1):
        links = [getattr(deployment.links[side], server) for server in servers]
        before = [link.faults[fault.counted] for link in links]
        for link in links:
            fault.begin(link)
        run.hold(HOLD_AT + number * STEP)
        for link, count in zip(links, before, strict=True):
            assert link.wait_for(fault.counted, count + fault.times, LONGEST_S), f"{link.faults}: {servers}, {fault}"
        threading.Event().wait(fault.lasts_s)
        for link in links:
            link.heal()
    run.finish()
