"""A setting that would count for nothing is refused when the master starts."""

from __future__ import annotations

from typing import Any

import pytest

from essp_common.errors import ConfigError
from essp_master.config import MasterSettings


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"api_hosts": ["master", "https://essp.example.org"]}, "ESSP_API_HOSTS: https://essp.example.org is not"),
        ({"api_hosts": ["*"]}, r"ESSP_API_HOSTS: \* is not the name of a host"),
        ({"teams": {"vision": {"outputs": ["runs/vision"]}}}, "ESSP_TEAMS, vision, outputs, entry 1: 'runs/vision' is"),
    ],
)
def test_what_is_no_name_and_no_folder_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        MasterSettings(**wrong)


def test_names_and_folders_are_accepted() -> None:
    """The chart passes on an ingress without a host."""
    hosts = ("essp.example.org", "*.example.org", "localhost:8080", "")
    settings = MasterSettings(api_hosts=hosts, teams={"vision": {"outputs": ["s3://runs/vision/"]}})
    assert settings.api_hosts == hosts
    assert settings.teams["vision"].outputs == ("s3://runs/vision",)
