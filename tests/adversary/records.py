"""What a storm puts on the topics of a deployment: bytes that are no messages, and messages that nobody would send."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from hypothesis import strategies as st

from essp_common import topics
from essp_common.bus.port import MAX_MESSAGE_BYTES
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    ClipReady,
    ClipRef,
    Control,
    DeadLetter,
    DecodeSeed,
    FeatureReady,
    FrameCodec,
    JobSnapshot,
    Made,
    Progress,
    Recipe,
    Seed,
    Video,
)
from tests.adversary.storms import ODD_TEXTS, damaged

KINDS: Mapping[str, type[Message]] = {
    topics.SEEDS: DecodeSeed,
    topics.CLIPS: ClipReady,
    topics.features("flow"): FeatureReady,
    topics.PROGRESS: Progress,
    topics.CONTROL: Control,
    topics.DEADLETTER: DeadLetter,
}
TOPICS = tuple(KINDS)
SAMPLES: Mapping[str, Sequence[bytes]] = {
    topic: [message.SerializeToString()]
    for topic, message in {
        topics.SEEDS: DecodeSeed(
            job="j",
            purpose=TRAIN,
            fence=1,
            video=Video(id="v", uri="s3://nowhere/v.mp4", size_bytes=9, frame_count=9, width=64, height=48),
            seeds=[Seed(index=1, frame_count=4, stride=1, last_frame=8)],
            recipe=Recipe(codec=FrameCodec(name="raw"), ttl_s=60),
        ),
        topics.CLIPS: ClipReady(clip=ClipRef(job="j", purpose=TRAIN, index=1), key="essp:j:{1.0.1.0}", bytes=9),
        topics.features("flow"): FeatureReady(clip=ClipRef(job="j", purpose=TRAIN, index=1), stream="flow", key="k"),
        topics.PROGRESS: Progress(job="j", fence=1, made=Made(purpose=TRAIN, indices=[1], bytes=[9], seconds=0.1)),
        topics.CONTROL: Control(job="j", fence=1, command=Control.START, snapshot=JobSnapshot(spec_json="{}")),
        topics.DEADLETTER: DeadLetter(topic=topics.SEEDS, message=b"x", reason="r", time_ms=1),
    }.items()
}
"""A message of each topic, for where none was seen."""
GROUPS = (
    (topics.SEEDS, "decoder"),
    (topics.CLIPS, "extractor.flow"),
    (topics.PROGRESS, "aggregator"),
    (topics.CONTROL, "predictor"),
)
"""Who reads them in turn: topic and consumer group."""

_FLOATS = (math.nan, math.inf, -math.inf, -1.0, 0.0, 1e308)
_RANGES = {
    FieldDescriptor.CPPTYPE_INT32: (-(2**31), 2**31 - 1),
    FieldDescriptor.CPPTYPE_INT64: (-(2**63), 2**63 - 1),
    FieldDescriptor.CPPTYPE_UINT32: (0, 2**32 - 1),
    FieldDescriptor.CPPTYPE_UINT64: (0, 2**64 - 1),
    FieldDescriptor.CPPTYPE_ENUM: (-1, 99),
}


@dataclass(frozen=True, slots=True)
class Sent:
    """A record of a storm."""

    topic: str
    partition: int
    key: bytes
    value: bytes

    def __repr__(self) -> str:
        return f"Sent({self.topic}[{self.partition}], {len(self.value)} bytes: {self.value[:200]!r})"


def noise() -> st.SearchStrategy[bytes]:
    """Bytes that are no message, up to the largest that a bus takes."""
    return st.one_of(
        st.just(b""),
        st.binary(max_size=60),
        st.sampled_from([b"\xff", bytes(8), bytes(range(256))]),
        st.sampled_from([MAX_MESSAGE_BYTES - 8, 900_000, 70_000]).map(bytes),
    )


@st.composite
def changed(draw: st.DrawFn, message: Message, job: str | None = None) -> Message:
    """A message some of whose fields hold what nobody would send. `job`: of which it speaks then."""
    result = type(message)()
    result.CopyFrom(message)
    for _ in range(draw(st.integers(1, 3))):
        _change(draw, result)
    if job is not None:
        _of_job(result, job)
    return result


def _change(draw: st.DrawFn, message: Message) -> None:
    """Change one field, of this message or of one within it."""
    fields: Any = message.DESCRIPTOR.fields  # of one of two types, which have the same attributes
    field: FieldDescriptor = draw(st.sampled_from(list(fields)))
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        _change_map(draw, message, field)
    elif field.is_repeated:
        _change_list(draw, message, field)
    elif field.message_type is not None:
        if draw(st.integers(0, 9)) == 0:
            message.ClearField(field.name)
        else:
            _change(draw, getattr(message, field.name))
    else:
        setattr(message, field.name, _odd(draw, field))


def _change_list(draw: st.DrawFn, message: Message, field: FieldDescriptor) -> None:
    values = getattr(message, field.name)
    match draw(st.sampled_from(["clear", "one", "more", "last"])):
        case "clear":
            message.ClearField(field.name)
        case "last" if values:
            del values[-1]
        case how if field.message_type is not None:
            if not values:
                values.add()
            if how == "more":
                values.add().CopyFrom(values[0])
            _change(draw, values[draw(st.integers(0, len(values) - 1))])
        case "more":
            values.extend([_odd(draw, field)] * draw(st.sampled_from([1, 2, 1000])))
        case _:
            values.append(_odd(draw, field))


def _change_map(draw: st.DrawFn, message: Message, field: FieldDescriptor) -> None:
    assert field.message_type is not None
    key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
    if value.message_type is None:
        getattr(message, field.name)[_odd(draw, key)] = _odd(draw, value)


def _odd(draw: st.DrawFn, field: FieldDescriptor) -> Any:
    kind = field.cpp_type
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return draw(st.sampled_from([low, high, 0, 1, 2, 3, high // 2, min(high, 2**32)]))
    if kind == FieldDescriptor.CPPTYPE_BOOL:
        return draw(st.booleans())
    if kind in (FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT):
        return draw(st.sampled_from(_FLOATS))
    if field.type == FieldDescriptor.TYPE_BYTES:
        return draw(st.binary(max_size=20))
    text = draw(ODD_TEXTS | st.sampled_from(["rgb", "flow", "trainer.rgb", "file:///", "[]", "{}", "[1, {}]"]))
    return text.encode("utf-8", "replace").decode()


def _of_job(message: Message, job: str) -> None:
    """Have a message, and all within it, speak of another job."""
    for field, value in message.ListFields():
        if field.name == "job":
            setattr(message, field.name, job)
        elif field.message_type is not None and not field.is_repeated:
            _of_job(value, job)


@st.composite
def foreign(draw: st.DrawFn, seen: Mapping[str, Sequence[bytes]]) -> Sent:
    """A record that is not of this deployment: noise, or an odd message of a job that there is not."""
    topic = draw(st.sampled_from(TOPICS))
    value = draw(noise())
    if draw(st.booleans()):
        message = draw(changed(_parsed(topic, seen[topic][draw(st.integers(0, len(seen[topic]) - 1))]), "nobody"))
        value = message.SerializeToString()
    elif draw(st.booleans()):
        value = draw(damaged(_of_nobody(topic, seen[topic][draw(st.integers(0, len(seen[topic]) - 1))])))
        if b"nobody" not in value:  # else a damaged name might be that of a job
            value = b"\xff" + value
    return _sent(draw, topic, value[:MAX_MESSAGE_BYTES])


@st.composite
def twisted(draw: st.DrawFn, seen: Mapping[str, Sequence[bytes]], job: str) -> Sent:
    """An odd or damaged message of a job that runs."""
    topic = draw(st.sampled_from(TOPICS))
    message = _parsed(topic, seen[topic][draw(st.integers(0, len(seen[topic]) - 1))])
    value = draw(changed(message, job)).SerializeToString()
    if draw(st.integers(0, 3)) == 0:
        value = draw(damaged(value))
    return _sent(draw, topic, value[:MAX_MESSAGE_BYTES])


def _sent(draw: st.DrawFn, topic: str, value: bytes) -> Sent:
    key = draw(st.binary(max_size=8)) if len(value) < MAX_MESSAGE_BYTES - 8 else b""
    return Sent(topic, draw(st.integers(0, topics.partitions(topic) - 1)), key, value)


def _parsed(topic: str, value: bytes) -> Message:
    try:
        return KINDS[topic].FromString(value)
    except DecodeError:
        return KINDS[topic]()


def _of_nobody(topic: str, value: bytes) -> bytes:
    message = _parsed(topic, value)
    _of_job(message, "nobody")
    return message.SerializeToString()
