"""Parses bus records into messages, and handles invalid records.

Anyone with write access to the bus can put anything on any topic. A record that is empty, contains random bytes, or
numbers that no ESSP process sends, must not cost more than a log line. Pools send such records to the dead letters
(`worker/loop.py`); all others drop them. In both cases they are counted: `essp_refused_records_total{topic}`.
"""

from __future__ import annotations

import logging
import math
from collections.abc import MutableMapping
from typing import TypeVar

from google.protobuf.message import DecodeError, Message

from essp_common.bus.port import Record
from essp_common.errors import PermanentError
from essp_common.failures import LONGEST_REASON, shortened
from essp_common.pb.v1.messages_pb2 import ClipReady, Control, DecodeSeed, FeatureReady, Machine, Progress
from essp_common.runtime.metrics import REFUSED

log = logging.getLogger(__name__)

M = TypeVar("M", bound=Message)

MOST_FENCE = 10**10
"""Fences are numbers of a log whose keys have ten digits. A higher one is never valid, and would make all processes
treat the real master's commands as obsolete."""

_LONGEST_NAME = 200
_MOST_GPUS = 64
_OF_NO_JOB = ("heartbeat", "logs")
_FENCED = (Progress, DecodeSeed, ClipReady, FeatureReady, Control)


class BadMessage(PermanentError):
    """A record that does not contain a valid message."""


def parsed(kind: type[M], record: Record) -> M:
    """The message of a record. Raises `BadMessage`."""
    if not record.value:
        raise BadMessage(f"{_where(record)} is empty")
    try:
        message = kind.FromString(record.value)
    except DecodeError as error:
        raise BadMessage(f"{_where(record)} is not a {kind.__name__} message") from error
    if isinstance(message, _FENCED) and message.fence >= MOST_FENCE:
        fence = f"fence {message.fence}, which no process can have taken"
        raise BadMessage(f"{_where(record)}: a {kind.__name__} message with {fence}")
    if lacking := _lacking(message):
        raise BadMessage(f"{_where(record)}: a {kind.__name__} message without {lacking}")
    return message


def sound(progress: Progress) -> Progress:
    """The message with impossible values removed: invalid numbers, overlong reasons."""
    match progress.WhichOneof("event"):
        case "made":
            if not 0 <= progress.made.seconds < math.inf:
                progress.made.seconds = 0.0
        case "heartbeat":
            _finite(progress.heartbeat.gauges)
            _plausible(progress.heartbeat.machine)
        case "step":
            step = progress.step
            for field in ("loss", "top1", "data_wait_ratio", "clips_per_s"):
                setattr(step, field, _or_zero(getattr(step, field)))
            _drop_implausible(step, "lr")
        case "phase_report":
            _finite(progress.phase_report.metrics)
        case "finished":
            _finite(progress.finished.metrics)
        case "failed" if len(progress.failed.reason) > LONGEST_REASON:
            progress.failed.reason = shortened(progress.failed.reason)
        case "trouble" if len(progress.trouble.reason) > LONGEST_REASON:
            progress.trouble.reason = shortened(progress.trouble.reason)
    return progress


def refuse(who: str, record: Record, error: Exception) -> None:
    """Drop a record: count it, and log the reason."""
    REFUSED.labels(record.topic).inc()
    log.warning("%s: a record is dropped: %s", who, shortened(str(error)))


def _where(record: Record) -> str:
    return f"record {record.offset} of {record.topic}[{record.partition}]"


def _lacking(message: Message) -> str:
    """The required part that this message lacks; empty if it is complete."""
    match message:
        case Progress():  # first, because most are, and each case takes time
            return "job" if not message.job and message.WhichOneof("event") not in _OF_NO_JOB else ""
        case DecodeSeed():
            return "job" if not message.job else "" if message.seeds or _is_probe(message) else "seeds"
        case ClipReady() | FeatureReady():
            return "job" if not message.clip.job else "key" if not (message.key or message.skipped) else ""
        case Control() if message.HasField("pools"):
            return ""
        case Control():
            return "job" if not message.job else "command" if not message.command else ""
    return ""


def _is_probe(message: DecodeSeed) -> bool:
    """Whether it asks for the facts of files, and says where the answer goes."""
    probe = message.probe
    return bool(probe.uris and probe.key and probe.consumer and probe.timeout_s > 0)


def _finite(numbers: MutableMapping[str, float]) -> None:
    for name in [name for name, value in numbers.items() if not math.isfinite(value)]:
        del numbers[name]


def _plausible(machine: Machine) -> None:
    """Remove impossible figures and overlong names; keep a number of GPUs that one process can have."""
    _drop_implausible(machine, "cpu")
    machine.cores = _or_zero(machine.cores)
    machine.host = machine.host[:_LONGEST_NAME]
    del machine.gpus[_MOST_GPUS:]
    for gpu in machine.gpus:
        gpu.id, gpu.name = gpu.id[:_LONGEST_NAME], gpu.name[:_LONGEST_NAME]
        for field in ("busy", "watts", "joules"):
            _drop_implausible(gpu, field)


def _drop_implausible(message: Message, field: str) -> None:
    if message.HasField(field) and not 0 <= getattr(message, field) < math.inf:
        message.ClearField(field)


def _or_zero(value: float) -> float:
    return value if math.isfinite(value) and value >= 0 else 0.0
