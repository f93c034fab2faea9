"""To which job an output belongs, and its removal: only objects that ESSP provably wrote are removed.

An output is often a folder among other things of a user, or contains files that a user has added. So every removal
requires two proofs:

1. The folder is an output: its `spec.json` was written by ESSP. It has all sections of a job, unlike documents of other
   programs and job files written by users.
2. The whole key is one that this job writes (`layout.TABLE`, its kind, its trainers), and no symbolic link on the way
   to it leads out of the output.

These are kept: the specification (the next job overwrites it, so that an interrupted removal can be repeated), the
catalog, the fences, the locks, and everything that is not ESSP's, which is counted. A job that would overwrite
something that is not ESSP's does not start.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass

from essp_common.artifacts import layout
from essp_common.artifacts.job_copy import JOB, is_copy
from essp_common.artifacts.layout import Kind
from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.job.spec import JobSpec, stored_spec
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.quantities import counted, size

_STAYS = (layout.FENCES, layout.LOCKS)
_FILES_STAY = (layout.SPEC, layout.OWNER, layout.CATALOG)
"""ESSP's own files that are kept. A folder with nothing but these contains no work of a job."""
_SECTIONS = frozenset({"name", "output", "data", "clip", "sampling", "streams", "limits"})
"""Sections of a job that every version of ESSP has written."""
_MOST_SPEC_BYTES = 2**24
"""No specification written by ESSP is larger."""
_MOST_NAMED = 3


class NoOutput(ConfigError):
    """A non-empty folder that is not the output of a job."""


class OfAnotherJob(Conflict):
    """The output to be removed belongs to another job, and its removal was not confirmed."""

    def __init__(self, message: str, job: str) -> None:
        super().__init__(message)
        self.job = job
        """The name of the other job."""


@dataclass(frozen=True, slots=True)
class Holder:
    """The job to which an output belongs."""

    spec: JobSpec
    team: str | None
    """The team that owns the job; None if it was not recorded."""


@dataclass(frozen=True, slots=True)
class Removal:
    """What is removed with an output."""

    uri: str
    job: str
    keys: tuple[str, ...]
    """In the order of removal."""
    bytes: int
    kept: tuple[str, ...]
    """Objects among them that are not ESSP's and are kept."""

    @property
    def words(self) -> str:
        """What is removed and what is kept, in words."""
        stays = f"; {counted(len(self.kept), 'file')} of yours between them stay" if self.kept else ""
        if len(self.kept) == 1:
            stays = f"; {self.kept[0]}, which is yours, stays"
        return f"job {self.job} in {self.uri}: {counted(len(self.keys), 'object')}, {size(self.bytes)}{stays}"


def folder_uri(output: ObjectStore) -> str:
    """The URI of an output."""
    return output.uri(layout.SPEC).removesuffix(f"/{layout.SPEC}")


def holder_of(output: ObjectStore) -> Holder | None:
    """The job to which this output belongs; None if it belongs to no job. Raises `ConfigError` for a `spec.json` that
    ESSP did not write, or that this version cannot read."""
    try:
        if output.head(layout.SPEC).size_bytes > _MOST_SPEC_BYTES:
            raise NoOutput(_not_ours(output), code="taken")
        text = output.get(layout.SPEC).decode("utf-8", "replace")
    except NotFound:
        return None
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        document = None  # damaged, which is reported below
    if document is not None and not (isinstance(document, dict) and document.keys() >= _SECTIONS):
        raise NoOutput(_not_ours(output), code="taken")
    return Holder(stored_spec(text, output.uri(layout.SPEC)), _team_of(output))


def job_at(output: ObjectStore) -> JobSpec | None:
    """The job to which this output belongs, as in `holder_of`."""
    holder = holder_of(output)
    return None if holder is None else holder.spec


def write_owner(output: ObjectStore, team: str) -> None:
    """Record the owning team of this output. Empty: no team."""
    if team:
        output.put(layout.OWNER, json.dumps({"team": team}).encode())
    else:
        output.delete(layout.OWNER)


def check_free(output: ObjectStore, spec: JobSpec) -> None:
    """Raises `NoOutput` if this job would overwrite something in a folder that is not an output yet."""
    keys = (info.key for info in _candidates(output))
    if found := [key for key in keys if layout.is_own(key, _kinds_of(spec)) and not _stays(key)]:
        raise NoOutput(
            f"{folder_uri(output)} has no {layout.SPEC}, so it is not the output of a job, and a job would write over "
            f"{_named(found)} in it; choose another output, or move that elsewhere",
            code="exists",
        )


def removal_of(output: ObjectStore) -> Removal | None:
    """What would be removed with this output; None if it contains nothing of a job. Removes nothing.

    Raises `NoOutput` for a non-empty folder that is not the output of a job, and `ConfigError` as `holder_of` does.
    """
    holder = holder_of(output)
    if holder is None:
        found = (info.key for info in output.list() if not _stays(info.key))
        if some := [key for key, _ in zip(found, range(_MOST_NAMED + 1), strict=False)]:
            raise NoOutput(
                f"{folder_uri(output)} is not the output of a job, and holds {_named(some)}; nothing in it is "
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
    # Manifests first: without its manifest nothing looks complete if the removal is interrupted.
    keys = sorted((info.key for info in own), key=lambda key: (not key.endswith("/manifest.json"), key))
    return Removal(folder_uri(output), holder.spec.name, tuple(keys), sum(info.size_bytes for info in own), tuple(kept))


def check_kept(removal: Removal, spec: JobSpec) -> None:
    """Raises `NoOutput` if this job, started after the removal, would overwrite something that was kept."""
    if found := [key for key in removal.kept if _is_of(spec, key) and not _stays(key)]:
        raise NoOutput(
            f"job {spec.name} would write over {_named(found)} in {removal.uri}, which job {removal.job} did not write "
            "there, or which a symbolic link leads to; move that elsewhere, or choose another output",
            code="exists",
        )


def remove(output: ObjectStore, removal: Removal) -> None:
    """Remove what `removal_of` found. The specification stays: the next job overwrites it."""
    for key in removal.keys:
        if lies_within(output, key):  # a folder may have become a link since
            output.delete(key)


def remove_job(output: ObjectStore, removal: Removal) -> None:
    """Remove what `removal_of` found, and all that says that this is the output of a job. An interrupted removal can be
    repeated."""
    remove(output, removal)
    if is_copy(output):
        output.delete(JOB)
    output.delete(layout.OWNER)
    output.delete(layout.SPEC)  # last: until then this is an output


def _is_of(spec: JobSpec, key: str) -> bool:
    """Whether this job writes such a key."""
    if not layout.is_own(key, _kinds_of(spec)):
        return False
    if spec.extract is not None and spec.extract.format != "npy" and key.endswith(".npy"):
        return False
    trainer = layout.trainer_of(key)
    return trainer is None or trainer in spec.trainers


def _kinds_of(spec: JobSpec) -> tuple[Kind, ...]:
    """The kinds of a job, which select the lines of the table that it writes."""
    if spec.trainers:
        return "any", "training"
    if not spec.predicts:
        return ("any",)
    return "any", "scoring", "prediction" if spec.extract is None else "extraction"


def lies_within(store: ObjectStore, key: str) -> bool:
    """Whether an object is inside this store: no symbolic link on the way to it leads out. If the object itself is a
    link, only the link is removed, not its target."""
    path = store.uri(key).removeprefix("file://")
    if path == store.uri(key):
        return True
    root = os.path.realpath(path.removesuffix(key))
    return os.path.commonpath([root, os.path.realpath(os.path.dirname(path))]) == root


def _is_link(store: ObjectStore, key: str) -> bool:
    """Whether a file is a symbolic link, which proves nothing here: ESSP writes no links."""
    path = store.local_path(key)
    return path is not None and os.path.islink(path)


def _candidates(output: ObjectStore) -> Iterator[ObjectInfo]:
    """All objects where ESSP writes. The rest of the folder, which may be large, is not listed."""
    for file in layout.FILES:
        try:
            yield output.head(file)
        except NotFound:
            continue
    for folder in layout.FOLDERS:
        yield from output.list(folder)


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
        f"{output.uri(layout.SPEC)} was not written by ESSP, so {folder_uri(output)} is not the output of a job, and "
        "nothing in it is removed or written over; choose another output"
    )


def _named(keys: list[str]) -> str:
    """Some of these keys, for messages."""
    shown = ", ".join(keys[:_MOST_NAMED])
    return f"{shown} and more" if len(keys) > _MOST_NAMED else shown
