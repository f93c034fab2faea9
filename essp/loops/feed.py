"""Batches of one stream from a running job, on the device of a loop that is not a trainer.

clips (`clips.py`, or from another process: `clips_process.py`) ──▶ device feed ──next──▶ the caller's loop

A feed that was not closed leaves its job when the process ends, before the job's connections are closed.
"""

from __future__ import annotations

import os
import threading
from contextlib import ExitStack

import torch

from essp.loops.clips import Clips
from essp_common.errors import EsspError
from essp_common.job.position import Position
from essp_common.runtime.at_exit import at_exit
from essp_engine.intake.ordered import PhaseEnd
from essp_engine.loading.batch import Batch
from essp_engine.loading.device_feed import DeviceFeed

_NEXT_S = 0.2


class Feed:
    """The batches of a consumer of a job. One thread uses it; any thread may call `close`."""

    def __init__(self, clips: Clips, device: torch.device, name: str, ragged: bool = False) -> None:
        """Takes ownership of `clips`, and closes them. `ragged`: they may differ in size."""
        self.pid = os.getpid()
        self._clips = clips
        self._closing = threading.Lock()
        self._closed = False
        self.position = clips.start
        """The position at which the next batch begins."""
        with ExitStack() as stack:
            stack.callback(clips.close)
            self._device_feed = DeviceFeed(clips, device, name, finish_sent=True, ragged=ragged)
            stack.pop_all()
        # Callbacks run in reverse order: this one runs before kafka-python closes its producers.
        self._stay = at_exit(self.close)

    def next(self) -> Batch | PhaseEnd | None:
        """Wait for the next batch, or for the end of an epoch after its last batch. None: the job is over.

        Raises the error that stopped the job, an error of the view, or `EsspError`: if the job failed, with the reason,
        or if another thread has closed the feed.
        """
        if self.position.phase_index >= len(self._clips.phases):
            return None
        while (item := self._device_feed.next(_NEXT_S)) is None:
            if self._closed:
                raise EsspError("this loop was closed while it waited for a batch")
            self._clips.check()
        if isinstance(item, PhaseEnd):
            self.position = Position(item.phase_index + 1, 0)
            self._clips.reached(self.position)
            self._clips.log_failures()
        else:
            self.position = item.position
            self._clips.reached(self.position)
        return item

    def close(self) -> None:
        """Leave the job. Idempotent, from any thread."""
        if self.pid != os.getpid():  # a fork does not have its threads
            return
        self._closed = True
        with self._closing:
            self._device_feed.close()
        self._stay()
