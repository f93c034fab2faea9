"""Whole batches, on the device before the model needs them: while it trains on one, the next is collected and sent.

    prefetch ──clips of a batch──▶ transfer (own thread) ──▶ one batch waiting ──next──▶ the step

In addition to the clips of `Prefetch` there are at most two batches: one that waits, and one in preparation.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Protocol

import torch

from essp_common.runtime.retry import retry_transient
from essp_engine.intake.ordered import Delivery, PhaseEnd
from essp_engine.loading.batch import Batch, Input, Shown
from essp_engine.loading.device import OfPlanes, enough_memory, transfer_to
from essp_engine.loading.device_views import DeviceViews

_NEXT_S = 0.1


class Prepared(Protocol):
    """Batches in host memory, in order, as from `Prefetch`, whose methods are documented there."""

    @property
    def queued(self) -> int: ...

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None: ...

    def finish(self, items: Sequence[Delivery]) -> None: ...

    def close(self) -> None: ...


class DeviceFeed:
    """The batches of a training run, in order. `next` is used from one thread."""

    def __init__(
        self,
        prefetch: Prepared,
        device: torch.device,
        name: str,
        views: DeviceViews | None = None,
        finish_sent: bool = False,
    ) -> None:
        """Takes ownership of `prefetch` and closes it.

        `views`: cuts the views that `prefetch` has left to the device.
        `finish_sent`: finish clips as soon as the device's batch holds them, for a consumer that does not record what
        it learned from them; the caller must then not release them.
        """
        self._finish_sent = finish_sent
        self._prefetch = prefetch
        self._device = device
        self._transfers = [transfer_to(device)]
        """One for each view: batches of it reuse the same memory."""
        self._views = views
        self._waiting: Batch | PhaseEnd | None = None
        self._failure: BaseException | None = None
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name=f"essp-device-feed-{name}", daemon=True)
        self._thread.start()

    @property
    def queued(self) -> int:
        """Clips that are ready or in preparation."""
        waiting = self._waiting
        return self._prefetch.queued + (len(waiting.items) if isinstance(waiting, Batch) else 0)

    def next(self, timeout_s: float) -> Batch | PhaseEnd | None:
        """The next batch, or the end of a phase after its last batch; None if it is not ready within `timeout_s`, or as
        soon as this is closed.

        Raises the error that stopped the preparation.
        """
        deadline = time.monotonic() + timeout_s
        with self._changed:
            self._changed.wait_for(
                lambda: self._waiting or self._failure or self._closing, max(0.0, deadline - time.monotonic())
            )
            item, self._waiting = self._waiting, None
            if item is None and self._failure is not None:
                raise self._failure
            self._changed.notify_all()
        return item

    def close(self) -> None:
        """Stop. Unreleased clips are delivered again."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self._prefetch.close()
        self._waiting = None

    def _run(self) -> None:
        try:
            while not self._closing:
                item = self._prefetch.next(_NEXT_S)
                if item is not None:
                    self._offer(self._sent(item))
        except BaseException as error:  # noqa: BLE001  raised again by `next`
            with self._changed:
                self._failure = error
                self._changed.notify_all()

    def _sent(self, item: Batch | PhaseEnd) -> Batch | PhaseEnd:
        if not isinstance(item, Batch):
            return item
        if item.frames:
            with enough_memory(self._device, len(item.frames)):
                sent, *further = map(self._of_view, count(), (Shown(item.frames, item.colours), *item.further))
                if item.cuts:
                    if self._views is None:
                        raise ValueError("the batch has views to cut, but the feed has no DeviceViews")
                    sent = self._views.of(sent, item.cuts)
                item = replace(item, frames=(), further=(), input=sent, further_inputs=tuple(further))
        if self._finish_sent:
            retry_transient(partial(self._prefetch.finish, item.items), lambda: self._closing)
        return item

    def _of_view(self, number: int, shown: Shown) -> Input:
        """One view of the clips of a batch, on the way to the device."""
        if number == len(self._transfers):
            self._transfers.append(transfer_to(self._device))
        sent = self._transfers[number](shown.frames)
        return OfPlanes(sent, shown.colours, shown.frames[0].ndim) if shown.colours else sent

    def _offer(self, item: Batch | PhaseEnd) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._closing or self._waiting is None)
            self._waiting = item
            self._changed.notify_all()
