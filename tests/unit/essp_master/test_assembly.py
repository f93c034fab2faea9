"""A whole master process: alone, and as one of two of which one leads."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from kubernetes import client

from essp_common.errors import ConfigError
from essp_common.wiring import Adapters
from essp_master.api.standby import LEADER
from essp_master.assembly import MasterProcess, bracketed, kubernetes_api, namespace_of, open_driver
from essp_master.config import MasterSettings
from essp_master.main import own_command
from essp_master.pools.observe_only import ObserveOnlyDriver
from essp_master.pools.processes import ProcessDriver
from essp_master.pools.worker_registry import WorkerRegistry
from tests.harness.fleet import make_job
from tests.harness.kubernetes_api import ApiServer
from tests.harness.kubernetes_objects import IMAGE, deployment
from tests.harness.kubernetes_pod import ServiceAccount
from tests.harness.running import running
from tests.harness.serving import JSON
from tests.harness.waiting import LONGEST_S, until

pytestmark = pytest.mark.slow

SETTINGS = MasterSettings.model_validate({"bus": "kafka://nobody:1", "namespace": "essp-test"})


@contextmanager
def client_of(adapters: Adapters, settings: MasterSettings, name: str) -> Iterator[httpx.Client]:
    """A client of a master process, which ends with the block."""
    process = MasterProcess(adapters, settings, name, "127.0.0.1", 0, ("essp",))
    with (
        running(process),
        httpx.Client(
            base_url=f"http://127.0.0.1:{process.port}", timeout=LONGEST_S, verify=False, headers=JSON
        ) as client,
    ):
        yield client


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """The cluster that masters find themselves in."""
    with ApiServer() as server:
        monkeypatch.setattr("essp_master.assembly.kubernetes_api", server.client)
        yield server


def test_a_lone_master_takes_jobs_and_keeps_pools(adapters: Adapters) -> None:
    with client_of(adapters, SETTINGS, "one") as client:
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.get("/v1/jobs").json()["jobs"] == []
        assert client.get("/v1/pools").json() == []


def test_the_next_master_keeps_pools_as_people_have_set_them(
    adapters: Adapters, cluster: ApiServer, tmp_path: Path
) -> None:
    cluster.cluster.put("deployments", deployment("essp-decoder", "decoder", 1))
    changes = {"pools": "kubernetes", "state": f"{tmp_path.as_uri()}/state", "templates": str(tmp_path)}
    settings = SETTINGS.model_copy(update=changes)
    with client_of(adapters, settings, "one") as first:
        until(lambda: first.put("/v1/pools/decoder", json={"replicas": 4}).status_code == 200)
    with client_of(adapters, settings, "two") as second:
        until(lambda: second.get("/v1/pools").status_code == 200)
        (pool,) = second.get("/v1/pools").json()
        assert (pool["replicas"], pool["rule"]["replicas"]) == (4, 4)
        assert second.delete("/v1/pools/decoder").status_code == 204


@pytest.mark.parametrize(
    ("changes", "code"), [({}, 200), ({"pools": "processes", "pool_sizes": {}, "ranks": 1}, 422)], ids=["none", "own"]
)
def test_a_network_that_only_a_registered_image_has_is_trained_unless_trainers_are_processes_of_the_master(
    adapters: Adapters, tmp_path: Path, changes: dict[str, Any], code: int
) -> None:
    state = {"state": f"{tmp_path.as_uri()}/state", "images": ("registry.example/",)}
    row = {"name": "own", "image": IMAGE, "models": ["ownnet"]}
    own = {"stream": "rgb", "model": "ownnet", "batch_size": 4, "augment": {"crop": 16}}
    job = make_job(tmp_path, trainers={"own": own}).model_dump_json()
    with client_of(adapters, SETTINGS.model_copy(update=state | changes), "one") as client:
        until(lambda: client.get("/readyz").status_code == 200)
        assert client.post("/v1/jobs:validate", content=job).status_code == 422, "nobody has it"
        assert client.put("/v1/trainers/own", json=row, headers={"If-None-Match": "*"}).status_code == 200
        answer = client.post("/v1/jobs:validate", content=job)
        assert answer.status_code == code, answer.text
        assert ("image of the registered trainer own" in answer.text) == (code == 422)


def test_a_standby_passes_requests_on_and_says_who_leads(adapters: Adapters, cluster: ApiServer) -> None:
    settings = SETTINGS.model_copy(update={"lease": "essp-master"})
    with client_of(adapters, settings, "one") as first:
        until(lambda: first.get("/v1/jobs").status_code == 200)
        assert LEADER not in first.get("/v1/jobs").headers
        holder = str(cluster.cluster.objects["leases", "essp-master"]["spec"]["holderIdentity"])
        leader = holder.partition("#")[0]
        assert leader.startswith("http://")
        with client_of(adapters, settings, "two") as second:
            until(lambda: second.get("/readyz").status_code == 200)
            assert second.get("/readyz").text == f"standby of {leader}\n"
            answer = second.get("/v1/jobs", params={"page_size": 1})
            assert answer.json() == {"jobs": [], "next_page_token": None}
            assert answer.headers[LEADER] == leader
            assert second.post("/v1/jobs", content=b"{").json()["status"] == 422, "the leader's answer"
            assert second.get("/v1/jobs/no").status_code == 404
            assert "essp_leader 1.0" in first.get("/metrics").text
            assert "essp_leader 0.0" in second.get("/metrics").text, "its own, not the leader's a second time"


def test_a_standby_asks_for_the_token_as_the_leader_does(adapters: Adapters, cluster: ApiServer) -> None:
    cluster.cluster.outage = True
    settings = MasterSettings.model_validate(SETTINGS.model_dump() | {"lease": "essp-master", "api_token": "swordfish"})
    with client_of(adapters, settings, "one") as client:
        assert client.get("/v1/jobs").status_code == 401
        assert client.get("/livez").status_code == 200
        assert client.get("/v1/jobs", headers={"Authorization": "Bearer swordfish"}).status_code == 503


def test_while_nobody_leads_it_says_so(adapters: Adapters, cluster: ApiServer) -> None:
    cluster.cluster.outage = True
    with client_of(adapters, SETTINGS.model_copy(update={"lease": "essp-master"}), "one") as client:
        answer = client.get("/v1/jobs")
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
        assert client.get("/livez").status_code == 200
        assert client.get("/readyz").status_code == 503


def test_the_driver_is_the_one_that_is_set(tmp_path: Path) -> None:
    assert isinstance(open_driver(SETTINGS, WorkerRegistry(), ("essp",)), ObserveOnlyDriver)
    sized = SETTINGS.model_copy(update={"pools": "processes", "pool_sizes": {"decoder": 0}})
    assert isinstance(open_driver(sized, WorkerRegistry(), ("essp",)), ProcessDriver)
    with pytest.raises(ConfigError, match="no pool"):
        open_driver(sized.model_copy(update={"pool_sizes": {"encoder": 1}}), WorkerRegistry(), ("essp",))
    assert namespace_of(MasterSettings()) == "default"


@pytest.mark.parametrize(
    ("started", "command"),
    [
        (["python", "/opt/bin/essp", "master", "--port", "0"], ["/opt/bin/essp"]),
        (["python", "-I", "-m", "essp", "master"], ["-I", "-m", "essp"]),
    ],
)
def test_workers_are_started_by_the_command_that_started_the_master(
    monkeypatch: pytest.MonkeyPatch, started: list[str], command: list[str]
) -> None:
    monkeypatch.setattr(sys, "orig_argv", started)
    monkeypatch.setattr(sys, "argv", ["essp", *started[started.index("master") :]])
    assert own_command() == (sys.executable, *command)


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http://fd00::1:8080", "http://[fd00::1]:8080"),
        ("http://[fd00::1]:8080", "http://[fd00::1]:8080"),
        ("http://10.1.2.3:8080", "http://10.1.2.3:8080"),
        ("http://master:8080", "http://master:8080"),
        ("", ""),
    ],
)
def test_a_pods_address_of_ipv6_gets_its_brackets(given: str, meant: str) -> None:
    assert bracketed(given) == meant


def test_a_cluster_is_found_without_a_word_among_the_lines_of_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As in a pod, by its token."""
    ServiceAccount(tmp_path, monkeypatch, ("10.96.0.1", 443), "certificate", "secret")
    settings: dict[str, Any] = {}
    monkeypatch.setattr(client, "ApiClient", lambda: settings.update(host=client.Configuration.get_default_copy().host))
    kubernetes_api()
    assert settings["host"] == "https://10.96.0.1:443"
    assert capsys.readouterr() == ("", "")
