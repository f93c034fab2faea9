"""Values that the shell completes: networks, features, strategies, and what a running master knows.

A completion never fails or waits: what is not known at once is not offered. Libraries are imported only when a value is
completed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence

from essp.uris import signed_in

_WAIT_S = 1.0
_SERVER = "http://127.0.0.1:8080"

Completion = Callable[[str], list[str]]


def _completing(known: Callable[[], Iterable[str]]) -> Completion:
    """A completion from the names that `known` returns."""

    def complete(incomplete: str) -> list[str]:
        try:
            return sorted(name for name in known() if name.startswith(incomplete))
        except Exception:  # noqa: BLE001  a message in the middle of a command line helps no one
            return []

    return complete


def _models() -> Sequence[str]:
    from essp_common.job.registered import MODELS

    return MODELS


def _features() -> Sequence[str]:
    from essp_engine.features import registry

    return registry.names()


def _strategies() -> Sequence[str]:
    from essp_engine.aggregation import registry

    return registry.names()


def _of_master(path: str, field: str = "") -> Sequence[str]:
    """The names in a list of the master that the environment names."""
    import httpx

    server, token = signed_in(os.environ.get("ESSP_SERVER", _SERVER), os.environ.get("ESSP_API_TOKEN", ""))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    answer = httpx.get(f"{server.rstrip('/')}{path}", headers=headers, timeout=_WAIT_S).raise_for_status().json()
    return [str(item["name"]) for item in (answer[field] if field else answer)]


models = _completing(_models)
features = _completing(_features)
strategies = _completing(_strategies)
jobs = _completing(lambda: _of_master("/v1/jobs?page_size=200", "jobs"))
pools = _completing(lambda: _of_master("/v1/pools"))
