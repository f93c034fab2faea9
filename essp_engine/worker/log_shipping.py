"""Workers send their log lines to the master, which shows them: `LogLines` on `essp.progress`.

This shows what happens now; it is not an archive. While the broker is unreachable, a worker keeps a thousand lines, and
reports how many it dropped. To keep all lines, collect the processes' own output.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import ExitStack
from types import TracebackType

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.errors import EsspError
from essp_common.failures import shortened
from essp_common.pb.v1.messages_pb2 import LogLine, LogLines, Progress
from essp_common.runtime import logs
from essp_common.runtime.threads import lasting

log = logging.getLogger(__name__)

INTERVAL_S = 1.0
MOST_LINES = 200
"""Maximum lines of one message, and so per second."""
LONGEST_EVENT = 1_000
LONGEST_ERROR = 4_000
"""Maximum characters; a longer traceback keeps its end, which says what went wrong."""
_MOST_BYTES = 200_000
"""Maximum bytes of one message: brokers accept a megabyte."""
_HELD = 1_000


class LogShipper:
    """Sends lines from its own thread during a `with` block. Everything logged by then is sent before it ends."""

    def __init__(self, bus: Bus, worker: str, pool: str, interval_s: float = INTERVAL_S) -> None:
        """`pool`: named as in `essp_common.runtime.ids`."""
        self._bus = bus
        self._worker = worker
        self._pool = pool
        self._interval_s = interval_s
        self._held: deque[logs.Line] = deque()
        self._left_out = 0
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._following = ExitStack()
        self._thread = lasting("essp-log-shipping", self._ship, self._stopped)

    def __enter__(self) -> None:
        self._following.enter_context(logs.followed(self._hold))
        self._thread.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # First stop collecting, so that the thread's last pass sends everything that was logged.
        self._following.close()
        self._stopped.set()
        self._thread.join()

    def _hold(self, line: logs.Line) -> None:
        with self._lock:
            self._held.append(line)
            self._make_room()

    def _make_room(self) -> None:
        while len(self._held) > _HELD:
            self._held.popleft()
            self._left_out += 1

    def _ship(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._send()
        while self._send():
            pass

    def _send(self) -> bool:
        """Send one message. Returns False if there is nothing to send, or it cannot be sent now."""
        with self._lock:
            lines = [self._held.popleft() for _ in range(min(MOST_LINES, len(self._held)))]
            message = LogLines(pool=self._pool, left_out=self._left_out)
            self._left_out = 0
        if not lines:
            return False
        sent = 0
        # Pack and publish without the lock, so that threads that log never wait for the bus.
        while sent < len(lines) and message.ByteSize() < _MOST_BYTES:
            message.lines.append(_packed(lines[sent]))
            sent += 1
        try:
            self._bus.publish(topics.PROGRESS, b"", Progress(worker=self._worker, logs=message).SerializeToString())
        except EsspError as error:
            log.debug("%s: lines of the log cannot be sent: %s", self._pool, error)
            sent = 0
        with self._lock:
            # Unsent lines go back to the front, before the lines that were logged in the meantime.
            self._held.extendleft(reversed(lines[sent:]))
            self._left_out += 0 if sent else message.left_out
            self._make_room()
        return sent > 0


def _packed(line: logs.Line) -> LogLine:
    return LogLine(
        time=line.time_s,
        level=shortened(line.level),
        event=shortened(line.event, LONGEST_EVENT),
        thread=shortened(line.thread),
        job=shortened(line.job),
        error=shortened(line.error[-LONGEST_ERROR:], LONGEST_ERROR),
    )
