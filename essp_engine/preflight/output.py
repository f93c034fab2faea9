"""Whose output a folder is, and whether a job may continue or remove the work in it: checked before each start.

Refused are outputs of another job or another team, and folders in which a job would overwrite files that ESSP did not
write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from essp_common.artifacts import layout
from essp_common.artifacts.removal import (
    Holder,
    OfAnotherJob,
    Removal,
    check_free,
    check_kept,
    holder_of,
    removal_of,
)
from essp_common.errors import ConfigError, Forbidden
from essp_common.field_paths import joined
from essp_common.job.changes import changeable
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores

_NO_EFFECT = ("device", "threads", "checkpoint", "epochs", "priority", "stop")
"""Fields that, like all `limits`, do not change what a job computes, except for how long it trains."""


def _refused(other: OfAnotherJob) -> None:
    raise other


@dataclass(frozen=True, slots=True)
class Asked:
    """Who asks for the start of a job, and what they allow."""

    team: str = ""
    """Whose job it is."""
    admin: bool = True
    """They may continue and remove the work of other teams. So may everyone where there are no tokens."""
    replaces: str = ""
    """The name of another job whose output may be removed for this one (`fresh`)."""
    confirm: Callable[[OfAnotherJob], None] = _refused
    """Called before the output of another job is removed that `replaces` does not name. Raises to refuse that."""

    def sees(self, team: str | None) -> bool:
        """Whether they may see the jobs of this team."""
        return self.admin or (team or "") == self.team


ANYBODY = Asked()
"""A user without a token."""


@dataclass(frozen=True, slots=True)
class Output:
    """The folder that a job writes to, and whose output it is."""

    store: ObjectStore
    holder: Holder | None
    """The job whose output it is; None: it is not the output of a job, or that is `unreadable`."""
    unreadable: ConfigError | None = None
    """Why the owner is not known; None: it is known."""

    @property
    def job(self) -> JobSpec | None:
        """The job whose output it is."""
        return None if self.holder is None else self.holder.spec


def open_output(spec: JobSpec, stores: Stores) -> Output:
    """The output of a job. Raises `ConfigError` if nothing can be written there."""
    try:
        store = stores.under(spec.output)
    except ConfigError as error:
        raise ConfigError.at("output", error) from error
    for folder in (store, *map(store.below, (name.rstrip("/") for name in layout.FOLDERS))):
        if trouble := folder.unwritable():
            raise ConfigError(trouble, field="output", code="refused")
    return output_at(store)


def output_at(store: ObjectStore) -> Output:
    """The output in this folder, as it is now."""
    try:
        return Output(store, holder_of(store))
    except ConfigError as error:
        return Output(store, None, error)


def check_owner(output: Output, spec: JobSpec, asked: Asked = ANYBODY, continues: bool = False) -> JobSpec | None:
    """The job that the output holds: this one, or this one with fewer epochs and trainers; None: it holds no job.

    `continues`: a run continues with the epochs and trainers that it began with. The output may then hold the job with
    more of them: those of the next run, which was not announced yet.

    Raises `ConfigError` for another job, and `Forbidden` for a job of another team.
    """
    if output.unreadable is not None:
        raise ConfigError.at("output", output.unreadable) from output.unreadable
    if output.holder is None:
        try:
            check_free(output.store, spec)
        except ConfigError as error:
            raise ConfigError.at("output", error) from error
        return None
    if output.holder.team is not None:
        _check_team(spec, output.holder, asked)
    known = output.holder.spec
    lacks = _lacking(known, spec)
    _check_same(known, spec, {*lacks, *_lacking(spec, known)})
    if lacks and not continues:
        raise ConfigError(
            f"the job in {spec.output} has it, and a job can only be extended; add it to the job file, as in "
            f"{output.store.uri(layout.SPEC)}, or start with --fresh to remove what is there",
            field=lacks[0],
            code="missing",
        )
    return known


def _check_same(known: JobSpec, spec: JobSpec, added: Collection[str]) -> None:
    """Raises `ConfigError` if the jobs differ in other fields than those that were `added`."""
    fields = _differing(known.model_dump(mode="json"), spec.model_dump(mode="json"))
    if not (differing := [field for field in fields if field not in added]):
        return
    other = "another job" if known.name == spec.name else f"another job ({known.name})"
    while_running = set(differing) <= set(changeable(known))
    elsewhere = "output" if spec.extract is not None else "name and output (--name sets both)"
    raise ConfigError(
        f"{spec.output} holds {other}, which differs in {', '.join(differing)}; choose another {elsewhere}, or start "
        "with --fresh to remove what is there"
        + ("; or start it as it was, and change this with `essp job set` while it runs" if while_running else ""),
        field="output",
        code="taken",
    )


def has_more(one: JobSpec, other: JobSpec) -> bool:
    """Whether a job is another with more epochs, trainers or streams."""
    return one.epochs > other.epochs or bool(_lacking(one, other))


def removal(output: Output, spec: JobSpec, asked: Asked) -> Removal | None:
    """What to remove for a job that starts over; None: the folder has no work of a job. Nothing is removed yet.

    Raises `ConfigError` for a folder that is not an output, and if the job would overwrite what stays; `Forbidden` for
    the output of another team; and what `asked.confirm` raises.
    """
    try:
        found = removal_of(output.store)
        if output.holder is not None:
            _check_team(spec, output.holder, asked)
        if found is not None:
            check_kept(found, spec)
    except ConfigError as error:
        raise ConfigError.at("output", error) from error
    if found is not None and found.job not in (spec.name, asked.replaces):
        asked.confirm(
            OfAnotherJob(
                f"output: {found.uri} is the output of another job, {found.job}, and would be removed ({found.words}); "
                f"choose another output, or say that it may go: replaces={found.job}",
                found.job,
            )
        )
    return found


def _check_team(spec: JobSpec, held: Holder, asked: Asked) -> None:
    if not asked.sees(held.team):
        whose = f"of team {held.team}" if held.team else "of no team"
        raise Forbidden(
            f"output: {spec.output} holds a job {whose}, and this token is of "
            f"{f'team {asked.team}' if asked.team else 'no team'}; choose another output, or ask a user with an "
            "admin token"
        )


def _lacking(known: JobSpec, spec: JobSpec) -> list[str]:
    """The trainers and streams of one job that another one lacks."""
    groups = ("trainers", "streams")
    return [f"{group}.{name}" for group in groups for name in getattr(known, group) if name not in getattr(spec, group)]


def _differing(known: Any, wanted: Any, where: tuple[str, ...] = ()) -> list[str]:
    """The fields in which two specifications differ, except those that do not change what is computed."""
    if where and (where[0] == "limits" or where[-1] in _NO_EFFECT):
        return []
    if isinstance(known, dict) and isinstance(wanted, dict):
        names = sorted(known.keys() | wanted.keys())
        return [field for n in names for field in _differing(known.get(n), wanted.get(n), (*where, n))]
    return [] if known == wanted else [joined(where)]
