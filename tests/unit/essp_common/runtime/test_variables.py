"""Variables that look like settings: those that there are, and those that were misspelt."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module

import pytest
from typer.testing import CliRunner

from essp.cli.doctor import _settings
from essp.cli.main import app
from essp_common.runtime.config import Settings
from essp_common.runtime.variables import SETTINGS, misspelt

SERVICES = ("master", "trainer", "decoder", "extractor", "predictor", "aggregator")


def kinds(kind: type[Settings]) -> Iterator[type[Settings]]:
    yield kind
    for inner in kind.__subclasses__():
        yield from kinds(inner)


def test_all_settings_of_all_services_are_known() -> None:
    for service in SERVICES:
        import_module(f"essp_{service}.config")
    of_services = [kind for kind in kinds(Settings) if kind.__module__.endswith(".config")]
    assert {f"ESSP_{name.upper()}" for kind in of_services for name in kind.model_fields} == SETTINGS


@pytest.mark.parametrize(
    ("name", "meant"),
    [("ESSP_TENSORBORD", "ESSP_TENSORBOARD"), ("ESSP_STORE", "ESSP_STORES"), ("ESSP_DECODER_PROCESES", "PROCESSES")],
)
def test_a_misspelt_setting_is_named_with_the_one_that_was_meant(name: str, meant: str) -> None:
    (line,) = misspelt(["ESSP_BUS", name, "PATH"])
    assert line.startswith(name)
    assert meant in line


def test_what_kubernetes_and_the_compose_file_set_is_not_misspelt() -> None:
    names = ["ESSP_MASTER_SERVICE_HOST", "ESSP_MASTER_SERVICE_PORT_HTTP", "ESSP_MASTER_PORT", "ESSP_SERVER"]
    assert misspelt([*names, "ESSP_MASTER_PORT_8080_TCP_ADDR", "ESSP_MASTER_PORT_8080_TCP", "ESSP_S3_PORT"]) == []


def test_each_command_and_the_doctor_tell_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_TENSORBORD", "logs")
    assert "ESSP_TENSORBORD" in CliRunner().invoke(app, ["token", "me"]).stderr
    assert [finding.level for finding in _settings()] == ["warn"]
