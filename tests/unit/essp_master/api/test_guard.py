"""Nobody gets past the guard without a token: it decides by the path that the router sees, and knows what is open."""

from __future__ import annotations

import asyncio
import hashlib
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.datastructures import URL
from starlette.requests import HTTPConnection
from starlette.routing import BaseRoute

from essp_common.errors import ConfigError, Unavailable
from essp_common.runtime.api_token import Right
from essp_master.api import page, standby
from essp_master.api.app import create_app
from essp_master.api.guard import OPEN_PATHS, guarded, needed
from essp_master.api.standby import create_standby
from essp_master.api.tokens import Tokens
from essp_master.config import MasterSettings
from tests.harness.fleet import Clock
from tests.harness.serving import Served, served
from tests.harness.waiting import LONGEST_S
from tests.unit.essp_master.api.test_jobs import problem

HOSTS = (b"x/livez?", b"x/livez#", b"livez", b"[", b"", b"x@y:99999/..", b"\xff", b"localhost/metrics?a=")
METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "FOO")
SETTINGS = MasterSettings.model_validate({"api_token": "swordfish", "api_requests_per_s": 0})


def status_of(
    app: Any, method: str, path: str, host: bytes = b"localhost", root_path: str = "", kind: str = "http"
) -> int:
    """What an app answers to a scope, without a server between."""
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        **{"type": kind, "method": method, "path": path, "raw_path": path.encode(), "query_string": b""},
        **{"root_path": root_path, "headers": [(b"host", host)], "http_version": "1.1", "scheme": "http"},
        **{"server": ("127.0.0.1", 80), "client": ("127.0.0.1", 1), "state": {}},
    }
    asyncio.run(app(scope, receive, send))
    return int(sent[0]["status"])


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FastAPI]:
    with Served(tmp_path_factory.mktemp("guard")) as served:
        yield create_app(served.master, SETTINGS)


def paths_of(routes: list[BaseRoute]) -> set[str]:
    found = {"/", "/nowhere", "/v1", "/v1/", "/livez/", "//livez", "/livez/../v1/jobs", "/page/", "/page/x"}
    for path in HTTP_PATHS:
        found.add(path.format(name="a"))
    return found | {str(getattr(route, "path", "/")).replace("{name}", "a") for route in routes}


HTTP_PATHS = (
    *("/v1/jobs", "/v1/jobs/", "/v1/jobs/{name}", "/v1/jobs/{name}:stop", "/v1/jobs/{name}/events"),
    *("/v1/jobs/{name}/log", "/v1/extractors", "/v1/extractors/{name}", "/v1/trainers", "/v1/trainers/{name}"),
    *("/v1/registrations/changes", "/v1/pools", "/v1/pools/events", "/v1/pools/{name}"),
)


def test_no_route_answers_without_a_token_whatever_host_is_sent(app: FastAPI) -> None:
    for path in paths_of(app.routes) - OPEN_PATHS:
        for host in HOSTS:
            for method in METHODS:
                assert status_of(app, method, path, host) in (401, 403), (method, path, host)
            assert status_of(app, method, path) == 401, (method, path)


def test_what_a_url_is_put_together_of_does_not_matter(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some versions of the framework put the header Host into the URL as it is, `x/livez?` among them."""
    monkeypatch.setattr(HTTPConnection, "url", property(lambda self: URL("http://x/livez?/v1/jobs")))
    for path in HTTP_PATHS:
        assert status_of(app, "GET", path.format(name="a")) == 401
    assert status_of(guarded(create_standby(lambda: "", ""), SETTINGS), "GET", "/v1/jobs") == 401


@pytest.mark.parametrize("root_path", ["/livez", "/v1/jobs", "/x"])
def test_a_prefix_of_a_proxy_opens_nothing(app: FastAPI, root_path: str) -> None:
    for path in HTTP_PATHS:
        assert status_of(app, "GET", root_path + path.format(name="a"), root_path=root_path) == 401


@given(path=st.text(st.characters(codec="utf-8"), max_size=30).map(lambda text: f"/{text}"))
@settings(suppress_health_check=list(HealthCheck))
def test_only_the_open_paths_are_open(app: FastAPI, path: str) -> None:
    if path not in OPEN_PATHS:
        assert status_of(app, "GET", path) == 401


def test_the_open_paths_are_open_for_reading_alone(app: FastAPI) -> None:
    for path in OPEN_PATHS:
        assert status_of(app, "GET", path) in (200, 503), path
        assert status_of(app, "POST", path) == 401


def test_another_protocol_is_refused(app: FastAPI) -> None:
    with pytest.raises(RuntimeError, match="speaks HTTP"):
        status_of(app, "GET", "/v1/jobs", kind="websocket")


def test_a_path_that_nobody_thought_of_needs_everything() -> None:
    assert needed("POST", "/v1/jobs") == needed("POST", "/v1/jobs/a:stop") == Right.OPERATE
    assert needed("PUT", "/v1/extractors/a") == needed("PUT", "/v1/pools/a") == Right.REGISTER
    for path in ("/v1/jobsx", "/v1/new", "/", "/v1/extractorsx"):
        assert needed("PUT", path) == Right.ADMIN


def test_a_standby_passes_on_the_path_that_was_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing listens there; the answer says which path was asked for."""
    asked: list[str] = []

    async def send(self: object, request: Any, stream: bool) -> None:
        asked.append(str(request.url))
        raise Unavailable("gone")

    monkeypatch.setattr("httpx.AsyncClient.send", send)
    app = guarded(create_standby(lambda: "http://leader:1", ""), MasterSettings())
    assert status_of(app, "GET", "/v1/jobs") == 503
    assert asked == ["http://leader:1/v1/jobs"]


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"])
def test_nobody_waits_for_a_leader_that_is_gone(monkeypatch: pytest.MonkeyPatch, says: bytes) -> None:
    """Its node is, too: the connection stays, and nothing comes over it. Before an answer began, or within it."""
    monkeypatch.setattr(standby, "_LOOK_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        leaders = [url]
        gone = threading.Thread(target=_answer_in_part, args=[listener, says, leaders])
        gone.start()
        with served(create_standby(lambda: leaders[-1], "")) as own:
            request = httpx.Request("GET", f"{own}/v1/jobs/small/events")
            with httpx.Client(verify=False, timeout=LONGEST_S) as client:
                if says:
                    with pytest.raises(httpx.RemoteProtocolError):
                        client.send(request)
                else:
                    answer = client.send(request)
                    assert "another master leads" in problem(answer, 503)["detail"]
                    assert answer.headers["retry-after"] == "2"
        gone.join()


def _answer_in_part(listener: socket.socket, says: bytes, leaders: list[str]) -> None:
    """Say this, and no more until the other side closes."""
    connection, _ = listener.accept()
    with connection:
        connection.recv(2**16)
        connection.sendall(says)
        leaders.append("http://other:1")
        with suppress(ConnectionError):
            connection.recv(1)


def test_a_wrong_token_reads_otherwise_than_none(tmp_path: Path) -> None:
    with Served(tmp_path, api_token="swordfish") as served:
        none = problem(served.client.get("/v1/jobs"), 401)["detail"]
        wrong = problem(served.client.get("/v1/jobs", headers={"Authorization": "Bearer herring"}), 401)["detail"]
        basic = problem(served.client.get("/v1/jobs", headers={"Authorization": "Basic eDp5"}), 401)["detail"]
    assert "needs the header" in none
    assert "is wrong" in wrong
    assert "herring" not in wrong
    assert "Bearer" in basic


@pytest.mark.parametrize("installed", [True, False])
def test_the_description_is_open_to_a_browser_and_loads_nothing_from_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, installed: bool
) -> None:
    """Where Swagger UI is not installed, it lists the calls."""
    if not installed:
        monkeypatch.setattr(page, "_swagger", lambda: None)
    with Served(tmp_path, api_token="swordfish") as served:
        found = served.client.get("/docs")
        assert found.status_code == 200
        assert "http://" not in found.text
        assert "https://" not in found.text
        assert "default-src 'self'" in found.headers["content-security-policy"]
        parts = [part for part in re.findall('(?:src|href)="([^"#]+)"', found.text) if part not in ("./", ".")]
        assert {served.client.get(f"/{part}").status_code for part in parts} == {200}
        assert ("/v1/jobs/{name}" in found.text, "pip install" in found.text) == (not installed, not installed)
        assert served.client.get("/docs/swagger-ui.css").status_code == (200 if installed else 404)
        assert served.client.get("/docs/..%2f__init__.py").status_code in (401, 404)
        assert served.client.get("/openapi.json").json()["info"]["title"] == "ESSP"
        assert served.client.get("/favicon.ico").headers["content-type"] == "image/svg+xml"


def test_the_token_may_stand_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("swordfish\n")
    with Served(tmp_path, api_token_file=str(file)) as served:
        assert served.client.get("/v1/jobs", headers={"Authorization": "Bearer swordfish"}).status_code == 200
        assert served.client.get("/v1/jobs", headers={"Authorization": "Bearer other"}).status_code == 401
    for wrong in ({"api_token": "also"}, {"api_token_file": str(tmp_path / "none")}):
        with pytest.raises(ConfigError, match="ESSP_API_TOKEN_FILE"):
            MasterSettings.model_validate({"api_token_file": str(file), **wrong}).tokens()


def test_another_token_in_the_file_counts_without_a_restart(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, clock = tmp_path / "token", Clock()
    file.write_text("first")
    tokens = Tokens(MasterSettings(api_token_file=str(file)), clock)
    first = tokens()
    file.write_text("second")
    clock.now_s += 10
    second = tokens()
    assert [[token.sha256 for token in found] for found in (first, second)] == [
        [hashlib.sha256(text).hexdigest()] for text in (b"first", b"second")
    ]
    file.unlink()  # as it may be for a moment
    clock.now_s += 10
    assert tokens() == second
    assert "cannot be read" in caplog.text
