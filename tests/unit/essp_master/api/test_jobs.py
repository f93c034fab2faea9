"""The REST API: what it answers, and how it says no."""

from __future__ import annotations

import hashlib
import json
import math
import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from essp_common import topics
from essp_common.errors import ConfigError, Unavailable
from essp_common.job.status import JobStatus
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    VALIDATION,
    Gpu,
    Heartbeat,
    Machine,
    PhaseReport,
    Progress,
    StepReport,
)
from essp_common.runtime.process import run_all
from essp_master.api.app import create_app
from essp_master.api.server import ApiServer
from essp_master.job.events import EventLog
from essp_master.service import Master
from tests.harness.serving import Served
from tests.harness.waiting import LONGEST_S


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


def problem(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == status
    assert document["title"]
    return document


def sent(text: str) -> list[dict[str, str]]:
    """A server-sent event stream, taken apart."""
    blocks = [block for block in text.split("\n\n") if block.strip()]
    return [dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":")) for block in blocks]


def test_a_job_is_accepted_and_found(served: Served) -> None:
    response = served.start()
    assert response.status_code == 202
    assert response.headers["location"] == "/v1/jobs/small"
    assert response.json()["state"] == "running"
    assert served.client.get(response.headers["location"]).json()["progress"]["total"] == 44
    assert [job["name"] for job in served.client.get("/v1/jobs").json()["jobs"]] == ["small"]


def test_yaml_is_taken_too(served: Served) -> None:
    body = yaml.safe_dump(served.job.model_dump(mode="json"))
    response = served.client.post("/v1/jobs", content=body, headers={"Content-Type": "application/yaml"})
    assert response.status_code == 202


def test_a_job_that_is_not_valid_names_the_fields(served: Served) -> None:
    document = served.job.model_dump(mode="json")
    document["epochs"] = 0
    document["clip"]["frames"] = "many"
    found = problem(served.client.post("/v1/jobs", json=document), 422)
    assert {error["field"] for error in found["errors"]} == {"epochs", "clip.frames"}


def test_a_job_can_be_checked_without_a_start(served: Served) -> None:
    found = served.client.post("/v1/jobs:validate", content=served.job.model_dump_json()).json()
    assert (found["name"], found["clips"], found["trainers"]) == ("small", 44, ["rgb", "diff"])
    assert served.client.get("/v1/jobs").json()["jobs"] == []
    document = served.job.model_dump(mode="json")
    document["epochs"] = 0
    refused = problem(served.client.post("/v1/jobs:validate", json=document), 422)
    assert [error["field"] for error in refused["errors"]] == ["epochs"]
    document = served.job.model_dump(mode="json")
    document["data"]["catalog"] += ".not"
    assert "data.catalog" in problem(served.client.post("/v1/jobs:validate", json=document), 422)["detail"]


def test_the_course_of_trainings_is_served(served: Served) -> None:
    served.start()
    assert served.client.get("/v1/jobs/small/curves").json() == [
        {"trainer": "rgb", "points": []},
        {"trainer": "diff", "points": []},
    ]
    problem(served.client.get("/v1/jobs/none/curves"), 404)


@pytest.mark.parametrize(
    "body",
    [b"", b"- a list", b"{", b"\xff\xfe\x00", b"name: [unclosed", rb'{"name": "\ud800"}', rb'{"\ud800": 1}'],
)
def test_what_is_no_job_is_refused(served: Served, body: bytes) -> None:
    problem(served.client.post("/v1/jobs", content=body), 422)


def test_text_that_is_quoted_may_be_none_that_utf_8_can_hold(served: Served) -> None:
    body = rb'{"image": "registry.example/x", "name": "\ud800"}'
    problem(served.client.put("/v1/extractors/mine", content=body, headers={"Content-Type": "application/json"}), 422)


def test_a_job_that_cannot_run_says_what_to_change(served: Served) -> None:
    document = served.job.model_dump(mode="json")
    document["limits"]["budget"] = "3KB"
    found = problem(served.client.post("/v1/jobs", json=document), 422)
    assert found["errors"][0]["field"] == "limits.budget"
    assert "raise it to" in found["detail"]


def test_the_same_job_twice_is_a_conflict(served: Served) -> None:
    served.start()
    assert "small is running" in problem(served.start(), 409)["detail"]


def test_an_unknown_job_is_not_found(served: Served) -> None:
    for method, path in (("GET", "/v1/jobs/no"), ("POST", "/v1/jobs/no:pause"), ("GET", "/v1/jobs/no/events")):
        assert "there is no job 'no'" in problem(served.client.request(method, path), 404)["detail"]
    problem(served.client.get("/v2"), 404)
    problem(served.client.put("/v1/jobs"), 405)


def test_pause_resume_stop(served: Served) -> None:
    served.start()
    for action, state in (("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("stop", "stopped")):
        response = served.client.post(f"/v1/jobs/small:{action}")
        assert (response.status_code, response.json()["state"]) == (200, state)
    assert "small is stopped" in problem(served.client.post("/v1/jobs/small:pause"), 409)["detail"]
    assert served.client.post("/v1/jobs/small:stop").status_code == 200
    assert served.start().status_code == 202, "a stopped job can be started again"


def test_a_master_that_is_busy_keeps_no_probe_waiting_for_the_sake_of_a_reader_of_events(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    served.start()
    asked, free, watched = threading.Event(), threading.Event(), Master.watched

    def busy(master: Master, name: str) -> tuple[JobStatus, EventLog]:
        asked.set()
        free.wait()
        return watched(master, name)

    monkeypatch.setattr(Master, "watched", busy)
    with ThreadPoolExecutor(1) as reader:
        try:
            read = reader.submit(served.client.get, "/v1/jobs/small/events")
            assert asked.wait(LONGEST_S)
            assert served.client.get("/livez", timeout=LONGEST_S).text == "ok\n"
        finally:
            free.set()
            served.complete()  # which ends the events
        assert read.result().status_code == 200


def test_events_come_in_order_and_go_on_where_a_reader_was(served: Served) -> None:
    served.start()
    served.complete()
    events = sent(served.client.get("/v1/jobs/small/events").text)
    assert events[-1]["event"] == "status"
    assert json.loads(events[-1]["data"])["state"] == "completed"
    ids = [int(event["id"]) for event in events[:-1]]
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert {"state", "phase", "checkpoint", "finished"} <= {event["event"] for event in events}
    later = sent(served.client.get("/v1/jobs/small/events", headers={"Last-Event-ID": str(ids[2])}).text)
    assert int(later[0]["id"]) == ids[3]
    assert int(sent(served.client.get("/v1/jobs/small/events", params={"after": ids[3]}).text)[0]["id"]) == ids[4]


def test_metrics_and_health(served: Served) -> None:
    served.start()
    text = served.client.get("/metrics").text
    assert 'essp_job_clips{job="small"} 44.0' in text
    assert 'essp_job_seeds_total{job="small",outcome="issued"}' in text
    assert 'essp_job_state{job="small",state="running"} 1.0' in text
    assert 'essp_job_state{job="small",state="paused"} 0.0' in text
    assert "essp_inflight_units" in text
    assert served.client.get("/livez").text == "ok\n"
    assert served.client.get("/readyz").status_code == 200
    served.master.drain()
    assert served.client.get("/readyz").status_code == 503


def test_what_workers_use_is_in_the_api_and_in_the_metrics(served: Served) -> None:
    served.start()
    gpu = Gpu(id="g", name="H200", busy=0.5, memory_bytes=2**30, memory_limit_bytes=2**37, watts=300)
    machine = Machine(
        host="a", process=1, cpu=1.5, cores=4, memory_bytes=2**20, disk_free_bytes=7, disk_bytes=9, gpus=[gpu]
    )
    beat = Heartbeat(pool="trainer.small.rgb", machine=machine)
    served.adapters.bus.publish(topics.PROGRESS, b"", Progress(worker="w", heartbeat=beat).SerializeToString())
    served.fleet.report(Progress(step=StepReport(trainer="rgb", purpose=TRAIN, clips_per_s=8, data_wait_ratio=0.25)))
    odd = Machine(host="a" * 999, cpu=math.nan, cores=math.inf, gpus=[Gpu(busy=-1)] * 100)
    served.fleet.report(Progress(heartbeat=Heartbeat(pool="decoder", machine=odd)))
    served.master.step(1)
    served.master.step(0)
    usage = served.client.get("/v1/usage").json()
    rows = {row["pool"]: row for row in usage["pools"]}
    trainer = rows["trainer.small.rgb"]
    assert (trainer["busy"], trainer["clips_per_s"], trainer["cpu_cores"], trainer["gpu_watts"]) == (0.75, 8, 1.5, 300)
    assert rows["decoder"]["queue"] > 0
    assert (rows["decoder"]["cpu_cores"], rows["decoder"]["gpu_busy"]) == (None, None)
    assert [len(process["host"]) for process in usage["processes"]] == [1, 200]
    text = served.client.get("/metrics").text
    for line in ("cpu_cores", "gpu_watts", "memory_bytes", "disk_free_bytes"):
        assert f'essp_pool_{line}{{pool="trainer.small.rgb"}}' in text
    assert 'essp_pool_gpu_busy_ratio{pool="trainer.small.rgb"} 0.5' in text
    assert 'essp_pool_cpu_cores{pool="decoder"}' not in text


def test_the_settings_of_a_job_and_which_of_them_were_chosen(served: Served) -> None:
    served.start()
    found = served.client.get("/v1/jobs/small/settings").json()
    assert found["spec"]["trainers"]["rgb"]["batch_size"] == 2
    assert found["spec"]["trainers"]["rgb"]["optimizer"]["lr"] == served.job.trainers["rgb"].optimizer.lr
    assert {"epochs", "trainers.rgb.batch_size", "limits.budget"} <= set(found["chosen"])
    assert "trainers.rgb.optimizer.momentum" not in found["chosen"]


def test_a_list_of_jobs_has_their_results(served: Served) -> None:
    served.start()
    (job,) = served.client.get("/v1/jobs").json()["jobs"]
    assert (job["headline"], job["losses"], job["ended"]) == (None, [], None)
    metrics = {"loss": 1.0, "video_top1": 0.25, "mean_class": 0.2, "top1": 0.5}
    report = PhaseReport(trainer="diff", purpose=VALIDATION, metrics=metrics)
    served.fleet.report(Progress(phase_report=report))
    for clips in (1, 2):
        served.fleet.report(Progress(step=StepReport(trainer="rgb", purpose=TRAIN, clips_done=clips, loss=1 / clips)))
    served.master.step(1)
    served.master.step(0)
    (job,) = served.client.get("/v1/jobs").json()["jobs"]
    assert job["headline"] == {"figure": "top1", "of": "diff", "split": "validation", "value": 0.25}
    assert job["losses"] == [1.0, 0.5]
    served.complete()
    (job,) = served.client.get("/v1/jobs").json()["jobs"]
    assert job["headline"] == {"figure": "top1", "of": "fused", "split": "test", "value": 0.9}
    assert job["ended"] is not None


def test_how_a_job_ended_can_be_read_for_a_while(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    served.start()
    served.complete()
    text = served.client.get("/metrics").text
    assert 'essp_job_state{job="small",state="completed"} 1.0' in text
    assert 'essp_job_clips_done{job="small"} 44.0' in text
    assert "essp_job_outstanding_clips{" not in text, "that is only live"
    monkeypatch.setattr("essp_master.service.RECENT", timedelta(0))
    assert 'job="small"' not in served.client.get("/metrics").text


def test_how_long_answers_take_is_measured_by_route_and_not_by_path(served: Served) -> None:
    served.start()
    served.client.get("/v1/jobs/small")
    served.client.get("/v1/jobs/../etc/passwd%00")
    served.client.request("BREW", "/v1/jobs")
    text = served.client.get("/metrics").text
    counted = re.findall(r"essp_api_request_duration_seconds_count\{(.*)\}", text)
    assert 'method="GET",route="/v1/jobs/{name}",status="200"' in counted
    assert not [labels for labels in counted if "small" in labels or "passwd" in labels or "BREW" in labels]
    assert any('method="other"' in labels for labels in counted)


def test_the_page_needs_no_token_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    with Served(tmp_path, api_token="swordfish") as served:
        page = served.client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        assert "default-src 'self'" in page.headers["content-security-policy"]
        parts = re.findall(r'(?:href|src)="(page/[^"]+)"', page.text)
        assert len(parts) == 3
        for part in parts:
            assert served.client.get(f"/{part}").status_code == 200
        problem(served.client.get("/page/other.js", headers={"Authorization": "Bearer swordfish"}), 404)
        problem(served.client.get("/v1/jobs"), 401)


def test_a_server_that_is_away_is_no_fault_of_the_caller(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(timeout_s: float = 0) -> None:
        raise Unavailable("the broker does not answer")

    monkeypatch.setattr(served.adapters.bus, "flush", away)
    response = served.start()
    assert problem(response, 503)["detail"] == "the broker does not answer"
    assert response.headers["retry-after"] == "1"


def test_a_defect_tells_nothing_of_the_inside(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise RuntimeError("secret path /etc/x")

    monkeypatch.setattr(served.master, "jobs", broken)
    assert "secret" not in problem(served.client.get("/v1/jobs"), 500)["detail"]


def test_a_token_is_asked_for(tmp_path: Path) -> None:
    with Served(tmp_path, api_token="swordfish") as served:
        for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic swordfish"}):
            response = served.client.get("/v1/jobs", headers=headers)
            assert "ESSP_API_TOKEN" in problem(response, 401)["detail"]
            assert response.headers["www-authenticate"].startswith("Bearer")
        assert served.client.get("/v1/jobs", headers={"Authorization": "Bearer swordfish"}).status_code == 200
        assert served.client.get("/livez").status_code == 200


def entry(name: str, token: str, *scopes: str) -> dict[str, Any]:
    return {"name": name, "sha256": hashlib.sha256(token.encode()).hexdigest(), "scopes": scopes}


def test_a_token_is_good_for_its_scopes_only(tmp_path: Path) -> None:
    tokens = [entry("eye", "e", "read"), entry("hand", "h", "read", "operate"), entry("root", "r", "admin")]
    with Served(tmp_path, api_tokens=tokens) as served:
        row = "/v1/extractors/depth"
        calls = {"read": ("GET", "/v1/jobs"), "operate": ("POST", "/v1/jobs/no:stop"), "register": ("DELETE", row)}
        allowed = {"e": {"read"}, "h": {"read", "operate"}, "r": set(calls)}
        for token, scopes in allowed.items():
            for scope, (method, path) in calls.items():
                response = served.client.request(method, path, headers={"Authorization": f"Bearer {token}"})
                assert (response.status_code == 403) == (scope not in scopes), (token, scope)
                if scope not in scopes:
                    assert f"`{scope}`" in problem(response, 403)["detail"]


def test_a_list_comes_in_pages_that_new_jobs_do_not_shift(served: Served) -> None:
    names = [f"job-{number}" for number in range(5)]
    for name in names:
        document = served.job.model_dump(mode="json") | {"name": name, "output": f"{served.job.output}-{name}"}
        assert served.client.post("/v1/jobs", json=document).status_code == 202
    first = served.client.get("/v1/jobs", params={"page_size": 2}).json()
    served.start()
    rest = served.client.get("/v1/jobs", params={"page_size": 50, "page_token": first["next_page_token"]}).json()
    assert [job["name"] for job in first["jobs"] + rest["jobs"]] == names[::-1]
    assert rest["next_page_token"] is None
    served.client.post("/v1/jobs/job-3:pause")
    paused = served.client.get("/v1/jobs", params={"state": ["paused", "failed"]}).json()["jobs"]
    assert [job["name"] for job in paused] == ["job-3"]
    assert served.client.get("/v1/jobs", params={"kind": "predict"}).json()["jobs"] == []


@pytest.mark.parametrize("token", ["x", "bm8=", "W10=", "WyIyMDI2Il0=", "\u00fc"])
def test_a_page_token_that_was_not_given_out_is_refused(served: Served, token: str) -> None:
    problem(served.client.get("/v1/jobs", params={"page_token": token}), 422)


def test_a_request_sent_again_with_its_key_starts_nothing_twice(served: Served) -> None:
    headers = {"Idempotency-Key": "one"}
    body = served.job.model_dump_json()
    first = served.client.post("/v1/jobs", content=body, headers=headers)
    again = served.client.post("/v1/jobs", content=body, headers=headers)
    assert (again.status_code, again.json()) == (202, first.json())
    assert again.headers["location"] == first.headers["location"]
    other = served.client.post("/v1/jobs", content=body, params={"fresh": True}, headers=headers)
    assert "another request" in problem(other, 422)["detail"]
    problem(served.client.post("/v1/jobs", content=body, headers={"Idempotency-Key": "two"}), 409)


def test_callers_that_take_the_same_key_are_told_apart(tmp_path: Path) -> None:
    with Served(tmp_path, api_tokens=[entry("one", "1", "operate"), entry("two", "2", "operate")]) as served:
        for number, (token, status) in enumerate([("1", 202), ("2", 409), ("1", 202)]):
            response = served.client.post(
                "/v1/jobs",
                content=served.job.model_dump_json(),
                headers={"Idempotency-Key": "job", "Authorization": f"Bearer {token}"},
            )
            assert response.status_code == status, number


def test_a_failed_request_can_be_mended_and_sent_again_with_its_key(served: Served) -> None:
    headers = {"Idempotency-Key": "one"}
    problem(served.client.post("/v1/jobs", content=b"{", headers=headers), 422)
    assert served.client.post("/v1/jobs", content=served.job.model_dump_json(), headers=headers).status_code == 202


def test_large_bodies_are_refused_before_they_are_read(tmp_path: Path) -> None:
    with Served(tmp_path, api_body_bytes=2000) as served:
        assert "2000 bytes" in problem(served.client.post("/v1/jobs", content=b"x" * 3000), 413)["detail"]

        def parts() -> Iterator[bytes]:  # no Content-Length
            for _ in range(30):
                yield b"x" * 100

        problem(served.client.post("/v1/jobs", content=parts()), 413)


def test_the_description_of_the_api_is_complete(served: Served) -> None:
    document = served.client.get("/openapi.json").json()
    operations = {op["operationId"] for path in document["paths"].values() for op in path.values()}
    tables = {f"{verb}_{kind}" for verb in ("get", "put", "delete") for kind in ("extractor", "trainer")}
    assert operations == tables | {
        *("start_job", "list_jobs", "get_job", "pause_job", "resume_job", "stop_job", "job_events", "job_log"),
        *("list_extractors", "list_trainers", "list_changes", "list_pools", "pool_events", "set_pool", "pause_pool"),
        *("reset_pool", "resume_pool", "list_conditions", "job_curves", "validate_job", "preview_stream", "change_job"),
        *("prioritise_job", "list_logs", "remove_job", "get_usage", "job_settings", "job_timeline"),
    }
    text = json.dumps(document)
    named = {part.split('"')[0] for part in text.split("#/components/schemas/")[1:]}
    assert named <= document["components"]["schemas"].keys()
    assert "trainers" in document["components"]["schemas"]["JobSpec"]["properties"]
    answers = (
        answer for path in document["paths"].values() for op in path.values() for answer in op["responses"].items()
    )
    assert {kind for status, answer in answers if status >= "400" for kind in answer["content"]} == {
        "application/problem+json"
    }


def test_the_server_runs_beside_the_master_and_ends_with_it(tmp_path: Path) -> None:
    with Served(tmp_path) as served:
        server = ApiServer(create_app(served.master, served.settings), "127.0.0.1", 0, served.settings)
        thread = threading.Thread(target=run_all, args=([server, served.master],))
        thread.start()
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{server.port}", timeout=LONGEST_S, verify=False) as client:
                assert client.get("/v1/jobs").json() == {"jobs": [], "next_page_token": None}
            with pytest.raises(ConfigError, match="--port"):
                ApiServer(create_app(served.master, served.settings), "127.0.0.1", server.port, served.settings)
        finally:
            server.drain()
            served.master.drain()
            thread.join()


CHANGE = {"trainers": {"rgb": {"optimizer": {"lr": 0.001}}}}


def test_a_running_job_is_changed_by_a_part_of_it(served: Served) -> None:
    problem(served.client.patch("/v1/jobs/small", json=CHANGE), 404)
    served.start()
    headers = {"Content-Type": "application/merge-patch+json", "Idempotency-Key": "k1"}
    answers = [served.client.patch("/v1/jobs/small", content=json.dumps(CHANGE), headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].json() == answers[1].json(), "with the same key the first answer again"
    [change] = served.client.get("/v1/jobs/small").json()["changes"]
    assert (change["number"], change["places"]) == (1, {})
    assert (change["fields"], change["before"]) == (
        {"trainers.rgb.optimizer.lr": 0.001},
        {"trainers.rgb.optimizer.lr": 0.01},
    )
    other = {"trainers": {"rgb": {"optimizer": {"lr": 0.1}}}}
    refused = problem(served.client.patch("/v1/jobs/small", json=other, headers={"Idempotency-Key": "k1"}), 422)
    assert "sent before with another request" in refused["detail"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"trainers": {"rgb": {"optimizer": {"lr": -1}}}}, "trainers.rgb.optimizer.lr"),
        ({"trainers": {"rgb": {"optimizer": {"momentum": 0.5}}}}, "trainers.rgb.optimizer.momentum"),
        ({"trainers": {"nobody": {"optimizer": {"lr": 1}}}}, "trainers.nobody.optimizer.lr"),
        ({"aggregation": {"strategies": ["nothing"]}}, "aggregation.strategies.0"),
        ({"name": "other"}, "name"),
    ],
)
def test_a_change_that_cannot_be_names_its_field(served: Served, body: Any, field: str) -> None:
    served.start()
    found = problem(served.client.patch("/v1/jobs/small", json=body), 422)
    assert [error["field"] for error in found["errors"]] == [field]
    assert served.client.get("/v1/jobs/small").json()["changes"] == []


def test_a_change_without_fields_is_none(served: Served) -> None:
    served.start()
    bodies: tuple[Any, ...] = ([], {}, "lr")
    for body in bodies:
        assert "is a mapping" in problem(served.client.patch("/v1/jobs/small", json=body), 422)["detail"]


def test_a_job_that_has_ended_is_not_changed(served: Served) -> None:
    served.start()
    served.complete()
    assert "job small is completed" in problem(served.client.patch("/v1/jobs/small", json=CHANGE), 409)["detail"]


def ended(served: Served, **changes: Any) -> dict[str, Any]:
    """A job that has ended; the same with changes, as it would be sent."""
    served.start()
    assert served.client.post("/v1/jobs/small:stop").status_code == 200
    return {**served.job.model_dump(mode="json"), **changes}


def test_the_output_of_another_job_goes_only_if_it_is_named(served: Served) -> None:
    other = ended(served, name="other")
    for path in ("/v1/jobs:validate", "/v1/jobs"):
        told = problem(served.client.post(path, params={"fresh": "true"}, json=other), 409)
        assert told["job"] == "small"
        assert "output of another job, small, and would be removed" in told["detail"]
    both = {"fresh": "true", "replaces": "small"}
    removes = served.client.post("/v1/jobs:validate", params=both, json=other).json()["removes"]
    assert removes["job"] == "small"
    assert removes["objects"] > 0
    assert served.client.post("/v1/jobs", params=both, json=other).status_code == 202


def test_a_job_that_begins_anew_names_no_other(served: Served) -> None:
    same = ended(served)
    found = served.client.post("/v1/jobs:validate", params={"fresh": "true"}, json=same).json()
    assert found["removes"]["job"] == "small"
    assert served.client.post("/v1/jobs:validate", json=same).json()["removes"] is None
    assert served.client.post("/v1/jobs", params={"fresh": "true"}, json=same).status_code == 202


def test_the_output_of_another_team_is_refused_but_to_an_admin(tmp_path: Path) -> None:
    tokens = [
        {"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest(), "scopes": [scope], "team": team}
        for name, scope, team in (("a", "operate", "vision"), ("b", "operate", "speech"), ("root", "admin", ""))
    ]
    with Served(tmp_path, api_tokens=tokens) as served:
        body = served.job.model_dump(mode="json")

        def post(token: str, path: str = "/v1/jobs", **params: str) -> httpx.Response:
            named = body | {"name": "mine"} if token == "b" else body  # the name of a job is its team's, too
            return served.client.post(path, json=named, params=params, headers={"Authorization": f"Bearer {token}"})

        assert post("a").status_code == 202
        paths = ("/v1/jobs:validate", "/v1/jobs")
        told = [problem(post("b", path), 409)["detail"] for path in paths]
        assert post("root", "/v1/jobs/small:stop").status_code == 200
        told += [problem(post("b", path, **more), 403)["detail"] for path in paths for more in ({}, {"fresh": "true"})]
        place = body["output"]
        for body["output"] in (f"{place}/more", place.rpartition("/")[0]):
            told += [problem(post("b", path), 422)["detail"] for path in paths]
        body["output"] = place
        assert all("a job of another team" in words or "a job of team vision" in words for words in told)
        assert not [words for words in told if "small" in words.replace(place, "")]
        assert post("a", "/v1/jobs:validate", fresh="true").status_code == 200
        assert post("root", "/v1/jobs:validate", fresh="true").status_code == 200
        assert post("a").status_code == 202
