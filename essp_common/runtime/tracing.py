"""Traces: the path of a clip from its seed to the step that trains on it, as OpenTelemetry spans, for a sample of
clips.

    clip                 a seed for it is issued (master); the others are its children
    decode               its share of the decoding time of its work unit; ends when it is stored (decoder)
    extract <stream>     from its frames to a stream made from them and stored (extractor)
    train, evaluate      the step of its batch (trainer)

 ESSP_TRACES names the collector, which speaks OTLP over HTTP; ESSP_TRACE_SHARE is the share of the clips that are
traced. Ids are computed from a clip's identity (job, purpose, epoch, index). So every process knows which clips are
traced under which ids, and messages carry no ids. Without ESSP_TRACES nothing is loaded, and a call costs nothing.

If a collector does not answer, only spans are lost; the library logs that.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from essp_common import distribution
from essp_common.distribution import needs_extra

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

_HELD = 10_000
"""Spans waiting to be sent; further ones are dropped."""
_SEND_MS = 2_000
_ROOT = "clip"
_LOW = 2**56 - 1
"""The part of an id that is random in W3C's Trace Context Level 2."""


class Clip(Protocol):
    """The identity of a clip: a `ClipRef`."""

    job: str
    purpose: Any
    epoch: int
    index: int


Exporter = Callable[[str, tuple[str, int, int, int], float, dict[str, str | int]], None]
_exporter: Exporter | None = None


def traces() -> bool:
    """Whether this process sends spans."""
    return _exporter is not None


def span(name: str, clip: Clip, seconds: float = 0.0, **attributes: str | int) -> None:
    """Record an operation on a clip that has just ended after this many seconds."""
    if _exporter is not None:
        _exporter(name, (clip.job, int(clip.purpose), clip.epoch, clip.index), seconds, attributes)


def issued(job: str, purpose: int, epoch: int, index: int) -> None:
    """Record that a seed for this clip is issued: its trace begins."""
    if _exporter is not None:
        _exporter(_ROOT, (job, purpose, epoch, index), 0.0, {})


def ids_of(job: str, purpose: int, epoch: int, index: int) -> tuple[int, int]:
    """Return the ids of a clip's trace (128 bits) and of its first span (64 bits); neither is ever 0."""
    digest = hashlib.blake2b(f"{job}/{purpose}/{epoch}/{index}".encode(), digest_size=24).digest()
    return int.from_bytes(digest[:16], "big") or 1, int.from_bytes(digest[16:], "big") or 1


def is_sampled(trace_id: int, share: float) -> bool:
    """Whether a clip belongs to this share, by its trace id: the same in every process, and also true for every larger
    share."""
    return trace_id & _LOW < share * (_LOW + 1)


def exported(collector: str, share: float, service: str, worker: str) -> AbstractContextManager[None]:
    """Send spans to a collector within this block (`http://host:4318`; empty: to none). Remaining spans are sent at its
    end. Raises `ConfigError` at once if OpenTelemetry is not installed."""
    if not collector:
        return nullcontext()
    with needs_extra("ESSP_TRACES"):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    resource = Resource(
        {"service.name": f"essp-{service}", "service.instance.id": worker, "service.version": distribution.version()}
    )
    exporter = OTLPSpanExporter(endpoint=collector.rstrip("/") + "/v1/traces")
    return _sending(
        lambda: BatchSpanProcessor(exporter, max_queue_size=_HELD, schedule_delay_millis=_SEND_MS), resource, share
    )


@contextmanager
def _sending(sender_of: Callable[[], BatchSpanProcessor], resource: Resource, share: float) -> Iterator[None]:
    global _exporter
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.trace import SpanContext, TraceFlags

    sender = sender_of()  # starts a thread

    def export(name: str, key: tuple[str, int, int, int], seconds: float, attributes: dict[str, str | int]) -> None:
        trace_id, root_id = ids_of(*key)
        if not is_sampled(trace_id, share):
            return
        flags = TraceFlags(TraceFlags.SAMPLED)
        root = SpanContext(trace_id, root_id, is_remote=name != _ROOT, trace_flags=flags)
        own = root if name == _ROOT else SpanContext(trace_id, secrets.randbits(64) or 1, False, flags)
        end_ns = time.time_ns()
        job, purpose, epoch, index = key
        about: dict[str, str | int] = {"job": job, "purpose": purpose, "epoch": epoch, "clip": index, **attributes}
        sender.on_end(
            ReadableSpan(
                name,
                context=own,
                parent=None if name == _ROOT else root,
                resource=resource,
                attributes={f"essp.{field}": value for field, value in about.items()},
                start_time=end_ns - round(seconds * 1e9),
                end_time=end_ns,
            )
        )

    before, _exporter = _exporter, export
    try:
        yield
    finally:
        _exporter = before
        sender.shutdown()  # type: ignore[no-untyped-call]
