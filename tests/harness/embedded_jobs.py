"""Jobs in this process, waited for."""

from __future__ import annotations

from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.runtime.config import Settings


def finish(job: Embedded) -> JobStatus:
    """The job, once it has ended."""
    while not job.ended(0.05):
        pass
    return job.status()


def complete(job: Embedded) -> JobStatus:
    """The job, once it is complete. Fails when it ends otherwise."""
    status = finish(job)
    assert status.state is JobState.COMPLETED, status.reason
    return status


def run(spec: JobSpec, options: EmbeddedOptions | None = None) -> JobStatus:
    """Run a job to its end."""
    with Embedded(spec, Settings(), options or EmbeddedOptions()) as job:
        return finish(job)
