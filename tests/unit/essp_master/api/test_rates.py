"""One caller cannot take the API from everybody else."""

from __future__ import annotations

import asyncio
import hashlib

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from essp_common.runtime.api_token import ApiToken, Right
from essp_master.api.guard import Guard
from essp_master.api.problems import MEDIA_TYPE
from essp_master.api.rates import RESERVE_S, Rates
from essp_master.config import MasterSettings
from tests.harness.fleet import Clock


def test_a_caller_has_some_in_reserve_and_then_its_rate() -> None:
    clock = Clock()
    rates = Rates(10.0, clock)
    assert [rates.wait_s("a") for _ in range(20)] == [0.0] * 20
    assert rates.wait_s("a") == pytest.approx(0.1)
    assert rates.wait_s("b") == 0.0
    clock.now_s += 0.1
    assert rates.wait_s("a") == 0.0
    assert rates.wait_s("a") > 0.0


@given(st.lists(st.floats(0, 3), min_size=1, max_size=200), st.floats(0.5, 20))
def test_nobody_gets_more_than_the_rate_and_the_reserve(pauses: list[float], per_s: float) -> None:
    clock = Clock()
    rates = Rates(per_s, clock)
    admitted = 0
    for pause in pauses:
        clock.now_s += pause
        admitted += rates.wait_s("a") == 0.0
    assert admitted <= max(1.0, per_s * RESERVE_S) + per_s * sum(pauses) + 1e-6


def test_who_waits_as_long_as_he_is_told_is_let_in() -> None:
    clock = Clock()
    rates = Rates(0.7, clock)
    while not (wait_s := rates.wait_s("a")):
        pass
    clock.now_s += wait_s + 1e-9
    assert rates.wait_s("a") == 0.0


def test_zero_is_no_limit_and_callers_are_forgotten() -> None:
    assert not any(Rates(0.0).wait_s("a") for _ in range(1000))
    rates = Rates(1.0, Clock())
    for number in range(20_000):
        rates.wait_s(f"address {number}")
    assert len(rates._left) == 10_000


class Api:
    """An app, asked without a network."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    def get(self, path: str, headers: dict[str, str] | None = None) -> httpx.Response:
        async def ask() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=httpx.ASGITransport(self._app), base_url="http://localhost"
            ) as client:
                return await client.get(path, headers=headers)

        return asyncio.run(ask())


def client(requests_per_s: float, *tokens: str) -> Api:
    """An API behind the guard, and nothing in it."""

    def answer(request: Request) -> PlainTextResponse:
        return PlainTextResponse("ok")

    known = [
        ApiToken(name=token, sha256=hashlib.sha256(token.encode()).hexdigest(), scopes=frozenset({Right.READ}))
        for token in tokens
    ]
    app = Starlette(routes=[Route("/{path:path}", answer)])
    return Api(Guard(app, lambda: known, 1024, requests_per_s))


def status(of: Api, path: str = "/v1/jobs", token: str = "") -> int:
    return of.get(path, headers={"Authorization": f"Bearer {token}"} if token else {}).status_code


def test_too_many_requests_are_answered_with_when_to_come_back() -> None:
    api = client(0.01)
    assert status(api) == 200
    answer = api.get("/v1/jobs")
    assert (answer.status_code, answer.headers["content-type"]) == (429, MEDIA_TYPE)
    assert 1 <= int(answer.headers["retry-after"]) <= 100
    assert "ESSP_API_REQUESTS_PER_S" in answer.json()["detail"]


def test_each_token_has_its_own_and_so_has_who_has_none() -> None:
    api = client(0.01, "ann", "bob")
    assert [status(api, token="ann"), status(api, token="ann"), status(api, token="bob")] == [200, 429, 200]
    assert [status(api, token="guess1"), status(api, token="guess2")] == [401, 429]
    assert status(api, token="bob") == 429


def test_probes_and_metrics_are_always_answered() -> None:
    api = client(0.01)
    assert {status(api, path) for path in ("/livez", "/readyz", "/metrics") * 5} == {200}


def test_people_and_the_page_stay_far_below_the_default() -> None:
    assert MasterSettings().api_requests_per_s >= 50
