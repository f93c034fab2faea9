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
    ("name", "value", "said"),
    [("ESSP_STORES", "file:///data", '"stores".*JSON'), ("ESSP_DRAIN_S", "soon", "ESSP_DRAIN_S: .*number")],
)
def test_a_value_that_makes_no_sense_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, said: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=said):
        Settings()
