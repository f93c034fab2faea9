"""`essp aggregator ls` and `describe`: what a user can write into `aggregation.strategies`."""

from __future__ import annotations

import json

import pytest

from essp_common.errors import ConfigError
from essp_engine.aggregation import registry
from tests.harness.command_line import essp


def test_every_strategy_is_listed_with_its_parameters() -> None:
    rows = json.loads(essp("aggregator", "ls", "--json").stdout)
    assert [row["name"] for row in rows] == registry.names()
    assert {row["name"]: row["params"] for row in rows}["top_k"] == "rule, weights, k"
    shown = essp("aggregator", "ls").stdout
    assert all(row["name"] in shown for row in rows)


@pytest.mark.parametrize("name", registry.names())
def test_a_strategy_is_described_with_its_defaults(name: str) -> None:
    said = json.loads(essp("aggregator", "describe", name, "--json").stdout)
    shown = essp("aggregator", "describe", name).stdout
    assert said["summary"] in shown
    for parameter, default in said["params"].items():
        assert f"  {parameter}: {default}" in shown
    registry.create(name, said["params"])


def test_one_that_there_is_not_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ConfigError, match="did you mean attention"):
        essp("aggregator", "describe", "atention")
