"""Messages that arrive twice, late or out of order; processes with a wrong clock; slow consumers."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from essp_common import topics
from essp_common.bus.port import Record
from essp_common.wiring import Adapters
from tests.faults.conftest import Begin
from tests.faults.deployment import Deployment, said

pytestmark = pytest.mark.integration

REPLAYED = (topics.SEEDS, topics.CLIPS, topics.features("flow"), topics.PROGRESS)


def read(adapters: Adapters, job: str, count: int) -> list[Record]:
    """At least so many messages about a job, of every topic of work."""
    subscription = adapters.bus.subscribe(REPLAYED, None)
    found: list[Record] = []
    try:
        while len(found) < count or {record.topic for record in found} != set(REPLAYED):
            found += [record for record in subscription.poll(1000, 0.2) if job.encode() in record.value]
    finally:
        subscription.close()
    return found


def publish(adapters: Adapters, records: list[Record]) -> None:
    for record in records:
        adapters.bus.publish(record.topic, record.key, record.value, record.partition)
    adapters.bus.flush()


def test_every_message_comes_again_in_any_order(begin: Begin, consumers: Adapters) -> None:
    """In the midst of the job, twice; and once more when it is over, beside another job."""
    run = begin(hold_at=5).held()
    records = read(consumers, run.name, run.status().counts.issued * 4)
    again = records * 2
    random.Random(3).shuffle(again)
    publish(consumers, again)
    run.finish()
    everything = read(consumers, run.name, 2 * len(again))
    random.Random(4).shuffle(everything)
    publish(consumers, everything)
    begin().finish()


def test_a_slow_consumer_holds_the_others_back_and_no_more(deployment: Deployment, begin: Begin) -> None:
    """What is outstanding stays within the budget, at every look."""
    run = begin(hold_at=1)
    budget_bytes = run.status().credits.budget_bytes
    most: list[int] = []

    def within() -> bool:
        most.append(run.status().credits.outstanding_bytes)
        assert most[-1] <= budget_bytes
        return run.ended()

    run.pace("trainer.flow", 0.1)
    run.go()
    run.until("the slow one has everything", within)
    assert max(most) > budget_bytes / 2
    run.finish()


JUMPS = """
import contextlib, sys, time
_true, _jumped = (time.time, time.time_ns), []
def _hours():
    hours = int(time.monotonic() * 4) % 3 - 1
    if hours and not _jumped:
        _jumped.append(hours)
        with contextlib.suppress(OSError):  # a decoder's child may not write to files
            print("the clock jumps", file=sys.stderr, flush=True)
    return hours
time.time = lambda: _true[0]() + 3600 * _hours()
time.time_ns = lambda: _true[1]() + 3600 * 10**9 * _hours()
"""


@pytest.mark.usefixtures("undisturbed_large")
def test_clocks_jump_and_there_is_no_room_for_files(
    deployment: Deployment, begin: Begin, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By an hour, forth and back, four times a second: in workers, whose TMPDIR is not there either, in the master,
    and in the consumers."""
    (tmp_path / "sitecustomize.py").write_text(JUMPS)
    odd = {"PYTHONPATH": str(tmp_path), "TMPDIR": "/nowhere"}
    decoder, extractor = deployment.decoder(**odd), deployment.extractor(**odd)
    true = time.time
    monkeypatch.setattr(time, "time", lambda: true() + 3600 * (int(time.monotonic() * 4) % 3 - 1))
    for process in (decoder, extractor):
        assert said(deployment.joined(process), "the clock jumps")
    begin(large=True).finish()
    for process in (decoder, extractor):
        deployment.drain(process)
