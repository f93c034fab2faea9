"""Which test worker runs what: the costliest first, so that all workers are busy to the end.

Files are dealt out whole, since their tests share fixtures; some folders are, too. A worker that has nothing left takes
the costliest of what is left: what takes minutes begins at once, what takes seconds fills the gaps. Whole deployments
may run side by side: each waits for others most of the time, and no test rests on how fast the machine is.

A scheduler of our own because the groups of pytest-xdist 3.8 (`--dist loadgroup`) have no effect under pytest 9.2, and
because it takes the number of tests for the cost.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

_TOGETHER = frozenset({"chart", "faults"})
"""Folders whose tests share what is costly to make."""
COSTS_S = {
    "tests/faults": 240.0,
    "tests/integration/test_trainer_ranks.py": 70.0,
    "tests/integration/test_master_failover.py": 55.0,
    "tests/integration/test_servers_journey.py": 45.0,
    "tests/integration/test_elastic_master.py": 30.0,
    "tests/integration/test_extras.py": 27.0,
    "tests/chart": 20.0,
    "tests/soak/test_soak.py": 19.0,
    "tests/unit/essp_master/test_takeover.py": 19.0,
    "tests/contract/test_objects.py": 17.0,
    "tests/contract/test_bus.py": 17.0,
    "tests/soak/test_memory.py": 12.0,
    "tests/unit/essp/report/test_report.py": 11.0,
    "tests/unit/essp_trainer/test_checkpoints.py": 10.0,
    "tests/flow/test_journey.py": 9.0,
    "tests/unit/essp_common/video/test_reader.py": 9.0,
    "tests/contract/test_cache.py": 8.0,
    "tests/integration/test_deadletters.py": 7.0,
}
"""What the costly ones take. Exact figures are of no use: dealing by them is only about what begins first."""
_OTHERWISE_S = 0.1
"""A test of a file that is not named."""


class CostliestFirst(LoadScopeScheduling):
    """Deals test files out, those of some folders together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        folder = path.split("/")[1]
        return f"tests/{folder}" if folder in _TOGETHER else path

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(max(self.workqueue, key=self._cost_s), last=False)
        super()._assign_work_unit(node)

    def _cost_s(self, scope: str) -> float:
        return COSTS_S.get(scope, _OTHERWISE_S * len(self.workqueue[scope]))
