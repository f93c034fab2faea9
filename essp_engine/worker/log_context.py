"""The log context of a message: the clip or unit that it concerns (`essp_common.runtime.logs`)."""

from __future__ import annotations

from typing import Any

from google.protobuf.message import DecodeError

from essp_common import topics
from essp_common.bus.port import Record
from essp_common.pb.v1.messages_pb2 import ClipReady, ClipRef, DecodeSeed, FeatureReady, Progress, Purpose


def log_context(record: Record) -> dict[str, Any]:
    """Job, epoch, and the clip (`seed_id`) or the unit of clips; empty if the record is not one of these messages."""
    try:
        if record.topic == topics.SEEDS:
            return _of_unit(DecodeSeed.FromString(record.value))
        if record.topic == topics.CLIPS:
            return _of_clip(ClipReady.FromString(record.value).clip)
        if record.topic == topics.PROGRESS:
            return {"job_id": Progress.FromString(record.value).job}
        if record.topic.startswith(topics.features("")):
            return _of_clip(FeatureReady.FromString(record.value).clip)
    except (DecodeError, ValueError):  # an unknown purpose
        pass
    return {}


def _of_clip(clip: ClipRef) -> dict[str, Any]:
    return {"job_id": clip.job, "epoch": clip.epoch, "seed_id": _seed(clip.purpose, clip.epoch, clip.index)}


def _of_unit(unit: DecodeSeed) -> dict[str, Any]:
    """A unit of one clip has the name of the clip; a larger one the name of its first clip, and the number of
    others."""
    found = {"job_id": unit.job, "epoch": unit.epoch}
    if not unit.seeds:
        return found
    first = _seed(unit.purpose, unit.epoch, unit.seeds[0].index)
    rest = len(unit.seeds) - 1
    return {**found, "unit_id": f"{first}+{rest}"} if rest else {**found, "seed_id": first}


def _seed(purpose: Purpose, epoch: int, index: int) -> str:
    return f"{Purpose.Name(purpose).lower()}/{epoch}/{index}"
