"""Settings: what the environment says, and how it is told that it says nonsense."""

from __future__ import annotations

import pytest

from essp_common.errors import ConfigError
from essp_common.runtime.config import Settings


def test_the_environment_sets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_STORES", '["file:///data", "s3://bucket"]')
    monkeypatch.setenv("ESSP_DRAIN_S", "2.5")
    settings = Settings()
    assert (settings.stores, settings.drain_s) == (("file:///data", "s3://bucket"), 2.5)


@pytest.mark.parametrize(
    ("name", "value", "entries"),
    [
        ("stores", "file:///data", ("file:///data",)),
        ("stores", " file:///data , s3://b?endpoint=http://h:1,", ("file:///data", "s3://b?endpoint=http://h:1")),
        ("stores", "gs://b?scopes=a,b,https://host", ("gs://b?scopes=a,b", "https://host")),
        ("stores", '["file:///a,b"]', ("file:///a,b",)),
        ("code", "one.nets, two", ("one.nets", "two")),
        ("code", "", ()),
    ],
)
def test_a_list_is_json_or_entries_between_commas(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, entries: tuple[str, ...]
) -> None:
    monkeypatch.setenv(f"ESSP_{name.upper()}", value)
    assert getattr(Settings(), name) == entries


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("ESSP_STORES", '["file:///data"', '"stores".*JSON'),
        ("ESSP_CODE", "our_package:nets", "ESSP_CODE, entry 1: "),
        ("ESSP_DRAIN_S", "soon", "ESSP_DRAIN_S: .*number"),
        ("ESSP_DRAIN_S", "-5", "ESSP_DRAIN_S: .*0"),
        ("ESSP_DRAIN_S", "inf", "ESSP_DRAIN_S: .*86400"),
        ("ESSP_METRICS_PORT", "70000", "ESSP_METRICS_PORT: .*65535"),
        ("ESSP_CODE", '[""]', "ESSP_CODE, entry 1: "),
        ("ESSP_CODE", "one.nets,1two", "ESSP_CODE, entry 2: "),
        ("ESSP_CODE", '["our_package:nets"]', "ESSP_CODE, entry 1: "),
    ],
)
def test_a_value_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        Settings()


@pytest.mark.parametrize("name", ["ESSP_BUS", "ESSP_CACHE"])
@pytest.mark.parametrize("server", ["[", "[::1", "h:99999", "h:x", "h:-1", "h:0", "..", "\udcff", "h\n", "secret@h:x"])
def test_a_url_of_no_server_is_named_and_not_shown(monkeypatch: pytest.MonkeyPatch, name: str, server: str) -> None:
    monkeypatch.setenv(name, f"redis://{server}")
    with pytest.raises(ConfigError, match=f"{name}: ") as refused:
        Settings()
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    ["memory://", "memory://?bytes=1GiB", "kafka://a:9092,b_c:9092", "kafka+ssl://a?ca=/x", "redis://[::1]:6379/0"],
)
def test_a_url_of_a_server_is_taken_as_it_is(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("ESSP_BUS", url)
    assert Settings().bus == url


def test_of_several_brokers_each_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ESSP_BUS", "kafka://a:9092,b:x")
    with pytest.raises(ConfigError, match=r"ESSP_BUS: .*port is not a number"):
        Settings()
