"""Where a job may write, and whose work it may continue or remove there: checked before each start, `fresh` or not.

Refused is an output that is not the job's own: that of another job, or of another team; one in or around another
output; the folder of the videos, of the catalog or of records; the master's own state; and a folder in which a job
would write over what is not ESSP's.
"""

from __future__ import annotations

from dataclasses import dataclass

from essp_common.artifacts import layout
from essp_common.artifacts.neighbours import outputs_around, outputs_within, real_uris
from essp_common.artifacts.removal import (
    Holder,
    OfAnotherJob,
    Removal,
    check_free,
    check_kept,
    holder_of,
    kind_of,
    removal_of,
)
from essp_common.catalog.catalog import Catalog
from essp_common.errors import ConfigError, Forbidden
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.objects.uris import place_of
from essp_common.records.rows import FIELDS
from essp_common.wiring import Stores

_OTHER = "choose another output"


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks for the start of a job, and what else they have said."""

    team: str = ""
    """Whose job it is."""
    admin: bool = True
    """They may continue and remove what is of other teams. So may all whom no token tells apart."""
    replaces: str = ""
    """The name of another job, whose output may be removed for this one (`fresh`)."""

    def sees(self, team: str | None) -> bool:
        """Whether they may know of the jobs of this team."""
        return self.admin or (team or "") == self.team


ANYBODY = Asked()
"""Somebody whom no token tells apart from others."""


def output_of(spec: JobSpec, stores: Stores) -> ObjectStore:
    """The output of a job. Raises `ConfigError` where nothing can be written."""
    try:
        output = stores.under(spec.output)
    except ConfigError as error:
        raise ConfigError(f"output: {error}") from error
    for store in (output, *map(output.below, (folder.rstrip("/") for folder in layout.FOLDERS))):
        if trouble := store.unwritable():
            raise ConfigError(f"output: {trouble}")
    return output


def holder(output: ObjectStore, spec: JobSpec, asked: Asked) -> Holder | None:
    """The job whose output this is, if they who ask may continue it; None: it is that of none, and free to write.

    Raises `ConfigError`, and `Forbidden` for that of another team.
    """
    try:
        found = holder_of(output)
        if found is None:
            check_free(output, kind_of(spec))
    except ConfigError as error:
        raise ConfigError(f"output: {error}") from error
    if found is not None and found.team is not None:
        _check_team(spec, found, asked)
    return found


def removal(output: ObjectStore, spec: JobSpec, asked: Asked) -> Removal | None:
    """What is removed for a job that begins anew; None: nothing of a job is there. Nothing is removed yet.

    Raises `ConfigError` for what is no output, or where the job would write over what stays, `Forbidden` for the output
    of another team, and `OfAnotherJob`.
    """
    try:
        found, held = removal_of(output), holder_of(output)
    except ConfigError as error:
        raise ConfigError(f"output: {error}") from error
    if held is not None:
        _check_team(spec, held, asked)
    if found is not None and found.job not in (spec.name, asked.replaces):
        raise OfAnotherJob(
            f"output: {found.uri} is the output of another job, {found.job}, and would be removed ({found.words}); "
            f"choose another output, or say that it may go: replaces={found.job}",
            found.job,
        )
    try:
        if found is not None:
            check_kept(found, spec)
    except ConfigError as error:
        raise ConfigError(f"output: {error}") from error
    return found


def _check_team(spec: JobSpec, held: Holder, asked: Asked) -> None:
    if not asked.sees(held.team):
        whose = f"of team {held.team}" if held.team else "of no team"
        raise Forbidden(
            f"output: {spec.output} holds a job {whose}, and this token is of "
            f"{f'team {asked.team}' if asked.team else 'no team'}; {_OTHER}, or ask somebody with an admin token"
        )


def check_place(
    spec: JobSpec,
    stores: Stores,
    output: ObjectStore,
    catalog: Catalog,
    state: str = "",
    asked: Asked = ANYBODY,
) -> None:
    """Raises `ConfigError` for an output that is in or around what is not this job's. `state`: folder of the master's
    state; empty: it has none. `asked`: who is told; nobody of the jobs of other teams."""
    if state and any(_share(place, other) for place in real_uris(spec.output) for other in real_uris(state)):
        raise ConfigError(f"output: {spec.output} and the master's own state (ESSP_STATE) share a folder; {_OTHER}")
    _check_data(spec)
    _check_videos(spec, catalog)
    for where, other in outputs_around(stores, spec.output):
        if not _is_division(spec, other.spec):
            raise ConfigError(f"output: {spec.output} lies in the output of {_named(other, where, asked)}; {_OTHER}")
    for where, other in outputs_within(output):
        if not _is_division(other.spec, spec):
            raise ConfigError(f"output: in {spec.output} lies the output of {_named(other, where, asked)}; {_OTHER}")


def _named(other: Holder, where: str, asked: Asked) -> str:
    return f"job {other.spec.name}, {where}" if asked.sees(other.team) else "a job of another team"


def _check_data(spec: JobSpec) -> None:
    """The catalog and the records may lie beside what a job writes, and not among it."""
    named = {FIELDS[split]: uri for split, uri in spec.data.record_sets.items()}
    if spec.data.catalog and not spec.data.records:
        named["data.catalog"] = spec.data.catalog
    written = (*layout.FOLDERS, *(file for file in layout.FILES if file != layout.CATALOG))
    for field, uri in named.items():
        below = place_of(uri).below(place_of(spec.output))
        if below is None and place_of(spec.output).below(place_of(uri)) is None:
            continue
        if not below:
            raise ConfigError(f"output: {spec.output} lies in {uri} ({field}); {_OTHER}")
        if f"{below}/".startswith(written):
            raise ConfigError(f"output: {uri} ({field}) lies where this job writes; {_OTHER}, or move it")


def _check_videos(spec: JobSpec, catalog: Catalog) -> None:
    if spec.data.records:
        return
    for place in real_uris(spec.output):
        if catalog.rows.begin("uri", f"{place.rstrip('/')}/"):
            raise ConfigError(
                f"output: videos of the catalog lie in {spec.output}; choose a folder beside them, such as "
                f"{spec.output.rstrip('/')}/runs/{spec.name}"
            )


def _is_division(inner: JobSpec, outer: JobSpec) -> bool:
    """Whether a job is on a division of another one's data set: it has its folder in the other's output."""
    return inner.output.startswith(f"{outer.output}/") and (
        inner.name == f"{outer.name}-{inner.output.removeprefix(f'{outer.output}/')}"
    )


def _share(one: str, other: str) -> bool:
    """Whether one of two folders is the other, or lies in it."""
    one, other = f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"
    return one.startswith(other) or other.startswith(one)
