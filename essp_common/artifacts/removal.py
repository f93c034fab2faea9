"""Whose an output is, and its removal: nothing goes but what ESSP is proved to have written there.

An output is often a folder among other things of a user, or one that a user has put things into. So two proofs are
asked for, whoever wants to remove one:

1. The folder is an output: its `spec.json` is one that ESSP wrote. It has all sections of a job, as no document of
   somebody else and no job file that a person has written does.
2. The key, whole, is one that this job writes (`layout.TABLE`, its kind, its trainers), and no symbolic link on the
   way to it leads out of the output.

What stays: the specification (the next job is written over it, so that a removal which is cut short can be begun
again), the catalog, the fences, the locks, and all that is not ESSP's, which is counted. No job begins that would write
over what is not ESSP's.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

from essp_common.artifacts import layout
from essp_common.artifacts.layout import Kind
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.quantities import counted, size

_STAYS = (layout.FENCES, layout.LOCKS)
_FILES_STAY = (layout.SPEC, layout.OWNER, layout.CATALOG)
"""Of what ESSP writes. A folder with nothing but these has no work of a job in it."""
_SECTIONS = frozenset({"name", "output", "data", "clip", "sampling", "streams", "limits"})
"""Of a job, as every version of ESSP has written all of them."""
_MOST_SPEC_BYTES = 2**24
"""No specification of ESSP's is as large."""
_MOST_NAMED = 3


class NoOutput(ConfigError):
    """A folder that is not the output of a job, and that something lies in."""


class OfAnotherJob(Conflict):
    """The output that would be removed is that of another job, and nobody has said that it may go."""

    def __init__(self, message: str, job: str) -> None:
        super().__init__(message)
        self.job = job
        """The other job."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The job whose output a folder is."""

    spec: JobSpec
    team: str | None
    """Whose job it is; None: that was not written down."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What goes when an output is removed."""

    uri: str
    job: str
    keys: tuple[str, ...]
    """In the order in which they go."""
    bytes: int
    kept: tuple[str, ...]
    """What lies between them and is not ESSP's: it stays."""

    @property
    def words(self) -> str:
        """What goes and what stays, for people."""
        stays = f"; {counted(len(self.kept), 'file')} of yours between them stay" if self.kept else ""
        if len(self.kept) == 1:
            stays = f"; {self.kept[0]}, which is yours, stays"
        return f"job {self.job} in {self.uri}: {counted(len(self.keys), 'object')}, {size(self.bytes)}{stays}"


def holder_of(output: ObjectStore) -> Holder | None:
    """The job whose output this is; None: it is that of none. Raises `ConfigError` for a `spec.json` that ESSP did not
    write, or that this version cannot read."""
    try:
        if output.head(layout.SPEC).size_bytes > _MOST_SPEC_BYTES:
            raise NoOutput(_not_ours(output), code="taken")
        text = output.get(layout.SPEC).decode("utf-8", "replace")
    except NotFound:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None  # damaged, which is said below
    if document is not None and not (isinstance(document, dict) and document.keys() >= _SECTIONS):
        raise NoOutput(_not_ours(output), code="taken")
    return Holder(stored_spec(text, output.uri(layout.SPEC)), _team_of(output))


def job_at(output: ObjectStore) -> JobSpec | None:
    """The job whose output this is, as `holder_of` says."""
    holder = holder_of(output)
    return None if holder is None else holder.spec


def write_owner(output: ObjectStore, team: str) -> None:
    """Note whose output this is. Empty: of no team."""
    if team:
        output.put(layout.OWNER, json.dumps({"team": team}).encode())
    else:
        output.delete(layout.OWNER)


def check_free(output: ObjectStore, kind: Kind) -> None:
    """Raises `NoOutput` if a job of this kind would write over something, in a folder that is no output yet."""
    keys = (info.key for info in _candidates(output))
    if found := [key for key in keys if layout.is_own(key, ("any", kind)) and not _stays(key)]:
        raise NoOutput(
            f"{_bare(output)} has no {layout.SPEC}, so it is not the output of a job, and a job would write over "
            f"{_named(found)} in it; choose another output, or move that elsewhere",
            code="exists",
        )


def removal_of(output: ObjectStore) -> Removal | None:
    """What would go if this output was removed; None: nothing of a job is there. Nothing is removed yet.

    Raises `NoOutput` for a folder that is not the output of a job, and not empty, and `ConfigError` as `holder_of`.
    """
    holder = holder_of(output)
    if holder is None:
        found = (info.key for info in output.list() if not _stays(info.key))
        if some := [key for key, _ in zip(found, range(_MOST_NAMED + 1), strict=False)]:
            raise NoOutput(
                f"{_bare(output)} is not the output of a job, and holds {_named(some)}; nothing in it is "
                "removed: start without fresh (--fresh), or choose another output",
                code="taken",
            )
        return None
    if _is_link(output, layout.SPEC):
        raise NoOutput(_not_ours(output), code="taken")
    own: list[ObjectInfo] = []
    kept: list[str] = []
    for info in _candidates(output):
        if not _is_of(holder.spec, info.key) or not lies_within(output, info.key):
            kept.append(info.key)
        elif not _stays(info.key):
            own.append(info)
    # Without its manifest nothing looks whole, should the removal be cut short.
    keys = sorted((info.key for info in own), key=lambda key: (not key.endswith("/manifest.json"), key))
    return Removal(_bare(output), holder.spec.name, tuple(keys), sum(info.size_bytes for info in own), tuple(kept))


def check_kept(removal: Removal, spec: JobSpec) -> None:
    """Raises `NoOutput` if this job, begun after the removal, would write over what has stayed."""
    if found := [key for key in removal.kept if _is_of(spec, key) and not _stays(key)]:
        raise NoOutput(
            f"job {spec.name} would write over {_named(found)} in {removal.uri}, which job {removal.job} did not write "
            "there, or which a symbolic link leads to; move that elsewhere, or choose another output",
            code="exists",
        )


def remove(output: ObjectStore, removal: Removal) -> None:
    """Remove what `removal_of` found, but for the specification: the next job is written over it."""
    for key in removal.keys:
        if lies_within(output, key):  # a folder may have become a link since
            output.delete(key)


def kind_of(spec: JobSpec) -> Kind:
    """Which lines of the table a job writes."""
    return "training" if spec.trainers else "any" if spec.predictor is None else "prediction"


def lies_within(store: ObjectStore, key: str) -> bool:
    """Whether an object lies in this store itself: no symbolic link on the way to it leads out. A link that is the
    object goes without what it names."""
    path = store.uri(key).removeprefix("file://")
    if path == store.uri(key):
        return True
    root = os.path.realpath(path.removesuffix(key))
    return os.path.commonpath([root, os.path.realpath(os.path.dirname(path))]) == root


def _is_link(store: ObjectStore, key: str) -> bool:
    """Whether a file stands for another one, which then proves nothing here: ESSP writes no links."""
    path = store.local_path(key)
    return path is not None and os.path.islink(path)


def _candidates(output: ObjectStore) -> Iterator[ObjectInfo]:
    """All that lies where ESSP writes: the rest of the folder, which may be large, is not looked at."""
    for file in layout.FILES:
        try:
            yield output.head(file)
        except NotFound:
            continue
    for folder in layout.FOLDERS:
        yield from output.list(folder)


def _is_of(spec: JobSpec, key: str) -> bool:
    """Whether this job writes such a key."""
    if not layout.is_own(key, ("any", kind_of(spec))):
        return False
    trainer = layout.trainer_of(key)
    return trainer is None or trainer in spec.trainers


def _stays(key: str) -> bool:
    return key in _FILES_STAY or (key.startswith(_STAYS) and layout.is_own(key))


def _team_of(output: ObjectStore) -> str | None:
    try:
        document = json.loads(output.get(layout.OWNER))
        return str(document["team"])
    except NotFound:
        return None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{output.uri(layout.OWNER)} does not say whose output this is ({error}); restore it from a backup, or "
            "remove it, which leaves the output without a team",
            code="unreadable",
        ) from error


def _not_ours(output: ObjectStore) -> str:
    return (
        f"{output.uri(layout.SPEC)} was not written by ESSP, so {_bare(output)} is not the output of a job, and "
        "nothing in it is removed or written over; choose another output"
    )


def _bare(output: ObjectStore) -> str:
    """The URI of the folder."""
    return output.uri(layout.SPEC).removesuffix(f"/{layout.SPEC}")


def _named(keys: list[str]) -> str:
    """Some of these, for people."""
    shown = ", ".join(keys[:_MOST_NAMED])
    return f"{shown} and more" if len(keys) > _MOST_NAMED else shown
