"""`essp pool` against an API that is being served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from essp_common.errors import NotFound
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from tests.harness.command_line import essp
from tests.harness.fleet import adapters_in, master_over
from tests.harness.serving import served
from tests.unit.essp_master.pools.reconciler_bench import ReconcilerBench


@pytest.fixture
def bench() -> ReconcilerBench:
    return ReconcilerBench(decoder=1)


@pytest.fixture
def url(tmp_path: Path, bench: ReconcilerBench) -> Iterator[str]:
    with closing(adapters_in(tmp_path)) as adapters:
        app = create_app(master_over(adapters), MasterSettings(), None, bench.reconciler)
        with served(app) as url:
            yield url


def pool(url: str, *arguments: str) -> str:
    return essp("pool", *arguments, "--server", url).output


def test_look_set_and_look_again(url: str, bench: ReconcilerBench) -> None:
    bench.pass_time(120, decoded_per_s=5.0, wait=0.5)
    (decoder,) = json.loads(pool(url, "ls", "--json"))
    assert decoder["saturation"] == "bottleneck"
    assert "decoder: at 2" in pool(url, "set", "decoder", "--replicas", "2")
    assert bench.driver.replicas == {"decoder": 2}
    assert "at 2" in pool(url, "ls")
    assert "trainers wait 50 %" in pool(url, "events")
    with pytest.raises(NotFound):
        pool(url, "set", "encoder")


def test_what_keeps_workers_from_coming_up_is_shown(url: str, bench: ReconcilerBench) -> None:
    bench.driver.held_up = "pods are not made: exceeded quota: team"
    assert "exceeded quota: team" in " ".join(pool(url, "ls").split())
    assert json.loads(pool(url, "ls", "--json"))[0]["held_up"] == bench.driver.held_up


def test_what_was_set_is_forgotten(url: str, bench: ReconcilerBench) -> None:
    pool(url, "set", "decoder", "--min", "3")
    assert bench.driver.replicas == {"decoder": 3}
    assert "the bounds that it was made with" in pool(url, "reset", "decoder")
    assert json.loads(pool(url, "ls", "--json"))[0]["rule"] == {"min": 1, "max": 64, "replicas": None, "paused": False}
    with pytest.raises(NotFound, match="was never changed"):
        pool(url, "reset", "decoder")


def test_a_pool_is_paused_and_resumed(url: str, bench: ReconcilerBench) -> None:
    assert "decoder: 1 to 64, paused" in pool(url, "pause", "decoder")
    assert "paused" in pool(url, "ls")
    assert "at 2, paused" in pool(url, "set", "decoder", "--replicas", "2"), "and it stays so"
    assert not json.loads(pool(url, "resume", "decoder", "--json").splitlines()[0])["paused"]
    assert bench.told == [{"decoder"}, set()]
