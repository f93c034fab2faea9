"""`ESSP_TENSORBOARD=/logs`: an event file for each training, in `/logs/<job>/<trainer>`, for `tensorboard --logdir`.

Each master process writes its own file. When points start over, because the process has started or a training has
resumed, a session event (`SessionLog.START`) makes TensorBoard drop the earlier points from there. A training whose
folder cannot be written is logged and skipped until it begins again; the others continue.
"""

from __future__ import annotations

import errno
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from essp_common.distribution import require
from essp_common.errors import ConfigError
from essp_master.tracking.tracking import Item, Point, RunName, Tracker

log = logging.getLogger(__name__)

_VERSION = "brain.Event:2"
"""Version of the format; the first event of each file."""
_MAY_END = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE)
"""Errors of the disk or of this process, not of one folder."""


class TensorBoard(Tracker):
    """Event files below a folder."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` for a folder that cannot be written to."""
        require("ESSP_TENSORBOARD", "tensorboard")
        self._folder = folder
        self._files: dict[RunName, _EventFile] = {}
        self._refused: set[RunName] = set()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"{folder}: {error.strerror}; name a folder to write to", field="ESSP_TENSORBOARD", code="refused"
            ) from error
        if not os.access(folder, os.W_OK):
            raise ConfigError(
                f"{folder}: it may not be written to; name another folder", field="ESSP_TENSORBOARD", code="refused"
            )

    def write(self, items: Sequence[Item]) -> None:
        touched = set()
        for item in items:
            if isinstance(item, Point):
                if self._opened(item.run):
                    self._files[item.run].add(item)
                    touched.add(item.run)
                continue
            self._refused.discard(item.run)
            if item.run in self._files:  # the run is over, or begins again
                self._files.pop(item.run).close()
                touched.discard(item.run)
        for run in touched:
            self._files[run].flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()

    def _opened(self, run: RunName) -> bool:
        """Whether a run has a file. Raises `OSError` if no run could have one now."""
        if run not in self._files and run not in self._refused:
            try:
                self._files[run] = _EventFile(self._folder / run.job / run.trainer)
            except OSError as error:
                if error.errno in _MAY_END:
                    raise
                log.warning(
                    "tensorboard: trainer %s of job %s is not tracked any more: %s", run.trainer, run.job, error
                )
                self._refused.add(run)
        return run in self._files


class _EventFile:
    """One event file. Skips points that were already written."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # imported only here: it loads NumPy and more

        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{os.uname().nodename}.{os.getpid()}.essp"
        self._file: BinaryIO = open(folder / name, "xb")  # noqa: SIM115  closed by `close`
        self._writer = RecordWriter(self._file)
        self._last: dict[str, int] = {}
        """Tag -> clips at its last point."""
        self._event(time.time(), file_version=_VERSION)

    def add(self, point: Point) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary

        last = self._last.get(point.tag)
        if last == point.clips:
            return
        if not self._last or (last is not None and point.clips < last):
            self._event(point.time_s, step=point.clips, session_log=SessionLog(status=SessionLog.START))
            self._last = {tag: clips for tag, clips in self._last.items() if clips < point.clips}
        value = Summary.Value(tag=point.tag, simple_value=point.value)
        self._event(point.time_s, step=point.clips, summary=Summary(value=[value]))
        self._last[point.tag] = point.clips

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def _event(self, time_s: float, **fields: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event

        self._writer.write(Event(wall_time=time_s, **fields).SerializeToString())
