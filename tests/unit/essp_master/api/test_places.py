"""However many look at a job, it can be stopped; and nobody takes all event streams."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack
from typing import Any

import httpx
from starlette.types import Receive, Scope, Send

from essp_master.api.guard import Guard
from essp_master.api.places import Places, Use


def test_streams_and_readers_leave_room_for_those_who_act() -> None:
    places = Places(24)  # 8 streams, 16 others, of which 12 may read
    with ExitStack() as under_way:
        for _ in range(4):
            assert not places.lack(Use.STREAM, "one")
            under_way.enter_context(places.taken(Use.STREAM, "one"))
        assert places.lack(Use.STREAM, "one") == "4 event streams of this caller are open"
        for _ in range(4):
            assert not places.lack(Use.STREAM, "another")
            under_way.enter_context(places.taken(Use.STREAM, "another"))
        assert places.lack(Use.STREAM, "third") == "8 event streams are open"
        for _ in range(12):
            assert not places.lack(Use.READ, "one")
            under_way.enter_context(places.taken(Use.READ, "one"))
        assert places.lack(Use.READ, "third") == "12 requests that read are under way"
        for _ in range(4):
            assert not places.lack(Use.ACT, "one")
            under_way.enter_context(places.taken(Use.ACT, "one"))
        assert places.lack(Use.ACT, "third") == "16 requests are under way"
    assert not any(places.lack(use, "one") for use in Use)


def test_a_job_can_be_stopped_while_the_places_of_readers_are_taken() -> None:
    async def story() -> None:
        free, reached = asyncio.Event(), asyncio.Queue[str]()

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            await reached.put(scope["method"])
            await free.wait()
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b""})

        guard: Any = Guard(app, tuple, 1000, 0.0, 12)
        async with AsyncExitStack() as stack:
            caller = await stack.enter_async_context(
                httpx.AsyncClient(transport=httpx.ASGITransport(guard), base_url="http://localhost")
            )
            readers = [asyncio.ensure_future(caller.get("/v1/jobs")) for _ in range(6)]
            for _ in readers:
                await reached.get()
            refused = await caller.get("/v1/jobs")
            assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
            stop = asyncio.ensure_future(caller.post("/v1/jobs/a:stop", headers={"Essp-Version": "0"}))
            assert await reached.get() == "POST"
            free.set()
            assert [(await answer).status_code for answer in (*readers, stop)] == [200] * 7

    asyncio.run(story())
