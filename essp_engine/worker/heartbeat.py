"""Workers report every few seconds that they are alive and how busy they are (`Heartbeat` on `essp.progress`).

The master sizes pools by these reports: which workers are alive, how busy they are, whether one hangs. The reports also
say what keeps workers from working (`essp_common/runtime/conditions.py`), and what their processes use
(`essp_common/runtime/machine.py`). A heartbeat that cannot be sent is dropped; the next one has the same information.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.errors import TransientError
from essp_common.failures import shortened
from essp_common.pb.v1.messages_pb2 import Heartbeat, Progress
from essp_common.runtime.machine import machine
from essp_common.runtime.threads import lasting
from essp_common.runtime.troubles import Troubles

log = logging.getLogger(__name__)

INTERVAL_S = 5.0


class LaneLoad:
    """The load of one worker's lanes since the last `take`. Thread-safe."""

    def __init__(self, lanes: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._lanes = lanes
        self._clock = clock
        self._lock = threading.Lock()
        self._began: dict[int, float] = {}
        self._busy_s = 0.0
        self._done = 0
        self._asked_s = clock()

    def begin(self) -> None:
        """The calling thread starts a record."""
        with self._lock:
            self._began[threading.get_ident()] = self._clock()

    def end(self) -> None:
        """The calling thread has finished its record."""
        with self._lock:
            self._busy_s += self._clock() - max(self._began.pop(threading.get_ident()), self._asked_s)
            self._done += 1

    def take(self) -> dict[str, float]:
        """Since the last call: `busy` (fraction of the lanes' time), `done` (records). Now: `lanes`, `in_hand`, and the
        age in seconds of the `oldest` record in progress."""
        with self._lock:
            now_s = self._clock()
            passed_s = max(now_s - self._asked_s, 1e-9)
            busy_s = self._busy_s + sum(now_s - max(began, self._asked_s) for began in self._began.values())
            gauges = {
                "lanes": float(self._lanes),
                "busy": min(1.0, busy_s / (passed_s * self._lanes)),
                "done": float(self._done),
                "in_hand": float(len(self._began)),
                "oldest": max((now_s - began for began in self._began.values()), default=0.0),
            }
            self._busy_s, self._done, self._asked_s = 0.0, 0, now_s
            return gauges


class Heart:
    """Sends heartbeats from its own thread during a `with` block."""

    def __init__(
        self,
        bus: Bus,
        worker: str,
        pool: str,
        gauges: Callable[[], Mapping[str, float]],
        interval_s: float = INTERVAL_S,
        troubles: Callable[[], Troubles] = dict,
    ) -> None:
        """`troubles`: returns the problems of the worker's servers."""
        self._bus = bus
        self._worker = worker
        self._pool = pool
        self._gauges = gauges
        self._troubles = troubles
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = lasting("essp-heart", self._beat, self._stopped)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._thread.join()

    def _beat(self) -> None:
        while True:
            try:
                self._send()
            except TransientError as error:
                log.debug("%s: a heartbeat was dropped: %s", self._pool, error)
            except Exception:  # without heartbeats the worker would count as dead although it works
                log.exception("%s: a heartbeat was dropped", self._pool)
            if self._stopped.wait(self._interval_s):
                return

    def _send(self) -> None:
        troubles = {str(kind): shortened(words) for kind, words in self._troubles().items()}
        heartbeat = Heartbeat(pool=self._pool, gauges=self._gauges(), troubles=troubles, machine=machine())
        progress = Progress(worker=self._worker, heartbeat=heartbeat)
        self._bus.publish(topics.PROGRESS, b"", progress.SerializeToString())
