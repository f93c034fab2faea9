"""Whatever is sent is answered with 2xx or a problem document of 4xx, and jobs are listed once they are known."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from essp_common.wiring import open_store
from essp_engine.registrations import ExtractorRow, Registrations
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from essp_master.lifecycle import takeover
from essp_master.service import Master
from tests.harness.fleet import adapters_in, make_job, master_over
from tests.harness.serving import served, whole_app
from tests.harness.waiting import LONGEST_S, until

DIGEST = "sha256:" + "0" * 64
JSON = {"Content-Type": "application/json"}
CREATE = {**JSON, "If-None-Match": "*"}
BODIES = (
    b"",
    b"null",
    b"[" * 5000,
    b'{"a":' * 5000 + b"1" + b"}" * 5000,
    b"[" * 100_000,
    b"9" * 5000,
    b"-1e400",
    b"NaN",
    b"\xff\xfe",
    rb'{"name": "\ud800"}',
    rb'{"replicas": ' + b"9" * 5000 + b"}",
    rb'{"replicas": 9223372036854775808}',
    rb'{"replicas": 1e400}',
    rb'{"min": NaN}',
    rb'{"\ud800": 1}',
)


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """An API with all of its parts, and a job that has ended."""
    folder: Path = tmp_path_factory.mktemp("requests")
    with closing(adapters_in(folder)) as adapters:
        master = master_over(adapters)
        job = make_job(folder)
        master.start(job)
        master.stop(job.name)
        settings = MasterSettings.model_validate({"api_requests_per_s": 0})
        with (
            served(whole_app(master, folder, settings), settings) as url,
            httpx.Client(base_url=url, timeout=LONGEST_S, verify=False) as client,
        ):
            yield client


def check(answer: httpx.Response) -> None:
    sent = answer.request
    asked = f"{sent.method} {str(sent.url)[:80]} {sent.content[:80]!r} {sent.headers}"
    assert answer.status_code < 500, f"{asked}: {answer.text}"
    if answer.status_code >= 400:
        assert answer.headers["content-type"] == "application/problem+json", asked
        if answer.request.method != "HEAD":
            assert answer.json()["status"] == answer.status_code


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v1/jobs"),
        ("PUT", "/v1/pools/decoder"),
        ("PUT", "/v1/extractors/depth"),
        ("PUT", "/v1/trainers/own"),
        ("POST", "/v1/jobs/small:stop"),
    ],
)
def test_any_body_is_taken_or_refused(client: httpx.Client, method: str, path: str) -> None:
    for body in BODIES:
        check(client.request(method, path, content=body, headers=CREATE))


def test_what_is_registered_can_be_read_again(client: httpx.Client) -> None:
    """A row that is written and cannot be read would take all others with it."""
    row = {"name": "depth", "image": f"registry.example/x@{DIGEST}", "output": {"shape": ["T", "H", "W", 1]}}
    for field, value in (
        ("environment", '{"A": "\\ud800"}'),
        ("environment", '{"A": "\\u0000"}'),
        ("output", '{"shape": ["H/0"]}'),
        ("output", f'{{"shape": [{2**63}]}}'),
        ("output", '{"shape": ["9999*T/1+999999"]}'),
        ("frames_needed", "1e3"),
    ):
        text = json.dumps(row | {field: "@@"}).replace('"@@"', value)
        check(client.put("/v1/extractors/depth", content=text, headers=CREATE))
        check(client.get("/v1/extractors"))
        check(client.get("/v1/registrations/changes"))
        seen = client.get("/v1/extractors/depth")
        if seen.status_code == 200:
            client.delete("/v1/extractors/depth", headers={"If-Match": seen.headers["etag"]})


def test_a_dimension_is_never_divided_by_nothing(client: httpx.Client) -> None:
    row = {"name": "depth", "image": f"registry.example/x@{DIGEST}", "output": {"shape": ["H/0"]}}
    assert client.put("/v1/extractors/depth", json=row, headers=CREATE).status_code == 422


ADDRESSES = (
    *("/v1/jobs/%00", "/v1/jobs/%ff", "/v1/jobs/..%2f..", f"/v1/jobs/{'a' * 5000}", "/v1/jobs//log"),
    *(f"/v1/jobs?page_size={'9' * 5000}", "/v1/jobs?page_size=1e400", f"/v1/jobs?page_token={'W1tb' * 100}"),
    *("/v1/jobs?state=x", "/v1/jobs?kind=%ff", f"/v1/jobs/small/log?after={'9' * 5000}"),
    *(f"/v1/jobs/small/log?after={2**63}", "/v1/jobs/small/events?after=-1", "/v1/extractors/%2e%2e"),
    *("/v1/trainers/A", "/page/..%2f..%2fconfig.py", "/v1/pools/x"),
)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "PATCH", "TRACE"])
def test_any_address_is_known_or_not(client: httpx.Client, method: str) -> None:
    for path in ADDRESSES:
        check(client.request(method, path))


@pytest.mark.parametrize("value", [b"9" * 5000, b"-1", b"x", b"\xb2", b"9" * 16, b"1e3"])
def test_an_event_id_that_was_never_given_is_refused_before_the_stream_begins(
    client: httpx.Client, value: bytes
) -> None:
    answer = client.get("/v1/jobs/small/events", headers={b"Last-Event-ID": value})
    check(answer)
    assert answer.status_code == 422


@pytest.mark.parametrize("name", ["If-Match", "If-None-Match", "Idempotency-Key", "Authorization", "Host"])
def test_any_header_is_taken_or_refused(client: httpx.Client, name: str) -> None:
    for value in (b"", b"\xff\xfe", b"9" * 5000, b"[", b'*, "', b'W/"1"'):
        for method, path in (("POST", "/v1/jobs"), ("DELETE", "/v1/extractors/depth"), ("GET", "/v1/jobs/")):
            check(client.request(method, path, headers={name.encode(): value}))


def test_jobs_are_not_listed_before_it_is_known_what_was_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """During a take-over the answer is that it is not known yet, not that there are none."""
    monkeypatch.setattr(takeover, "_PATIENCE_S", 0.0)
    with closing(adapters_in(tmp_path)) as adapters:
        settings = MasterSettings()
        master = Master(adapters, settings, "successor", recovers=True)
        with served(create_app(master, settings)) as url, httpx.Client(base_url=url, verify=False) as client:
            for path in ("/v1/jobs", "/v1/jobs/small", "/v1/jobs/small/log"):
                answer = client.get(path)
                assert answer.status_code == 503, path
                assert answer.headers["retry-after"] == "1"
            assert client.get("/readyz").status_code == 503
            master._takeover.obstacle = "job small cannot be taken over yet: s3://secret/out does not answer"
            assert master.obstacle in client.get("/v1/jobs").json()["detail"]
            probed = client.get("/readyz")
            assert (probed.status_code, "waits for a server" in probed.text, "secret" in probed.text) == (
                503,
                True,
                False,
            )
            assert client.get("/livez").text == "ok\n"
            assert "essp_leader 1.0" in client.get("/metrics").text
            master.recover()
            assert client.get("/v1/jobs").json()["jobs"] == []


def test_probes_do_not_wait_for_the_threads_that_answer_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every thread is busy with a request that waits; a probe is answered none the less."""
    answered = threading.Event()
    waiting = threading.Semaphore(0)

    def wait(self: Master) -> list[object]:
        waiting.release()
        assert answered.wait(LONGEST_S)
        return []

    monkeypatch.setattr(Master, "jobs", wait)
    with closing(adapters_in(tmp_path)) as adapters:
        settings = MasterSettings.model_validate({"api_requests_per_s": 0})
        with served(create_app(master_over(adapters), settings), settings) as url:
            callers = [
                threading.Thread(
                    target=httpx.get, args=(f"{url}/v1/jobs",), kwargs={"timeout": LONGEST_S, "verify": False}
                )
                for _ in range(_THREADS)
            ]
            for caller in callers:
                caller.start()
            try:
                for _ in range(_THREADS):
                    assert waiting.acquire(timeout=LONGEST_S)
                with httpx.Client(base_url=url, timeout=LONGEST_S, verify=False) as client:
                    assert client.get("/livez").text == "ok\n"
                    assert client.get("/readyz").text == "ready\n"
            finally:
                answered.set()
                for caller in callers:
                    caller.join()


_THREADS = 40
"""Of anyio, which the framework answers plain functions in."""


def test_a_store_that_does_not_answer_keeps_only_those_waiting_who_ask_for_what_lies_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many ask for it: jobs can still be looked at and stopped, and metrics be read."""
    back, asked = threading.Event(), list[int]()

    def silent(tables: Registrations) -> dict[str, ExtractorRow]:
        asked.append(1)
        back.wait()
        return {}

    monkeypatch.setattr(Registrations, "extractors", silent)
    with closing(adapters_in(tmp_path)) as adapters:
        settings = MasterSettings()
        master = master_over(adapters)
        tables = Registrations(open_store((tmp_path / "state").as_uri()))
        with served(create_app(master, settings, tables)) as url, ThreadPoolExecutor(60) as many:
            try:
                waiting = [
                    many.submit(httpx.get, f"{url}/v1/extractors", timeout=None, verify=False) for _ in range(60)
                ]
                until(lambda: len(asked) >= 16)
                with httpx.Client(base_url=url, verify=False, timeout=LONGEST_S) as client:
                    found = {client.get(path).status_code for path in ("/v1/jobs", "/metrics", "/v1/logs") * 20}
            finally:
                back.set()
            assert found == {200}
            assert {each.result().status_code for each in waiting} == {200}
