"""The status of a job is made once a second, however many streams send it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from essp_common.errors import NotFound
from essp_common.job.status import JobStatus
from essp_common.wiring import Adapters
from essp_master.api.status_feed import StatusFeed, Watched
from essp_master.job.events import EventLog
from essp_master.service import Master
from tests.harness.fleet import Clock, Fleet
from tests.harness.masters import master_named


class Counting(Master):
    """Counts how often the status of each job is made."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self.asked: list[str] = []

    def watched(self, name: str) -> tuple[JobStatus, EventLog]:
        self.asked.append(name)
        return self._master.watched(name)


@pytest.fixture
def master(fleet: Fleet, adapters: Adapters) -> Counting:
    master = master_named("m1", adapters)
    master.start(fleet.job)
    return Counting(master)


def test_many_readers_cost_one_status_a_second(master: Counting) -> None:
    clock = Clock()
    feed = StatusFeed(master, clock)

    async def read(readers: int) -> Sequence[Watched]:
        return await asyncio.gather(*(feed.of("small") for _ in range(readers)))

    async def story() -> None:
        first = await read(50)
        clock.now_s += 0.9
        assert all(one.status is first[0].status for one in [*first, *await read(50)])
        assert master.asked == ["small"]
        clock.now_s += 0.1
        await read(50)
        assert master.asked == ["small"] * 2

    asyncio.run(story())


def test_a_job_that_is_not_there_is_asked_for_again(master: Counting) -> None:
    clock = Clock()
    feed = StatusFeed(master, clock)

    async def story() -> None:
        for _ in range(2):
            with pytest.raises(NotFound):
                await feed.of("no")
            clock.now_s += 1.0
        assert (await feed.of("small")).last_event > 0

    asyncio.run(story())
    assert master.asked == ["no", "no", "small"]


def test_a_reader_that_leaves_takes_the_status_from_no_other(master: Counting) -> None:
    feed = StatusFeed(master, Clock())

    async def story() -> None:
        leaving = asyncio.ensure_future(feed.of("small"))
        staying = asyncio.ensure_future(feed.of("small"))
        await asyncio.sleep(0)
        leaving.cancel()
        assert (await staying).status.startswith(b"event: status\ndata: {")

    asyncio.run(story())
