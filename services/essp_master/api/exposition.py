"""The master's metrics, in the Prometheus text format: those every process counts, and the state of the jobs that run.

The name of a job is a label here, and only here: few jobs run at once, and those that ended are left out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from essp_common.job.status import JobStatus


class JobCollector(Collector):
    """Gives the figures of jobs at the moment they are asked for."""

    def __init__(self, running: Callable[[], Sequence[JobStatus]], leads: bool = True) -> None:
        self._running = running
        self._leads = leads

    def collect(self) -> Iterator[Metric]:
        """One family a figure, one sample a job."""
        yield GaugeMetricFamily("essp_leader", "1: this master leads; 0: it is a standby.", float(self._leads))
        jobs = self._running()
        figures: list[tuple[str, str, Callable[[JobStatus], float]]] = [
            ("essp_job_clips_done", "Clips that every consumer is done with.", lambda job: job.progress.done),
            ("essp_job_clips", "Clips of all phases.", lambda job: job.progress.total),
            ("essp_job_outstanding_bytes", "Bytes reserved or stored.", lambda job: job.credits.outstanding_bytes),
            ("essp_job_budget_bytes", "Bytes that may be outstanding.", lambda job: job.credits.budget_bytes),
            ("essp_job_outstanding_clips", "Clips issued and not done.", lambda job: job.credits.outstanding_clips),
            ("essp_job_out_of_credit", "1: consumers are the bottleneck.", lambda job: float(job.credits.waiting)),
        ]
        for name, help_text, figure in figures:
            gauge = GaugeMetricFamily(name, help_text, labels=["job"])
            for job in jobs:
                gauge.add_metric([job.name], figure(job))
            yield gauge
        backlog = GaugeMetricFamily(
            "essp_job_backlog_clips", "Clips that wait for a pool or are in its hands.", labels=["job", "what"]
        )
        for job in jobs:
            for what, clips in job.backlog.items():
                backlog.add_metric([job.name, what], clips)
        yield backlog
        seeds = CounterMetricFamily("essp_job_seeds", "Seeds by what became of them.", labels=["job", "outcome"])
        for job in jobs:
            for outcome, count in job.counts.model_dump().items():
                seeds.add_metric([job.name, outcome], count)
        yield seeds
        waits = GaugeMetricFamily(
            "essp_job_data_wait_ratio", "Share of its time that a trainer waited for clips.", labels=["job", "trainer"]
        )
        for job in jobs:
            for trainer in job.trainers:
                if trainer.data_wait_ratio is not None:
                    waits.add_metric([job.name, trainer.name], trainer.data_wait_ratio)
        yield waits


def exposition(running: Callable[[], Sequence[JobStatus]], leads: bool = True) -> bytes:
    """All metrics of this process, and of its jobs. `leads`: it is the master, no standby."""
    registry = CollectorRegistry()
    registry.register(JobCollector(running, leads))
    return generate_latest() + generate_latest(registry)
