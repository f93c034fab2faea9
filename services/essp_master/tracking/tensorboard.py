"""`ESSP_TENSORBOARD=/logs`: an event file for each training, in `/logs/<job>/<trainer>`, for `tensorboard --logdir`.

Each process of a master writes a file of its own. Where points begin again, at the start of a process or when a
training resumes, a mark tells TensorBoard to drop those from there on that it has read before (`SessionLog.START`).
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

from essp_common.distribution import require
from essp_common.errors import ConfigError
from essp_master.tracking.tracking import Item, Point, RunName, Tracker

_VERSION = "brain.Event:2"
"""Of the format; the first event of each file."""


class TensorBoard(Tracker):
    """Event files below a folder."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        """Raises `ConfigError` for a folder that cannot be written to."""
        require("ESSP_TENSORBOARD", "tensorboard")
        self._folder = folder
        self._files: dict[RunName, _EventFile] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"ESSP_TENSORBOARD={folder}: {error.strerror}; name a folder to write to") from error
        if not os.access(folder, os.W_OK):
            raise ConfigError(f"ESSP_TENSORBOARD={folder}: it may not be written to; name another folder")

    def write(self, items: Sequence[Item]) -> None:
        touched = set()
        for item in items:
            if isinstance(item, Point):
                if item.run not in self._files:
                    self._files[item.run] = _EventFile(self._folder / item.run.job / item.run.trainer)
                self._files[item.run].add(item)
                touched.add(item.run)
            elif item.run in self._files:  # it is over, or begins once more
                self._files.pop(item.run).close()
                touched.discard(item.run)
        for run in touched:
            self._files[run].flush()

    def close(self) -> None:
        for file in self._files.values():
            file.close()
        self._files.clear()


class _EventFile:
    """One file. Points that were written already are left out."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.record_writer import RecordWriter  # loads NumPy and more, for this alone

        folder.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns() // 1000}.{os.uname().nodename}.{os.getpid()}.essp"
        self._file: BinaryIO = open(folder / name, "xb")  # noqa: SIM115  closed by `close`
        self._writer = RecordWriter(self._file)
        self._last: dict[str, int] = {}
        """Tag -> clips of its last point."""
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
