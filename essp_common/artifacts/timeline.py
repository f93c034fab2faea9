"""The course of a job in its output: `timeline.json`, overwritten as the job progresses.

It is for display: no decision depends on it, and a job without it, or with one that cannot be read, lacks nothing else.
"""

from __future__ import annotations

import logging

from pydantic import ValidationError

from essp_common.artifacts import layout
from essp_common.errors import NotFound
from essp_common.job.timeline import StoredTimeline
from essp_common.objects.port import ObjectStore

log = logging.getLogger(__name__)


class TimelineFile:
    """The file below one output. As thread-safe as its store."""

    def __init__(self, output: ObjectStore) -> None:
        self._output = output

    def read(self) -> StoredTimeline | None:
        """Return what is stored; None if there is nothing, or nothing that this version can read."""
        try:
            text = self._output.get(layout.TIMELINE)
        except NotFound:
            return None
        try:
            return StoredTimeline.model_validate_json(text)
        except ValidationError:
            log.warning("%s cannot be read; the course of the job so far is not shown", self.uri)
            return None

    def write(self, stored: StoredTimeline) -> None:
        """Replace what is stored."""
        self._output.put(layout.TIMELINE, (stored.model_dump_json() + "\n").encode())

    @property
    def uri(self) -> str:
        """Where it is."""
        return self._output.uri(layout.TIMELINE)
