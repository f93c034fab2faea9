"""Which test worker runs what: whole deployments two at a time, and the costliest first.

Files are dealt out whole, since their tests share fixtures; some together. Never more than two of what starts whole
deployments run side by side as long as there is anything else to do: each can use all cores, and workers that starve
lose their groups, and take several times as long. A worker that has nothing left takes the costliest of what is left:
what takes minutes begins at once, what takes seconds fills the gaps, and all workers are busy to the end.

A scheduler of our own because the groups of pytest-xdist 3.8 (`--dist loadgroup`) have no effect under pytest 9.2, and
because it takes the number of tests for the cost.
"""

from __future__ import annotations

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TOGETHER = {
    "faults of workers": ("tests/faults/test_workers_fail.py",),
    "faults of links": ("tests/faults/test_links_fail.py", "tests/faults/test_messages_fail.py"),
    "faults": ("tests/faults",),
    "chart": ("tests/chart",),
}
"""Folders and files that are dealt out as one, since they share what is costly to make: a deployment, the charts."""
DEPLOYMENTS = (
    "faults",
    "tests/integration/test_deadletters.py",
    "tests/integration/test_elastic_master.py",
    "tests/integration/test_master_failover.py",
    "tests/integration/test_servers_journey.py",
    "tests/kafka/test_cluster.py",
    "tests/kafka/test_many_jobs.py",
    "tests/kills",
    "tests/soak/test_soak.py",
)
"""What starts whole deployments."""
AT_ONCE = 2
COSTS_S = {
    "faults of workers": 265.0,
    "faults": 190.0,
    "faults of links": 130.0,
    "tests/contract/test_bus.py": 115.0,
    "tests/flow/test_frameworks.py": 95.0,
    "tests/integration/test_tutorial.py": 95.0,
    "tests/kafka/test_cluster.py": 90.0,
    "tests/integration/test_servers_journey.py": 90.0,
    "tests/witness/test_answers.py": 85.0,
    "tests/integration/test_master_failover.py": 80.0,
    "tests/flow/test_loader_ends.py": 75.0,
    "tests/flow/test_loader_process.py": 75.0,
    "tests/integration/test_extras.py": 70.0,
    "tests/integration/test_trainer_ranks.py": 70.0,
    "tests/kills/test_each_service.py": 60.0,
    "tests/adversary/test_rest.py": 55.0,
    "tests/integration/test_wheel.py": 55.0,
    "tests/unit/essp_trainer/test_networks_of_clips.py": 50.0,
    "chart": 45.0,
    "tests/flow/test_loader.py": 45.0,
    "tests/integration/test_connected_loops.py": 45.0,
    "tests/integration/test_elastic_master.py": 45.0,
    "tests/unit/essp/demo/test_dataset.py": 45.0,
    "tests/unit/essp_aggregator/test_search.py": 45.0,
    "tests/contract/test_shm.py": 40.0,
    "tests/corpus/test_corpus.py": 40.0,
    "tests/integration/test_site.py": 40.0,
    "tests/soak/test_soak.py": 40.0,
    "tests/contract/test_cache.py": 35.0,
    "tests/flow/test_journey.py": 35.0,
    "tests/contract/test_kafka_rights.py": 30.0,
    "tests/kafka/test_many_jobs.py": 30.0,
    "tests/kafka/test_topics_change.py": 25.0,
    "tests/contract/test_objects_answers.py": 30.0,
    "tests/flow/test_labels.py": 30.0,
    "tests/flow/test_more_epochs.py": 30.0,
    "tests/unit/essp_aggregator/test_service.py": 30.0,
    "tests/unit/essp_engine/intake/test_fetch_processes.py": 30.0,
    "tests/unit/essp_master/api/test_jobs.py": 30.0,
    "tests/unit/essp_trainer/test_packing_process.py": 30.0,
    "tests/unit/essp_trainer/test_ranks.py": 30.0,
    "tests/flow/test_descriptors.py": 25.0,
    "tests/flow/test_divisions.py": 25.0,
    "tests/page/test_page.py": 25.0,
    "tests/unit/benchmarks/test_benchmarks.py": 25.0,
    "tests/unit/essp/servers/test_servers.py": 25.0,
    "tests/unit/essp_master/kubernetes/test_leadership.py": 25.0,
    "tests/unit/essp_trainer/test_leaving_a_fit.py": 25.0,
    "tests/unit/essp_trainer/test_recipe.py": 25.0,
    "tests/unit/essp_trainer/test_resuming.py": 25.0,
    "tests/unit/essp_trainer/test_service.py": 25.0,
    "tests/witness/test_witness.py": 25.0,
    "tests/flow/test_early_stopping.py": 20.0,
    "tests/flow/test_features.py": 20.0,
    "tests/flow/test_robots.py": 20.0,
    "tests/flow/test_targets.py": 20.0,
    "tests/unit/essp/catalog/test_build.py": 20.0,
    "tests/unit/essp_engine/learning/test_starting_weights.py": 20.0,
    "tests/unit/essp_engine/learning/test_torchvision_compat.py": 20.0,
    "tests/unit/essp_master/api/test_door.py": 20.0,
    "tests/unit/essp_master/api/test_requests.py": 20.0,
    "tests/unit/essp_trainer/test_early_stop.py": 20.0,
    "tests/unit/essp_trainer/test_unsaved.py": 20.0,
    "tests/unit/harness/test_launcher.py": 20.0,
    "tests/architecture/test_structure.py": 15.0,
    "tests/flow/test_loops_together.py": 15.0,
    "tests/flow/test_networks_of_clips.py": 15.0,
    "tests/flow/test_packages.py": 15.0,
    "tests/flow/test_prediction.py": 15.0,
    "tests/flow/test_segments.py": 15.0,
    "tests/flow/test_snippets.py": 15.0,
    "tests/unit/benchmarks/test_oneaccess.py": 15.0,
    "tests/unit/essp/cli/test_job.py": 15.0,
    "tests/unit/essp/doctor/test_doctor.py": 15.0,
    "tests/unit/essp/report/test_report.py": 15.0,
    "tests/unit/essp/report/test_samples.py": 15.0,
    "tests/unit/essp_common/runtime/test_tls.py": 15.0,
    "tests/unit/essp_master/test_more_epochs.py": 15.0,
    "tests/unit/essp_trainer/test_checkpoints.py": 15.0,
}
"""What the costly ones take. Exact figures are of no use: dealing by them is only about what begins first."""
_OTHERWISE_S = 0.1
"""A test of a file that is not named."""
_OF_A_JOB_S = 2.0
"""Likewise one of a whole job."""


class CostliestFirst(LoadScopeScheduling):
    """Deals test files out, some of them together."""

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((name for name, places in TOGETHER.items() if path.startswith(places)), path)

    def _assign_work_unit(self, node: WorkerController) -> None:
        others = [scope for scope in self.workqueue if not scope.startswith(DEPLOYMENTS)]
        choice = others if others and self._deployments() >= AT_ONCE else self.workqueue
        self.workqueue.move_to_end(max(choice, key=self._cost_s), last=False)
        super()._assign_work_unit(node)

    def _deployments(self) -> int:
        """How many are under way, or dealt out to begin next."""
        units = (unit for dealt in self.assigned_work.values() for unit in dealt.items())
        return sum(scope.startswith(DEPLOYMENTS) and not all(tests.values()) for scope, tests in units)

    def _cost_s(self, scope: str) -> float:
        one = _OF_A_JOB_S if scope.startswith("tests/flow/") else _OTHERWISE_S
        return COSTS_S.get(scope, one * len(self.workqueue[scope]))
