"""The jobs that have run in a folder, from what they left in their outputs: for `essp page` and `essp run --keep`."""

from __future__ import annotations

import logging
from collections.abc import Collection
from datetime import UTC, datetime

from essp.embedded.unfinished import so_far
from essp_common.artifacts import layout
from essp_common.artifacts.history import History
from essp_common.artifacts.neighbours import outputs_within
from essp_common.artifacts.removal import job_at
from essp_common.errors import EsspError
from essp_common.job.past_status import past_status, status_by_command
from essp_common.job.spec import stored_spec
from essp_common.job.status import JobStatus
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import Control, JobSnapshot
from essp_common.wiring import Stores

log = logging.getLogger(__name__)

_OPEN = "it has not ended: it is under way elsewhere, or was interrupted"


def statuses_in(uri: str, stores: Stores) -> list[JobStatus]:
    """The last status of each job whose output is this folder, or in it. Outputs without a readable history are left
    out, which is logged.

    Jobs of one name are numbered in the order in which they were found.
    """
    root = stores.under(uri)
    outputs = [uri] if job_at(root) is not None else []
    outputs += sorted(output for output, _ in outputs_within(root))
    found: dict[str, JobStatus] = {}
    for output in outputs:
        try:
            status = _last_status(stores.under(output), output)
        except EsspError as error:
            log.warning("%s is left out: %s", output, error)
            continue
        name = _free(status.name, found)
        found[name] = status.model_copy(update={"name": name, "output": output, "team": ""})
    return list(found.values())


def _last_status(output: ObjectStore, uri: str) -> JobStatus:
    """The status in the newest part of a job's history. A job that has not ended has none there."""
    newest = History(output).newest()
    if newest is not None and newest.status_json:
        return past_status(newest.status_json, f"the status in {uri}/{layout.HISTORY}")
    text = output.get(layout.SPEC).decode()
    snapshot, spec = JobSnapshot(spec_json=text), stored_spec(text, output.uri(layout.SPEC))
    found = status_by_command(Control(job=spec.name, command=Control.STOP, reason=_OPEN, snapshot=snapshot))
    if newest is None:
        return found
    found = found.model_copy(update={"created": datetime.fromtimestamp(newest.created_ms / 1000, UTC), "ended": None})
    return so_far(found, spec, output) if spec.trainers else found


def _free(name: str, taken: Collection[str]) -> str:
    number = 1
    found = name
    while found in taken:
        number += 1
        found = f"{name} ({number})"
    return found
