"""Workers that die, hang, fall silent, or are told to leave, while a job is under way.

One healthy decoder and extractor are always there. Beside them come workers that are armed with a failpoint
(docs/faults.md), which has to be hit; jobs run until it was. What a worker had in hand then is done by the others.
"""

from __future__ import annotations

import signal

import pytest

from tests.faults.conftest import Begin
from tests.faults.world import LIMIT_S, World, said
from tests.integration.fleet import Process

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("fleet"), pytest.mark.timeout(300)]

KILLED = {
    "at the beginning of a record": ("worker.polled", "decoder.decoded", "worker.polled", "extractor.read"),
    "before and after a value is stored": ("decoder.stored", "redis.stored", "extractor.stored", "redis.acked"),
    "while results are announced": ("decoder.announced", "kafka.queued", "extractor.announced", "kafka.queued"),
    "before and after results are durable": ("decoder.flushed", "kafka.flushed", "extractor.flushed", "kafka.flushed"),
    "before and after the record is done": ("worker.handled", "worker.done", "extractor.acked", "worker.done"),
    "around a commit": ("kafka.committing", "kafka.committed", "kafka.committing", "kafka.committed"),
}
"""Where two decoders and two extractors die."""


@pytest.mark.usefixtures("undisturbed_large")
@pytest.mark.parametrize("row", KILLED)
def test_a_job_outlives_workers_killed(row: str, world: World, begin: Begin) -> None:
    names = KILLED[row]
    armed = [world.decoder(f"{name}:1:kill") for name in names[:2]]
    armed += [world.extractor(f"{name}:1:kill") for name in names[2:]]
    for process in armed:
        world.joined(process)
    while any(process.popen.poll() is None for process in armed):
        begin(large=True).finish()
    for process, name in zip(armed, names, strict=True):
        assert said(process, f"failpoint {name}: kill"), process.story()
        world.gone(process, -signal.SIGKILL)
