"""The master's metrics in the Prometheus text format: the metrics of every process, the state of its jobs, its pools,
and what their workers use.

Only these metrics have the name of a job as a label, which is affordable because few jobs run at once. Ended jobs stay
for a while so that an infrequent scrape still sees how they ended; only their live figures disappear at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from essp_common.job.status import JobState, JobStatus, TrainerStatus
from essp_common.job.usage import PoolUsage, Usage
from essp_master.pools.port import TrainingKey
from essp_master.pools.reconciler import PoolView

Figure = tuple[str, str, Callable[[JobStatus], float]]

_OF_ALL: tuple[Figure, ...] = (
    ("essp_job_clips_done", "Clips that every consumer is done with.", lambda job: job.progress.done),
    ("essp_job_clips", "Clips of all phases.", lambda job: job.progress.total),
)
_OF_LIVE: tuple[Figure, ...] = (
    ("essp_job_outstanding_bytes", "Bytes reserved or stored.", lambda job: job.credits.outstanding_bytes),
    ("essp_job_budget_bytes", "Bytes that may be outstanding.", lambda job: job.credits.budget_bytes),
    ("essp_job_outstanding_clips", "Clips issued and not done.", lambda job: job.credits.outstanding_clips),
    ("essp_job_out_of_credit", "1: consumers are the bottleneck.", lambda job: float(job.credits.waiting)),
)


class JobCollector(Collector):
    """Computes the metrics of jobs when they are scraped."""

    def __init__(self, jobs: Callable[[], Sequence[JobStatus]], leads: bool = True) -> None:
        """`jobs`: returns the jobs under way and those that ended recently."""
        self._jobs = jobs
        self._leads = leads

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family per figure, with one sample per job."""
        yield GaugeMetricFamily("essp_leader", "1: this master leads; 0: it is a standby.", float(self._leads))
        jobs = self._jobs()
        live = [job for job in jobs if not job.state.ended]
        yield _states(jobs)
        for figures, shown in ((_OF_ALL, jobs), (_OF_LIVE, live)):
            for name, help_text, figure in figures:
                gauge = GaugeMetricFamily(name, help_text, labels=["job"])
                for job in shown:
                    gauge.add_metric([job.name], figure(job))
                yield gauge
        backlog = GaugeMetricFamily(
            "essp_job_backlog_clips", "Clips that wait for a pool or are in its hands.", labels=["job", "what"]
        )
        for job in live:
            for what, clips in job.backlog.items():
                backlog.add_metric([job.name, what], clips)
        yield backlog
        seeds = CounterMetricFamily("essp_job_seeds", "Seeds by their outcome.", labels=["job", "outcome"])
        for job in jobs:
            for outcome, count in job.counts.model_dump().items():
                seeds.add_metric([job.name, outcome], count)
        yield seeds
        yield from _trainings(jobs)


def _states(jobs: Sequence[JobStatus]) -> Metric:
    states = GaugeMetricFamily("essp_job_state", "1: the job is in this state; 0: it is not.", labels=["job", "state"])
    for job in jobs:
        for state in JobState:
            states.add_metric([job.name, state], float(job.state is state))
    return states


def _trainings(jobs: Sequence[JobStatus]) -> Iterator[Metric]:
    waits = GaugeMetricFamily(
        "essp_job_data_wait_ratio", "Share of its time that a trainer waited for clips.", labels=["job", "trainer"]
    )
    epochs = GaugeMetricFamily(
        "essp_job_epoch", "Epoch that a trainer is at, counted from 0.", labels=["job", "trainer"]
    )
    each = ["job", "trainer", "purpose"]
    losses = GaugeMetricFamily(
        "essp_job_loss", "Mean loss of the newest epoch, or of what there is of it.", labels=each
    )
    top1s = GaugeMetricFamily("essp_job_top1", "Share of clips whose class was the first choice.", labels=each)
    for job in jobs:
        for trainer in job.trainers:
            if trainer.data_wait_ratio is not None and not job.state.ended:
                waits.add_metric([job.name, trainer.name], trainer.data_wait_ratio)
            if trainer.purpose is not None:
                epochs.add_metric([job.name, trainer.name], trainer.epoch)
            for purpose, came_to in _newest(trainer).items():
                for family, figure in ((losses, "loss"), (top1s, "top1")):
                    if figure in came_to:
                        family.add_metric([job.name, trainer.name, purpose], came_to[figure])
    yield from (waits, epochs, losses, top1s)


def _newest(trainer: TrainerStatus) -> dict[str, Mapping[str, float]]:
    """Return the metrics of its newest phases by purpose; for a training phase under way, its metrics so far."""
    found: dict[str, Mapping[str, float]] = {report.purpose: report.metrics for report in trainer.reports}
    if trainer.purpose == "train" and trainer.loss is not None and trainer.top1 is not None:
        found["train"] = {"loss": trainer.loss, "top1": trainer.top1}
    return found


class PoolCollector(Collector):
    """Exports the pool sizes as last observed, so that a scrape never waits for the platform."""

    def __init__(self, pools: Callable[[], Sequence[PoolView]], ranks: Callable[[], Mapping[TrainingKey, int]]) -> None:
        self._pools = pools
        self._ranks = ranks

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family per figure, with one sample per pool or training."""
        figures: list[tuple[str, str, Callable[[PoolView], float]]] = [
            ("essp_pool_size", "Workers that were asked for.", lambda pool: pool.replicas),
            ("essp_pool_wanted", "Workers that the master holds right.", lambda pool: pool.wanted),
            (
                "essp_pool_pending",
                "Workers that were asked for and are not up.",
                lambda pool: max(0, pool.replicas - pool.ready),
            ),
        ]
        pools = self._pools()
        for name, help_text, figure in figures:
            gauge = GaugeMetricFamily(name, help_text, labels=["pool"])
            for pool in pools:
                gauge.add_metric([pool.name], figure(pool))
            yield gauge
        ranks = GaugeMetricFamily("essp_job_ranks", "Ranks that a training has.", labels=["job", "trainer"])
        for (job, trainer), share in self._ranks().items():
            ranks.add_metric([job, trainer], share)
        yield ranks


class UsageCollector(Collector):
    """Exports what the workers of each pool use, by their last heartbeats."""

    def __init__(self, usage: Usage) -> None:
        self._usage = usage

    def collect(self) -> Iterator[Metric]:
        """Yield one metric family per figure, with one sample per pool that reports it."""
        figures: list[tuple[str, str, Callable[[PoolUsage], float | None]]] = [
            ("essp_pool_workers", "Workers that are up.", lambda pool: pool.workers),
            ("essp_pool_busy_ratio", "Share of their time for which its workers worked.", lambda pool: pool.busy),
            ("essp_pool_cpu_cores", "Cores that its workers keep busy.", lambda pool: pool.cpu_cores),
            ("essp_pool_cpu_limit_cores", "Cores that its workers may use.", lambda pool: pool.cores),
            ("essp_pool_memory_bytes", "Memory that its workers use.", lambda pool: pool.memory_bytes),
            (
                "essp_pool_disk_free_bytes",
                "Least free space that one of its workers has for temporary files.",
                lambda pool: pool.disk_free_bytes,
            ),
            ("essp_pool_gpus", "GPUs that its workers use.", lambda pool: pool.gpus),
            ("essp_pool_gpu_busy_ratio", "Share of the time for which its GPUs are busy.", lambda pool: pool.gpu_busy),
            ("essp_pool_gpu_memory_bytes", "Memory that is used on its GPUs.", lambda pool: pool.gpu_memory_bytes),
            ("essp_pool_gpu_watts", "Power that its GPUs take.", lambda pool: pool.gpu_watts),
        ]
        for name, help_text, figure in figures:
            gauge = GaugeMetricFamily(name, help_text, labels=["pool"])
            for pool in self._usage.pools:
                if (value := figure(pool)) is not None:
                    gauge.add_metric([pool.pool], value)
            yield gauge


def exposition(*collectors: Collector) -> bytes:
    """Return this process's metrics, which contain no job names, and the metrics of these collectors."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest() + generate_latest(registry)
