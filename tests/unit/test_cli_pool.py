"""`essp pool` against an API that is being served."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from essp_common.errors import NotFound
from services.cli.main import app
from services.master.api.app import create_app
from services.master.config import MasterSettings
from services.master.server import ApiServer
from tests.unit.fleet import adapters_in, master_over
from tests.unit.test_pools import World


@pytest.fixture
def world() -> World:
    return World(decoder=1)


@pytest.fixture
def url(tmp_path: Path, world: World) -> Iterator[str]:
    adapters = adapters_in(tmp_path)
    app = create_app(master_over(adapters), MasterSettings(), None, world.reconciler)
    server = ApiServer(app, "127.0.0.1", 0)
    thread = threading.Thread(target=server.run, name="api")
    thread.start()
    yield f"http://127.0.0.1:{server.port}"
    server.drain()
    thread.join()
    adapters.close()


def essp(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(app, ["pool", *arguments, "--server", url])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.output


def test_look_set_and_look_again(url: str, world: World) -> None:
    world.pass_time(120, decoded_per_s=5.0, wait=0.5)
    (pool,) = json.loads(essp(url, "ls", "--json"))
    assert pool["saturation"] == "bottleneck"
    assert "decoder: at 2" in essp(url, "set", "decoder", "--replicas", "2")
    assert world.driver.replicas == {"decoder": 2}
    assert "at 2" in essp(url, "ls")
    assert "trainers wait 50%" in essp(url, "events")
    with pytest.raises(NotFound):
        essp(url, "set", "encoder")
