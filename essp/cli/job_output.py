"""A job that is named to a command: one of a master, or the output of any."""

from __future__ import annotations

import os

from essp.cli import rest
from essp_common.errors import NotFound, Unavailable
from essp_common.job.status import JobStatus


def status_of(job: str, server: str, token: str) -> JobStatus | None:
    """What the master says of a job of this name. None: it is an output, as a folder or URI. Raises `NotFound`, or
    `Unavailable`, for what is neither."""
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
    """The error where an output has no history."""
    return NotFound(f"{output} holds no history of a job; give the output of one, or the name of a master's job")
