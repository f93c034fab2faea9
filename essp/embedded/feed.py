"""Batches of one stream from a job of this process, for a loop that is not a trainer.

    Embedded (master, decoders, extractors) ──▶ intake ──▶ prefetch ──▶ device feed ──next──▶ the caller's loop

It is the path of a trainer, of the same parts. In place of checkpoints the caller keeps positions: a feed starts at any
position of its job, and gives from there on what an uninterrupted one gives. Clips are given back as soon as a batch on
the device holds them, so the account of the job ends with the feed, and its output is a temporary folder.

A feed that nobody closes ends with its process; child processes end with their parent, however that dies.
"""

from __future__ import annotations

import atexit
import logging
import os
import shutil
import threading
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from tempfile import mkdtemp

import torch

from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common.artifacts.loop_position import write_position
from essp_common.errors import EsspError
from essp_common.job.status import JobState
from essp_common.messages.ordered import IntakeOptions, OrderedIntake, PhaseEnd
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.planning.position import Position
from essp_common.runtime import ids
from essp_common.runtime.config import Settings
from essp_common.runtime.process import worker_name
from essp_common.runtime.service import Service
from essp_common.wiring import Stores
from essp_master.job.preflight import Preflight
from essp_trainer.config import TrainerSettings
from essp_trainer.data.device_feed import DeviceFeed
from essp_trainer.data.prefetch import Batch, Prefetch, PrefetchOptions, View

log = logging.getLogger(__name__)

_NEXT_S = 0.2
_START_S = 60.0
_OUTPUT = "job"

_open: set[Feed] = set()


@dataclass(frozen=True, slots=True)
class FeedOptions:
    """What a feed does with the clips, and where."""

    consumer: str
    """One of the job's `consumers`."""
    view: View
    """What the caller sees of a clip; runs in a thread."""
    device: torch.device
    convert: bool = True
    """Clips in YUV 4:2:0 become pictures before `view` sees them; False: on the device, after it."""
    decoders: int = 0
    """Child processes that decode; 0: as the settings say."""


class Feed:
    """A running job, and the batches of one of its consumers. Used from one thread, but for `close`."""

    def __init__(self, found: Preflight, start: Position, settings: Settings, options: FeedOptions) -> None:
        """Start the job of `found` at `start`; its output is replaced by a temporary folder.

        Raises `EsspError` if it does not start.
        """
        self.position = start
        """Where the batch that `next` gives begins."""
        self.pid = os.getpid()
        self._closing = threading.Lock()
        self._told = 0
        """Failures that are in the log."""
        with ExitStack() as stack:
            folder = mkdtemp(prefix="essp-loader-")  # a `TemporaryDirectory` is removed by any fork that ends
            stack.callback(shutil.rmtree, folder, ignore_errors=True)
            root = f"file://{os.path.realpath(folder)}"
            spec = found.spec.model_copy(update={"output": f"{root}/{_OUTPUT}"})
            settings = settings.model_copy(
                update={"bus": "memory://", "cache": "memory://", "stores": (*settings.stores, root)}
            )
            write_position(Stores(settings.stores).under(spec.output), options.consumer, start)
            self._embedded = Embedded(
                spec,
                settings,
                EmbeddedOptions(checked=replace(found, spec=spec), decoders=options.decoders, consumers=_nobody),
            )
            stack.enter_context(self._embedded)
            prefetch = self._prefetch(found, start, settings, options)
            feed = DeviceFeed(prefetch, options.device, options.consumer, finish_sent=True)
            self._device_feed = stack.enter_context(closing(feed))
            self._resources = stack.pop_all()
        _open.add(self)

    def next(self) -> Batch | PhaseEnd:
        """The next batch, or the end of an epoch after its last batch; waits for it.

        Raises what stopped the job, the error of `view`, or `EsspError` with the reason for which the job failed.
        """
        while (item := self._device_feed.next(_NEXT_S)) is None:
            if self._embedded.ended(0.0):
                status = self._embedded.status()
                if status.state is not JobState.COMPLETED:
                    raise EsspError(status.reason or f"the job is {status.state}")
        if isinstance(item, PhaseEnd):
            self.position = Position(item.phase_index + 1, 0)
            self._tell_of_failures()
        else:
            self.position = item.position
        return item

    def close(self) -> None:
        """End the job; then no thread, process or file of it is left. Idempotent, from any thread."""
        if self.pid != os.getpid():  # a fork has neither threads nor children of it
            return
        with self._closing:
            self._resources.close()
            _open.discard(self)

    def _prefetch(self, found: Preflight, start: Position, settings: Settings, options: FeedOptions) -> Prefetch:
        spec = found.spec
        command = self._embedded.control.wait(spec.name, _START_S)
        if command is None:
            raise EsspError(f"the job of this loop did not start within {_START_S:.0f} s; see the log")
        if command.command == Control.FAIL:
            raise EsspError(command.reason)
        consumer = spec.consumers[options.consumer]
        stream = spec.streams[consumer.stream]
        intake = OrderedIntake(
            self._embedded.adapters.bus,
            self._embedded.adapters.cache,
            IntakeOptions(
                job=spec.name,
                consumer=ids.loop_consumer(options.consumer),
                stream=consumer.stream,
                feature=stream.feature,
                worker=worker_name(settings),
                fence=command.fence,
            ),
            found.phases.plans,
            start,
        )
        trainer_settings = TrainerSettings()
        return Prefetch(
            intake,
            found.phases.plans,
            start,
            options.view,
            PrefetchOptions(
                batch_size=consumer.batch_size,
                ahead=trainer_settings.prefetch_batches * consumer.batch_size,
                loaders=trainer_settings.loaders,
                wanted_frames=stream.params.get("frames", 1) if stream.feature == "rgb" else None,
                name=options.consumer,
                convert=options.convert,
            ),
        )

    def _tell_of_failures(self) -> None:
        """In the log, after an epoch with new ones: clips are missing or stand in for others, and the loop cannot see
        that."""
        status = self._embedded.status()
        counts = status.counts
        if counts.failed == self._told:
            return
        self._told = counts.failed
        for failure in status.failures:
            named = ", ".join(example.video for example in failure.examples)
            log.warning("%d clips could not be made (%s, %s): of %s", failure.count, failure.stage, failure.kind, named)
        if counts.skipped:
            log.warning("%d clips were left out, since no other video could stand in", counts.skipped)


def _nobody(*_: object) -> Sequence[Service]:
    """The consumer is the caller's loop."""
    return ()


@atexit.register
def _close_all() -> None:
    """The threads of a job are daemons, which do not keep a process from ending; its folder is still to be removed."""
    for feed in list(_open):
        feed.close()
