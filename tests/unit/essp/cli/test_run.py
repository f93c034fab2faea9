"""`essp run`: which settings it takes from the shell."""

from __future__ import annotations

import pytest

from essp.cli.run import settings_of
from tests.harness.refused import refused

SERVERS = {"bus": "kafka://127.0.0.1:1", "cache": "redis://127.0.0.1:1/0"}


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """One that was told of servers, for `essp job` or a cluster."""
    for name, url in SERVERS.items():
        monkeypatch.setenv(f"ESSP_{name.upper()}", url)
    return monkeypatch


def test_servers_of_the_shell_are_used_only_if_asked_for(
    shell: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The master of such a server would lose a job of the same name."""
    mine = settings_of()
    assert (mine.bus, mine.cache) == ("memory://", "memory://")
    assert "ESSP_BUS and ESSP_CACHE" in capsys.readouterr().err
    theirs = settings_of(servers=True)
    assert (theirs.bus, theirs.cache) == (SERVERS["bus"], SERVERS["cache"])
    shell.delenv("ESSP_CACHE")
    with refused("--servers", "conflict"):
        settings_of(servers=True)


def test_how_much_memory_a_job_may_take_counts(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ESSP_CACHE", "memory://?bytes=4GiB")
    assert settings_of().cache == "memory://?bytes=4GiB"
    assert capsys.readouterr().err == ""
