"""Anybody who may write to the bus can put anything on any topic: it is counted, and costs nobody more."""

from __future__ import annotations

from typing import Any

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import MAX_MESSAGE_BYTES, MessageTooLarge, Record
from essp_common.cache.memory import MemoryCache
from essp_common.cache.port import clip_key
from essp_common.job.position import Position
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import MOST_FENCE, BadMessage, parsed
from essp_common.pb.v1.messages_pb2 import (
    TRAIN,
    ClipReady,
    ClipRef,
    Control,
    DeadLetter,
    DecodeSeed,
    FeatureReady,
    PhasePlan,
    Progress,
)
from essp_common.runtime.metrics import REFUSED
from essp_engine.intake.ordered import Delivery, IntakeOptions, OrderedIntake
from essp_engine.worker.dead_letters import MOST_BYTES, publish_dead_letter
from essp_engine.worker.log_context import log_context
from tests.harness.waiting import LONGEST_S

KINDS = (DecodeSeed, ClipReady, FeatureReady, Progress, Control)
POISON = [b"", b"\xff", bytes(8), bytes(range(256)), bytes(MAX_MESSAGE_BYTES), b"\x00" * 65536]


def refused(topic: str) -> float:
    return float(REFUSED.labels(topic)._value.get())


@pytest.fixture
def bus() -> MemoryBus:
    bus = MemoryBus()
    bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
    return bus


@given(kind=st.sampled_from(KINDS), value=st.binary(max_size=300))
def test_any_bytes_are_a_message_or_refused(kind: Any, value: bytes) -> None:
    try:
        message: Message | None = parsed(kind, Record("t", 0, 0, b"", value))
    except BadMessage:
        message = None
    assert message is None or message.ByteSize() > 0


@given(topic=st.sampled_from([*topics.FIXED, topics.features("flow")]), value=st.binary(max_size=300))
def test_any_record_can_be_named_in_the_log(topic: str, value: bytes) -> None:
    assert isinstance(log_context(Record(topic, 0, 0, b"", value)), dict)


def test_a_purpose_that_there_is_not_can_be_named_in_the_log() -> None:
    clip = ClipRef(job="j", index=3)
    clip.MergeFromString(b"\x10\x63")  # purpose 99
    assert log_context(Record(topics.CLIPS, 0, 0, b"", ClipReady(clip=clip).SerializeToString())) == {}


@pytest.mark.parametrize("value", POISON)
def test_the_control_thread_lives(bus: MemoryBus, value: bytes) -> None:
    before = refused(topics.CONTROL)
    feed = ControlFeed(bus)
    try:
        bus.publish(topics.CONTROL, b"", value)
        command = Control(job="j", fence=1, command=Control.START)
        bus.publish(topics.CONTROL, b"", command.SerializeToString())
        assert feed.wait("j", LONGEST_S) == command
        assert list(feed.jobs()) == ["j"]
    finally:
        feed.close()
    assert refused(topics.CONTROL) == before + 1


@pytest.mark.parametrize("fence", [MOST_FENCE, 2**63, 2**64 - 1])
def test_a_fence_that_nobody_can_have_taken_hides_no_command(bus: MemoryBus, fence: int) -> None:
    feed = ControlFeed(bus)
    try:
        for command in (
            Control(job="j", fence=fence, command=Control.STOP),
            Control(job="j", fence=3, command=Control.START),
        ):
            bus.publish(topics.CONTROL, b"", command.SerializeToString())
        known = feed.wait("j", LONGEST_S, {Control.START})
        assert known is not None
        assert known.fence == 3
        assert not feed.outdated("j", 3)
    finally:
        feed.close()


@pytest.mark.parametrize("kind", KINDS)
def test_no_message_has_such_a_fence(kind: Any) -> None:
    with pytest.raises(BadMessage, match="which no process can have taken"):
        parsed(kind, Record("t", 0, 0, b"", kind(fence=2**40).SerializeToString()))


@pytest.mark.parametrize("value", [*POISON, "beyond", "keyless"])
def test_a_consumer_of_clips_lives(bus: MemoryBus, value: bytes | str) -> None:
    cache = MemoryCache(2**20)
    before = refused(topics.CLIPS)
    options = IntakeOptions(job="j", consumer="trainer.rgb", stream="rgb", feature="rgb")
    intake = OrderedIntake(bus, cache, options, [PhasePlan(purpose=TRAIN, clips=1)], Position(0, 0))
    key = clip_key("j", TRAIN, 0, 0, 0)
    cache.put(key, b"frames", ["trainer.rgb"], 60)
    if value == "beyond":
        odd = ClipReady(clip=ClipRef(job="j", purpose=TRAIN, index=2**64 - 1), key=key + "x")
        value = odd.SerializeToString()
        before -= 1  # a message of ours, about no clip
    elif value == "keyless":
        value = ClipReady(clip=ClipRef(job="j", purpose=TRAIN)).SerializeToString()
    assert isinstance(value, bytes)
    bus.publish(topics.CLIPS, b"", value, 0)
    good = ClipReady(clip=ClipRef(job="j", purpose=TRAIN), key=key)
    bus.publish(topics.CLIPS, b"", good.SerializeToString(), 0)
    taken = intake.take(1.0)
    assert isinstance(taken, Delivery)
    assert taken.value == b"frames"
    intake.finish([taken])
    assert bus.backlog(topics.CLIPS, options.group) == 0
    assert refused(topics.CLIPS) == before + 1
    intake.close()


@pytest.mark.parametrize("size", [10, MOST_BYTES, MOST_BYTES + 1, MAX_MESSAGE_BYTES])
def test_a_dead_letter_fits_on_the_bus_whatever_it_is_about(bus: MemoryBus, size: int) -> None:
    record = Record(topics.SEEDS, 0, 0, bytes(MAX_MESSAGE_BYTES - size), b"x" * size)
    publish_dead_letter(bus, record, BadMessage("r" * MAX_MESSAGE_BYTES), 1, "w")
    [stored] = bus.subscribe([topics.DEADLETTER], None).poll(1, 0)
    letter = DeadLetter.FromString(stored.value)
    assert len(letter.message) + letter.cut_bytes == size
    assert bool(letter.cut_bytes) == (size > MOST_BYTES)
    assert letter.reason.startswith("rrr")


def test_a_message_that_no_bus_takes_is_refused_at_once(bus: MemoryBus) -> None:
    with pytest.raises(MessageTooLarge, match=r"a message to essp\.seeds has 1000001 bytes, and 1000000 are the most"):
        bus.publish(topics.SEEDS, b"k", bytes(MAX_MESSAGE_BYTES))
    bus.publish(topics.SEEDS, b"", bytes(MAX_MESSAGE_BYTES))
