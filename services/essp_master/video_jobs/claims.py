"""What VideoJobs say, for others: for the REST API, which refuses what contradicts them, and for the pools, whose
trainers belong to them.

A VideoJob says no more than the fields that it gives. Whatever else a job has may be changed by requests, as with any
job. A VideoJob that the master made for a job (`mirrored`) follows the job, and refuses nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping

from essp_common.errors import ConfigError, Conflict
from essp_common.field_paths import joined
from essp_common.job.changes import leaves_of
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_master.pools.manifests import Owner
from essp_master.video_jobs.decision import stated
from essp_master.video_jobs.resource import API_VERSION, KIND, VideoJob

_PASSED_ON = ("kueue.x-k8s.io/", "jobset.sigs.k8s.io/", "alpha.jobset.sigs.k8s.io/")
"""Prefixes of labels and annotations that a VideoJob passes on to its trainers' Jobs."""


class Claims:
    """The VideoJobs, as last seen, by their jobs. Thread-safe; nothing here waits. Empty: there are none."""

    def __init__(self) -> None:
        self._by_job: dict[str, list[VideoJob]] = {}
        self._lock = threading.Lock()
        self.seen = threading.Event()
        """Set once all of them are known."""

    def follow(self, present: Iterable[VideoJob]) -> None:
        """These are all of them. One that was noted in a later version stays in that."""
        with self._lock:
            noted = {found.metadata.uid: found for group in self._by_job.values() for found in group}
            self._by_job = {}
            for found in present:
                newest = max((found, noted.get(found.metadata.uid, found)), key=_version)
                self._by_job.setdefault(newest.job, []).append(newest)
        self.seen.set()

    def note(self, found: VideoJob) -> None:
        """This one has just been written."""
        with self._lock:
            group = [other for other in self._by_job.get(found.job, ()) if other.metadata.uid != found.metadata.uid]
            self._by_job[found.job] = [*group, found]

    def newest(self, found: VideoJob) -> VideoJob:
        """The newest known version of a VideoJob."""
        with self._lock:
            group = self._by_job.get(found.job, ())
            return next((other for other in group if other.metadata.uid == found.metadata.uid), found)

    def holder(self, job: str) -> VideoJob | None:
        """The VideoJob that a job belongs to: the one that holds it, else the oldest that has begun."""
        with self._lock:
            found = [one for one in self._by_job.get(job, ()) if one.held or one.began]
        return min(found, key=lambda one: (not one.held, one.metadata.created, one.metadata.name), default=None)

    def names(self, job: str) -> list[str]:
        """The VideoJobs that name this job."""
        with self._lock:
            return [one.metadata.name for one in self._by_job.get(job, ())]

    def owner_of(self, job: str) -> Owner | None:
        """What a job's trainers belong to; None: the job has no VideoJob."""
        found = self.holder(job)
        if found is None:
            return None
        metadata = found.metadata
        reference = {"apiVersion": API_VERSION, "kind": KIND, "name": metadata.name, "uid": metadata.uid}
        return Owner(reference, _passed_on(metadata.labels), _passed_on(metadata.annotations))

    # --- what requests may not do; all raise `Conflict` ---

    def check_start(self, spec: JobSpec) -> None:
        """A job of that name may only be started as its VideoJob says."""
        found = self._claiming(spec.name)
        if found is None:
            return
        try:
            same = found.wanted == spec
        except ConfigError:
            same = False
        if not same:
            raise Conflict(f"{_whose(found)}, and this job differs from it; {_edit(found)}, or choose another name")

    def check_state(self, job: str, wanted: JobState) -> None:
        """A job may only be paused and resumed if its VideoJob does not say which."""
        found = self._claiming(job)
        paused = {JobState.PAUSED: True, JobState.RUNNING: False}.get(wanted)
        if found is None or paused is None or found.paused in (None, paused):
            return
        patch = f'{{"spec":{{"paused":{str(paused).lower()}}}}}'
        raise Conflict(
            f"{_whose(found)}, which says paused: {str(found.paused).lower()}; "
            f"kubectl patch {_full(found)} --type merge --patch '{patch}'"
        )

    def check_change(self, job: str, fields: Iterable[str]) -> None:
        """A field that the VideoJob gives is changed there."""
        found = self._claiming(job)
        if found is None:
            return
        try:
            given = stated(found.wanted)
        except ConfigError:  # it was changed to what is not a job, and will change again
            given = {joined(names) for names, _ in leaves_of(found.document)}
        if claimed := sorted(given & set(fields)):
            raise Conflict(f"{_whose(found)}, which gives {', '.join(claimed)}; {_edit(found)}")

    def check_remove(self, job: str) -> None:
        """What a job has left is not removed while it has a VideoJob, which would start it again."""
        found = self._claiming(job)
        if found is not None:
            raise Conflict(f"{_whose(found)}; first: kubectl delete {_full(found)}")

    def _claiming(self, job: str) -> VideoJob | None:
        found = self.holder(job)
        return found if found is not None and found.claims else None


def _version(found: VideoJob) -> int:
    return int(found.metadata.resource_version)


def _passed_on(marks: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in marks.items() if name.startswith(_PASSED_ON)}


def _whose(found: VideoJob) -> str:
    return f"job {found.job} is the VideoJob {found.metadata.name}"


def _full(found: VideoJob) -> str:
    return f"{KIND.lower()} {found.metadata.name}"


def _edit(found: VideoJob) -> str:
    return f"change it there: kubectl edit {_full(found)}"
