"""Removes what a job that ran without a master has left in its output.

That is done under the claim of such jobs (`claim.py`), so no process on any machine runs one there meanwhile. A master
holds no such claim: its jobs are removed by it.

A job stays while another one stands on it: takes weights, a model, videos or records from its output. Nothing lists the
jobs that ran without a master, so the outputs next to this one are looked through.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice

from essp.embedded.claim import Claim
from essp.uris import shown
from essp_common.artifacts import layout
from essp_common.artifacts.dependents import places_of, taken_by
from essp_common.artifacts.history import History
from essp_common.artifacts.neighbours import outputs_within
from essp_common.artifacts.removal import Removal, holder_of, removal_of, remove_job
from essp_common.errors import Conflict, NotFound
from essp_common.wiring import Stores

_MOST_NAMED = 3


def removal_in(uri: str, stores: Stores) -> Removal:
    """What the removal of the job in this output would remove.

    Raises `NotFound` if there is no job; `ConfigError` for a folder that is not an output; `Conflict` if another job
    stands on this one.
    """
    found = _found_in(uri, stores)
    _check_unused(uri, found.job, stores)
    return found


def _found_in(uri: str, stores: Stores) -> Removal:
    output = stores.under(uri)
    found = None if holder_of(output) is None else removal_of(output)
    if found is None:
        inside = [shown(place) for place, _ in islice(outputs_within(output), _MOST_NAMED)]
        instead = f"; name one output, as {', '.join(inside)}" if inside else ""
        raise NotFound(f"{shown(uri)} is not the output of a job: it has no {layout.SPEC}{instead}")
    return found


def has_ended(uri: str, stores: Stores) -> bool:
    """Whether the last run of the job in this output came to its end. If not, it was interrupted, or is still under way
    at a master; nothing here says which."""
    newest = History(stores.under(uri)).newest()
    return newest is not None and bool(newest.status_json)


def remove_output(uri: str, stores: Stores, say: Callable[[str], None]) -> Removal:
    """Remove the job in this output; files that ESSP did not write stay. Returns what was removed.

    `say`: reports why the removal does not begin at once.

    Raises as `removal_in` does, and `Conflict` while a process runs a job there. After an interruption it can be
    repeated.
    """
    _found_in(uri, stores)  # a claim is a file, and is made in outputs alone
    output = stores.under(uri)
    with Claim(output, say) as claim:
        found = removal_in(uri, stores)
        claim.check()
        remove_job(output, found)
    return found


def _check_unused(uri: str, job: str, stores: Stores) -> None:
    folders = places_of(uri)
    parent = stores.under(uri.rstrip("/").rpartition("/")[0])
    for output, holder in outputs_within(parent):
        if output.rstrip("/") == uri.rstrip("/"):
            continue
        for taken in taken_by(holder.spec):
            if taken.is_in(folders):
                raise Conflict(
                    f"job {holder.spec.name} in {shown(output)} stands on job {job}: its {taken.field} is "
                    f"{shown(taken.uri)}; remove that job first, or keep both"
                )
