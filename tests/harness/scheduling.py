"""Which test worker runs what: all that starts whole deployments on one, so that two never compete for the machine.

A scheduler of our own because the groups of pytest-xdist 3.8 (`--dist loadgroup`) have no effect under pytest 9.2.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling

_DEPLOYED = frozenset({"faults", "integration", "soak"})
_TOGETHER = frozenset({"chart"})
"""Folders whose tests share what is costly to make."""


class OneDeployment(LoadScopeScheduling):
    """Deals test files out; those of some folders together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = path.split("/")[1]
        if folder in _DEPLOYED:
            return "deployments"
        return folder if folder in _TOGETHER else path
