"""`essp registry` and `essp token`, against an API that is being served."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from typer.testing import Result

from essp_common.errors import ConfigError, NotFound
from essp_common.runtime.api_token import ApiToken, Right
from essp_common.wiring import open_store
from essp_engine.registrations import Registrations
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from tests.harness.command_line import essp
from tests.harness.fleet import adapters_in, master_over
from tests.harness.refused import Refusal, refused
from tests.harness.serving import served

ROW = """
name: depth
image: registry.example/depth@sha256:%s
output: {shape: [1, H, W, T], dtype: float32}
""" % ("0f" * 32)


@pytest.fixture
def url(tmp_path: Path) -> Iterator[str]:
    tables = Registrations(open_store((tmp_path / "state").as_uri()), ["registry.example/"])
    with (
        closing(adapters_in(tmp_path)) as adapters,
        served(create_app(master_over(adapters), MasterSettings(), tables)) as url,
    ):
        yield url


def call(url: str, *arguments: str) -> Result:
    return essp("registry", *arguments, "--server", url)


def test_register_change_and_remove(url: str, tmp_path: Path) -> None:
    file = tmp_path / "depth.yaml"
    file.write_text(ROW)
    assert call(url, "put", "extractors", str(file)).output == "extractors/depth registered\n"
    file.write_text(ROW + "max: 3\n")
    assert call(url, "put", "extractors", str(file)).output == "extractors/depth changed\n"
    assert json.loads(call(url, "get", "extractors", "depth").output)["max"] == 3
    assert [row["name"] for row in json.loads(call(url, "ls", "--json").output)] == ["depth"]
    assert "1 CPU, 2Gi, 0 GPU" in call(url, "ls").output
    call(url, "rm", "extractors", "depth", "--yes")
    assert [line.split()[2] for line in call(url, "log").output.splitlines()] == ["put", "put", "delete"]
    with pytest.raises(NotFound):
        call(url, "get", "extractors", "depth")


@pytest.mark.parametrize(
    "text",
    ["- a list", "name: [", "name: depth\nname: other", "name: depth\nimage: registry.example/depth:latest\noutput: 1"],
)
def test_what_is_no_row_is_refused(url: str, tmp_path: Path, text: str) -> None:
    file = tmp_path / "row.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError):
        call(url, "put", "extractors", str(file))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["x" * 65], ("name", "range")),
        (["ci", "--team", "x" * 65], ("team", "range")),
        ([""], ("name", "invalid")),
    ],
)
def test_a_token_that_no_master_would_take_is_refused(arguments: list[str], words: Refusal) -> None:
    with refused(*words):
        essp("token", *arguments)


def test_a_token_is_told_once_and_known_by_its_hash() -> None:
    made = json.loads(essp("token", "ci", "--scope", "operate", "--json").output)
    entry = ApiToken.model_validate(made["entry"])
    assert entry.scopes == {Right.OPERATE}
    assert entry.sha256 == hashlib.sha256(made["token"].encode()).hexdigest()
