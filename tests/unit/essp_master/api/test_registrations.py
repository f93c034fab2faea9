"""Registering extractors and trainers over REST: nobody overwrites what he has not seen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from essp_common.wiring import Adapters, open_store
from essp_engine.registrations import Registrations
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from tests.harness.fleet import master_over
from tests.harness.serving import served
from tests.harness.waiting import LONGEST_S

IMAGE = "registry.example/depth@sha256:" + "0f" * 32
DEPTH: dict[str, Any] = {"name": "depth", "image": IMAGE, "output": {"shape": [1, "H", "W", "T"], "dtype": "float32"}}
NEW = {"If-None-Match": "*"}


@contextmanager
def client_of(adapters: Adapters, tables: Registrations | None) -> Iterator[httpx.Client]:
    """A client of an API over these tables."""
    app = create_app(master_over(adapters), MasterSettings(), tables)
    with served(app) as url, httpx.Client(base_url=url, timeout=LONGEST_S, verify=False) as client:
        yield client


@pytest.fixture
def client(adapters: Adapters, tmp_path: Path) -> Iterator[httpx.Client]:
    tables = Registrations(open_store((tmp_path / "state").as_uri()), ["registry.example/"])
    with client_of(adapters, tables) as client:
        yield client


def test_register_look_change_remove(client: httpx.Client) -> None:
    made = client.put("/v1/extractors/depth", json=DEPTH, headers=NEW)
    assert made.status_code == 200
    seen = client.get("/v1/extractors/depth")
    assert seen.headers["etag"] == made.headers["etag"]
    assert seen.json()["resources"]["cpu"] == "1", "defaults are shown"
    changed = client.put("/v1/extractors/depth", json=DEPTH | {"max": 3}, headers={"If-Match": seen.headers["etag"]})
    assert changed.json()["max"] == 3
    assert [row["max"] for row in client.get("/v1/extractors").json()] == [3]
    gone = client.delete("/v1/extractors/depth", headers={"If-Match": changed.headers["etag"]})
    assert gone.status_code == 204
    assert client.get("/v1/extractors/depth").status_code == 404
    assert [c["action"] for c in client.get("/v1/registrations/changes").json()] == ["put", "put", "delete"]


def test_what_was_changed_meanwhile_is_not_overwritten(client: httpx.Client) -> None:
    etag = client.put("/v1/extractors/depth", json=DEPTH, headers=NEW).headers["etag"]
    client.put("/v1/extractors/depth", json=DEPTH | {"max": 3}, headers={"If-Match": etag})
    assert client.put("/v1/extractors/depth", json=DEPTH, headers={"If-Match": etag}).status_code == 412
    assert client.put("/v1/extractors/depth", json=DEPTH, headers=NEW).status_code == 412
    assert client.delete("/v1/extractors/depth", headers={"If-Match": etag}).status_code == 412
    assert client.put("/v1/extractors/depth", json=DEPTH).status_code == 428
    assert client.delete("/v1/extractors/depth").status_code == 428
    assert client.get("/v1/extractors/depth").json()["max"] == 3


@pytest.mark.parametrize(
    "row",
    [
        DEPTH | {"image": "registry.example/depth:latest"},
        DEPTH | {"image": "elsewhere.example/depth@sha256:" + "0f" * 32},
        DEPTH | {"name": "other"},
        DEPTH | {"output": {"shape": ["__import__('os')"]}},
        DEPTH | {"command": "sh"},
        DEPTH | {"resources": {"cpu": "all of it"}},
    ],
)
def test_what_must_not_run_is_refused(client: httpx.Client, row: dict[str, Any]) -> None:
    answer = client.put("/v1/extractors/depth", json=row, headers=NEW)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert client.get("/v1/extractors").json() == []


def test_trainers_have_a_table_of_their_own(client: httpx.Client) -> None:
    row = {"name": "big", "image": IMAGE, "models": ["resnet50"], "resources": {"gpus": 4}}
    assert client.put("/v1/trainers/big", json=row, headers=NEW).status_code == 200
    assert [r["models"] for r in client.get("/v1/trainers").json()] == [["resnet50"]]
    assert client.get("/v1/extractors").json() == []


def test_without_a_place_for_them_nothing_can_be_registered(adapters: Adapters) -> None:
    with client_of(adapters, None) as client:
        answer = client.put("/v1/extractors/depth", json=DEPTH, headers=NEW)
    assert answer.status_code == 422
    assert "ESSP_STATE" in answer.json()["detail"]
