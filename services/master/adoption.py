"""What was under way when the master before this one went: the last command of every job in `essp.control`."""

from __future__ import annotations

import logging
import threading
import time

from google.protobuf.message import DecodeError

from essp_common import topics
from essp_common.bus.port import Bus
from essp_common.errors import TransientError
from essp_common.pb.v1.messages_pb2 import Control

log = logging.getLogger(__name__)

_UNDER_WAY = (Control.START, Control.RESUME, Control.PAUSE)
_POLL_S = 0.5


def jobs_under_way(bus: Bus, listen_s: float, draining: threading.Event) -> list[Control]:
    """The last command of each job that had not ended, as far as the bus tells within `listen_s`."""
    found: dict[str, Control] = {}
    deadline = time.monotonic() + listen_s
    try:
        subscription = bus.subscribe([topics.CONTROL], group=None)
        try:
            while time.monotonic() < deadline and not draining.is_set():
                records = subscription.poll(1000, _POLL_S)
                if not records and found:
                    break
                for record in records:
                    command = Control.FromString(record.value)
                    if command.fence >= found.get(command.job, command).fence:
                        found[command.job] = command
        finally:
            subscription.close()
    except (TransientError, DecodeError) as error:
        log.error("master: what was under way cannot be read in full: %s", error)
    return [command for command in found.values() if command.command in _UNDER_WAY]
