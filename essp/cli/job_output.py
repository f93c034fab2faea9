"""A job named on the command line: a job of a master, or the output of any job."""

from __future__ import annotations

import os

from essp.cli import rest
from essp_common.errors import NotFound, Unavailable
from essp_common.job.status import JobStatus


def status_of(job: str, server: str, token: str) -> JobStatus | None:
    """The master's status of a job of this name; None if `job` is an output, given as a folder or URI. Raises
    `NotFound` or `Unavailable` if it is neither."""
    if "://" in job or "/" in job or os.path.isdir(job):
        return None
    try:
        with rest.connect(server, token) as client:
            return JobStatus.model_validate(rest.ask(client, "GET", rest.path_of("jobs", job)))
    except (NotFound, Unavailable) as error:
        raise type(error)(
            f"{job} is neither a folder here, as runs/{job} may be, nor a job of the master: {error}"
        ) from error


def no_history(output: str) -> NotFound:
    """The error for an output without a history."""
    return NotFound(f"{output} holds no history of a job; give the output of one, or the name of a master's job")
