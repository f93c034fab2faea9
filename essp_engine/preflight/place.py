"""Checks that a job writes to a folder of its own.

Refused are outputs inside or around another output; the folder of the videos, the catalog or the records; and the
master's own state.
"""

from __future__ import annotations

from collections.abc import Sequence

from essp_common.artifacts import layout
from essp_common.artifacts.neighbours import outputs_around, outputs_within, real_uris
from essp_common.artifacts.removal import Holder
from essp_common.catalog.catalog import Catalog
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.objects.uris import place_of
from essp_common.records.rows import FIELDS
from essp_common.wiring import Stores
from essp_engine.preflight.output import ANYBODY, Asked
from essp_engine.preflight.resolve import ResolvedJob

_OTHER = "choose another output"


def check_place(job: ResolvedJob, stores: Stores, output: ObjectStore, state: str = "", asked: Asked = ANYBODY) -> None:
    """Raises `ConfigError` for an output that overlaps with another folder in use. `state`: the folder of the master's
    state; empty: it has no state. `asked`: who asks; the error does not name jobs of other teams to them."""
    spec, places = job.spec, real_uris(job.spec.output)
    if state and any(_share(place, other) for place in places for other in real_uris(state)):
        raise _taken(f"{spec.output} and the master's own state (ESSP_STATE) share a folder; {_OTHER}")
    _check_data(spec)
    _check_videos(spec, places, job.catalog)
    for where, other in outputs_around(stores, spec.output):
        if not _is_division(spec, other.spec):
            raise _taken(f"{spec.output} is inside the output of {_named(other, where, asked)}; {_OTHER}")
    for where, other in outputs_within(output):
        if not _is_division(other.spec, spec):
            raise _taken(f"{spec.output} contains the output of {_named(other, where, asked)}; {_OTHER}")


def _taken(problem: str) -> ConfigError:
    return ConfigError(problem, field="output", code="taken")


def _named(other: Holder, where: str, asked: Asked) -> str:
    return f"job {other.spec.name}, {where}" if asked.sees(other.team) else "a job of another team"


def _check_data(spec: JobSpec) -> None:
    """The catalog and the records may be next to what a job writes, but not inside it."""
    named = {FIELDS[split]: uri for split, uri in spec.data.record_sets.items()}
    if spec.data.catalog and not spec.data.records:
        named["data.catalog"] = spec.data.catalog
    written = (*layout.FOLDERS, *(file for file in layout.FILES if file != layout.CATALOG))
    for field, uri in named.items():
        below = place_of(uri).below(place_of(spec.output))
        if below is None and place_of(spec.output).below(place_of(uri)) is None:
            continue
        if not below:
            raise _taken(f"{spec.output} is inside {uri} ({field}); {_OTHER}")
        if f"{below}/".startswith(written):
            raise _taken(f"{uri} ({field}) is among the files that this job writes; {_OTHER}, or move it")


def _check_videos(spec: JobSpec, places: Sequence[str], catalog: Catalog) -> None:
    for place in () if spec.data.records else places:
        if catalog.rows.begin("uri", f"{place.rstrip('/')}/"):
            raise _taken(
                f"{spec.output} contains videos of the catalog; choose a folder without videos, such as "
                f"{spec.output.rstrip('/')}/runs/{spec.name}"
            )


def _is_division(inner: JobSpec, outer: JobSpec) -> bool:
    """Whether a job uses a part of another job's data set: then its folder is in the output of that job."""
    return inner.output.startswith(f"{outer.output}/") and (
        inner.name == f"{outer.name}-{inner.output.removeprefix(f'{outer.output}/')}"
    )


def _share(one: str, other: str) -> bool:
    """Whether two folders are the same, or one contains the other."""
    one, other = f"{one.rstrip('/')}/", f"{other.rstrip('/')}/"
    return one.startswith(other) or other.startswith(one)
