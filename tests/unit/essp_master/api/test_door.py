"""Every route is behind the door: foreign names, foreign pages, forms, and other teams' tokens are refused.

The routes are those that the app has, so a new one is asked as well.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from starlette.datastructures import Headers
from starlette.routing import BaseRoute, Route

from essp_common.distribution import VERSION_HEADER
from essp_common.job.status import JobState
from essp_common.runtime.hosts import plain
from essp_engine.preflight.output import Asked
from essp_master.api.app import create_app
from essp_master.api.door import Door, untyped
from essp_master.api.standby import create_standby
from essp_master.config import MasterSettings
from essp_master.pools.observe_only import ObserveOnlyDriver
from essp_master.pools.pool_events import PoolEvents
from essp_master.pools.port import PlatformRefuses
from essp_master.pools.reconciler import Reconciler
from tests.harness.fleet import adapters_in, make_job, master_over
from tests.harness.serving import Served, served, whole_app
from tests.harness.waiting import LONGEST_S

EVIL = "http://evil.example"
FOREIGN = {
    "another name (DNS rebinding)": {"Host": "evil.example"},
    "another name with our port": {"Host": "evil.example:8080"},
    "a name that begins like ours": {"Host": "localhost.evil.example"},
    "another address": {"Host": "10.9.8.7:8080"},
    "no name": {"Host": ""},
    "a page of another site": {"Origin": EVIL},
    "a page without a site": {"Origin": "null"},
    "a page of another port": {"Origin": "http://127.0.0.1:1"},
    "a page of another scheme": {"Origin": "file://127.0.0.1"},
    "a request of another site": {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    "a request of another port": {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"},
    "a form of another site": {
        "Sec-Fetch-Site": "cross-site",
        "Sec-Fetch-Mode": "navigate",
        "Sec-Fetch-Dest": "iframe",
    },
}
FORMS = (
    "text/plain",
    "text/plain;charset=UTF-8",
    "application/x-www-form-urlencoded",
    "multipart/form-data; boundary=x",
)
PROBES = ("/livez", "/readyz")
WITH_BODY = ("POST", "PUT", "PATCH")


def token(name: str, team: str = "", *scopes: str) -> dict[str, Any]:
    digest = hashlib.sha256(name.encode()).hexdigest()
    return {"name": name, "sha256": digest, "scopes": scopes or ("read", "operate", "register"), "team": team}


def bearer(name: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {name}"}


def routes_of(routes: Sequence[BaseRoute]) -> Iterator[Route]:
    """Those of included routers, too."""
    for route in routes:
        if (router := getattr(route, "original_router", None)) is not None:
            yield from routes_of(router.routes)
        else:
            assert isinstance(route, Route), f"another kind of route, {route}: is it behind the guard?"
            yield route


class Place:
    """An API with all its parts, tokens of two teams, and a job of one of them."""

    def __init__(self, folder: Path, url: str, app: FastAPI, client: httpx.Client, output: str) -> None:
        self.folder, self.url, self.app, self.client, self.output = folder, url, app, client, output

    def calls(self) -> Iterator[tuple[str, str]]:
        """All methods of all routes."""
        for route in routes_of(self.app.routes):
            path = route.path.replace("{name}", "small").replace("{stream}", "rgb")
            yield from ((method, path) for method in sorted(route.methods or ()))


def made(folder: Path, tokens: list[dict[str, Any]]) -> Iterator[Place]:
    with closing(adapters_in(folder)) as adapters:
        settings = MasterSettings.model_validate({"api_requests_per_s": 0, "api_tokens": tokens})
        master, job = master_over(adapters), make_job(folder)
        master.start(job, asked=Asked("vision"))
        app = whole_app(master, folder, settings)
        assert isinstance(app, FastAPI)
        with served(app, settings) as url, httpx.Client(base_url=url, timeout=LONGEST_S, verify=False) as client:
            yield Place(folder, url, app, client, job.output)
        assert master.status("small").state is JobState.RUNNING, "nobody has stopped or paused it"


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """It has tokens of two teams, and the job is one's."""
    tokens = [token("ours", "vision"), token("theirs", "speech"), token("none"), token("root", "", "admin")]
    yield from made(tmp_path_factory.mktemp("closed"), [*tokens, token("meter", "", "metrics")])


@pytest.fixture(scope="module")
def unlocked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """It asks for no token."""
    yield from made(tmp_path_factory.mktemp("open"), [])


@pytest.fixture(params=["closed", "unlocked"])
def place(request: pytest.FixtureRequest) -> Place:
    found: Place = request.getfixturevalue(request.param)
    return found


def refusals(place: Place, headers: dict[str, str]) -> dict[tuple[str, str], httpx.Response]:
    """What every route answers to such a request: asked without a network, which takes a tenth of the time."""

    async def ask() -> dict[tuple[str, str], httpx.Response]:
        transport = httpx.ASGITransport(place.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
            return {
                (method, path): await client.request(method, path, headers=headers, content=b"{}")
                for method, path in place.calls()
                if not (path in PROBES and set(headers) & {"Host"})  # of load balancers, which use names of their own
            }

    return asyncio.run(ask())


@pytest.mark.parametrize("what", FOREIGN)
def test_no_route_lets_a_foreign_page_in(place: Place, what: str) -> None:
    """With a token, too: a page may have talked somebody out of one."""
    answers = refusals(place, {**bearer("root"), "Content-Type": "application/json", **FOREIGN[what]})
    assert len(answers) > 30
    for call, answer in answers.items():
        assert answer.status_code == 403, (call, answer.text)
        assert "access-control-allow-origin" not in answer.headers


def test_a_preflight_of_a_foreign_page_is_refused(place: Place) -> None:
    headers = {"Origin": EVIL, "Access-Control-Request-Method": "PATCH"}
    assert place.client.options("/v1/jobs/small", headers=headers).status_code == 403


@pytest.mark.parametrize("kind", ["", *FORMS])
def test_no_route_takes_what_a_form_can_send(place: Place, kind: str) -> None:
    headers = {**bearer("root"), **({"Content-Type": kind} if kind else {})}
    changing = [(method, path) for method, path in place.calls() if method in WITH_BODY]
    assert {path for _, path in changing} >= {
        "/v1/jobs",
        "/v1/jobs/small:stop",
        "/v1/pools/{name}".format(name="small"),
    }
    for method, path in changing:
        answer = place.client.request(method, path, headers=headers, content=b"name: evil")
        assert answer.status_code == 415, (method, path, answer.text)
        assert "send Content-Type: application/json" in answer.json()["detail"]


def test_without_a_token_a_form_cannot_even_send_nothing(place: Place) -> None:
    is_open = place.client.get("/v1/jobs").status_code == 200
    answer = place.client.post("/v1/jobs/small:pause")
    assert answer.status_code == (415 if is_open else 401)
    for own in ({"Content-Type": "application/json"}, {VERSION_HEADER: "1"}):
        answer = place.client.post("/v1/jobs/no:pause", headers={**bearer("root"), **own})
        assert answer.status_code == 404, "it is let in"


def test_yaml_is_taken_where_jobs_are(place: Place) -> None:
    for kind in ("application/yaml", "text/yaml; charset=utf-8", "application/x-yaml"):
        headers = {**bearer("root"), "Content-Type": kind}
        assert place.client.post("/v1/jobs:validate", headers=headers, content=b"name: x").status_code == 422
        assert place.client.put("/v1/pools/decoder", headers=headers, content=b"min: 1").status_code == 415


def test_its_own_page_and_its_own_names_are_let_in(place: Place) -> None:
    port = place.url.rpartition(":")[2]
    for name in ("localhost", "127.0.0.1", "[::1]", "LOCALHOST", "localhost."):
        own = {"Host": f"{name}:{port}", "Origin": f"http://{name.lower()}:{port}", "Sec-Fetch-Site": "same-origin"}
        assert place.client.get("/v1/jobs", headers={**bearer("root"), **own}).status_code == 200, name


def test_a_link_of_another_site_leads_to_the_page_and_to_nothing_else(place: Place) -> None:
    link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert place.client.get("/", headers=link).status_code == 200
    assert place.client.get("/v1/jobs", headers={**link, **bearer("root")}).status_code == 403


@pytest.mark.parametrize(
    ("name", "let_in"),
    [
        ("essp.example.org", True),
        ("ESSP.example.org:443", True),
        ("a.pages.example.org", True),
        ("pages.example.org", False),
        ("essp.example.org.evil.example", False),
        ("essp.example.org@evil.example", False),
        ("[fd00::1]:8080", True),
        ("[fd00:0::0:1]", True),
        ("10.0.0.9", False),
    ],
)
def test_names_that_are_configured(name: str, let_in: bool) -> None:
    door = Door(["essp.example.org", "*.pages.example.org", "[fd00::1]"])
    scope = {"type": "http", "headers": [(b"host", name.encode())], "server": ("10.0.0.1", 8080)}
    assert (door.refusal(scope, probe=False, page=False) is None) == let_in


@pytest.mark.parametrize("local", ["10.0.0.1", "::ffff:10.0.0.1"])
def test_the_address_that_is_connected_to_is_a_name(local: str) -> None:
    scope = {"type": "http", "headers": [(b"host", b"10.0.0.1:8080")], "server": (local, 8080)}
    assert Door().refusal(scope, probe=False, page=False) is None
    proxied = {**scope, "headers": [(b"host", b"10.0.0.1"), (b"origin", b"https://10.0.0.1:443")]}
    assert Door().refusal(proxied, probe=False, page=False) is None, "a proxy that speaks TLS is in front"


@pytest.mark.parametrize("host", ["", "a b", "a@b", "a/b", "[", "a,b", "a:b", "\xff:", "a:123456"])
def test_what_is_no_host_has_no_name(host: str) -> None:
    assert plain(host) == "" or host == "\xff:"


def test_two_hosts_are_none() -> None:
    """A proxy before this server may have looked at the other one."""
    headers = [(b"host", b"localhost"), (b"host", b"evil.example")]
    scope = {"type": "http", "headers": headers, "server": ("127.0.0.1", 8080)}
    assert Door().refusal(scope, probe=False, page=False) is not None


def test_two_content_types_are_none() -> None:
    raw = [(b"content-type", b"application/json"), (b"content-type", b"text/plain")]
    assert untyped("POST", Headers(raw=raw), yaml=False, bare=True) is not None


@pytest.mark.parametrize("body", [(b"content-length", b"3"), (b"transfer-encoding", b"chunked")])
def test_a_body_without_a_content_type_is_refused_where_none_is_needed(body: tuple[bytes, bytes]) -> None:
    assert untyped("POST", Headers(raw=[]), yaml=False, bare=True) is None
    assert untyped("POST", Headers(raw=[body]), yaml=False, bare=True) is not None


# --- teams ---


def test_the_job_of_another_team_is_not_there(closed: Place) -> None:
    """For the token of another team, and for one without a team: no call tells it from a job that does not exist."""
    about = [call for call in closed.calls() if call[1].startswith("/v1/jobs/small") and call[0] != "HEAD"]
    assert len(about) >= 10
    for stranger in ("theirs", "none"):
        headers = {**bearer(stranger), "Content-Type": "application/json"}
        for method, path in about:
            got = closed.client.request(method, path, headers=headers, content=b'{"priority": 1}')
            missing = closed.client.request(
                method, path.replace("small", "other"), headers=headers, content=b'{"priority": 1}'
            )
            assert (got.status_code, missing.status_code) == (404, 404), (stranger, method, path)
            assert got.json()["detail"].replace("small", "other") == missing.json()["detail"]
        for path in ("/v1/jobs", "/v1/logs", "/v1/pools", "/v1/usage", "/v1/conditions", "/metrics"):
            answer = closed.client.get(path, headers=headers)
            assert answer.status_code == 200, path
            assert "small" not in answer.text, path
    for path in ("/v1/jobs", "/v1/jobs/small", "/metrics"):
        for known in ("ours", "root"):
            assert "small" in closed.client.get(path, headers=bearer(known)).text, (path, known)


def test_what_was_done_to_the_trainers_of_another_team_is_not_told(tmp_path: Path) -> None:
    tokens = [token("ours", "vision"), token("theirs", "speech"), token("root", "", "admin")]
    settings, events = MasterSettings.model_validate({"api_tokens": tokens}), PoolEvents()
    done = [("decoder", "1 -> 2"), ("trainer.small.rgb", "0 -> 1 ranks"), ("", "a worker of trainer.small.rgb ended")]
    for pool, message in done:
        events.add(pool, message)
    with closing(adapters_in(tmp_path)) as adapters:
        master = master_over(adapters)
        master.start(make_job(tmp_path), asked=Asked("vision"))
        reconciler = Reconciler(ObserveOnlyDriver(master.worker_registry), master.worker_registry, list, events=events)
        transport = httpx.ASGITransport(create_app(master, settings, reconciler=reconciler))

        async def told(name: str) -> list[str]:
            async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8080") as client:
                answer = await client.get("/v1/pools/events", headers=bearer(name))
                return [event["pool"] for event in answer.json()]

        seen = {name: asyncio.run(told(name)) for name in ("theirs", "ours", "root")}
    assert seen == {"theirs": ["decoder"], "ours": ["decoder", "trainer.small.rgb"], "root": [pool for pool, _ in done]}


def test_the_name_of_another_teams_job_is_taken(closed: Place) -> None:
    body = make_job(closed.folder).model_copy(update={"output": f"{closed.output}-2"}).model_dump_json()
    for path in ("/v1/jobs", "/v1/jobs:validate"):
        headers = {**bearer("theirs"), "Content-Type": "application/json"}
        answer = closed.client.post(path, params={"fresh": True}, headers=headers, content=body)
        assert (answer.status_code, answer.json()["detail"]) == (409, "name: small is taken; choose another name")


def test_metrics_and_probes_name_no_job_without_leave(place: Place) -> None:
    is_open = place.client.get("/v1/jobs").status_code == 200
    text = place.client.get("/metrics").text
    assert "essp_inflight_units" in text
    assert ("essp_job" in text, "small" in text) == (is_open, is_open)
    if is_open:
        return
    assert 'essp_job_clips{job="small"}' in place.client.get("/metrics", headers=bearer("meter")).text
    assert place.client.get("/metrics", headers=bearer("wrong")).status_code == 401, "a wrong one is told"
    assert place.client.get("/v1/jobs", headers=bearer("meter")).status_code == 403, "it is for that alone"


# --- what else answers carry ---


def test_no_answer_is_kept_framed_or_taken_for_something_else(place: Place) -> None:
    for method, path in place.calls():
        if method != "GET" or path.endswith("/events"):
            continue
        answer = place.client.get(path, headers=bearer("root"))
        assert answer.headers["x-content-type-options"] == "nosniff", path
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"], path
        assert answer.headers["cross-origin-resource-policy"] == "same-origin", path
        assert "set-cookie" not in answer.headers, path
        if path.startswith("/v1/") or path == "/metrics":
            assert answer.headers["cache-control"] == "no-store", path


def test_events_are_not_kept(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        served.start()
        with served.client.stream("GET", "/v1/jobs/small/events") as answer:
            assert answer.headers["cache-control"] == "no-store"
            served.client.post("/v1/jobs/small:stop")


def test_keys_of_requests_are_each_callers_own(tmp_path: Path) -> None:
    """Also where two tokens have one name."""
    first, second = token("a"), token("b") | {"name": "a"}
    with Served(tmp_path, api_tokens=[first, second]) as served:
        body = served.job.model_dump_json()
        answers = [
            served.client.post("/v1/jobs", content=body, headers={"Idempotency-Key": "k", **bearer(name)})
            for name in ("a", "b", "a")
        ]
        assert [answer.status_code for answer in answers] == [202, 409, 202]


def test_a_standby_passes_on_what_its_own_page_sends(tmp_path: Path) -> None:
    """The leader, whose address is another one, does not take that for a foreign page."""
    with Served(tmp_path) as leader, served(create_standby(lambda: leader.url, "")) as own:
        leader.start()
        headers = {"Origin": own, "Sec-Fetch-Site": "same-origin", "Content-Type": "application/json"}
        answer = httpx.post(f"{own}/v1/jobs/small:stop", headers=headers, timeout=LONGEST_S)
        assert answer.status_code == 200, answer.text


def test_a_team_writes_where_it_may(tmp_path: Path) -> None:
    """By whole parts of the path."""
    folder = f"{tmp_path.as_uri()}/vision"
    with Served(tmp_path, api_tokens=[token("ours", "vision")], teams={"vision": {"outputs": [folder]}}) as served:
        job = served.job
        for output, status in ((f"{folder}/a", 200), (f"{folder}-2/a", 422), (f"{folder}", 422), (job.output, 422)):
            body = job.model_copy(update={"output": output}).model_dump_json()
            answer = served.client.post("/v1/jobs:validate", content=body, headers=bearer("ours"))
            assert answer.status_code == status, (output, answer.text)


def test_of_thousands_of_problems_some_are_listed(unlocked: Place) -> None:
    body = {f"x{number}": 1 for number in range(9000)}
    answer = unlocked.client.post("/v1/jobs:validate", json=body)
    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == 20
    assert "more problems" in answer.json()["detail"]


def test_a_platform_that_refuses_is_no_defect(unlocked: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PlatformRefuses("Kubernetes refuses: quota exceeded")

    monkeypatch.setattr(Reconciler, "set", refuse)
    answer = unlocked.client.put("/v1/pools/decoder", json={"min": 1})
    assert (answer.status_code, answer.json()["detail"]) == (502, "Kubernetes refuses: quota exceeded")
