"""Which of the records that were read is handed out next."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka import TopicPartition

from essp_common.bus.port import Record
from essp_common.bus.read_ahead import ReadAhead

SLOTS = [TopicPartition("t", number) for number in range(4)]
ARRIVALS = st.lists(st.tuples(st.sampled_from(SLOTS), st.integers(0, 9)), max_size=40)


def filled(arrivals: list[tuple[TopicPartition, int]]) -> ReadAhead:
    read = ReadAhead()
    for offset, (slot, time_ms) in enumerate(arrivals):
        read.add(slot, time_ms, Record(slot.topic, slot.partition, offset, b"", bytes([time_ms] * 3)))
    return read


@given(ARRIVALS, st.sets(st.sampled_from(SLOTS)))
def test_each_record_comes_once_and_those_of_a_partition_in_their_order(
    arrivals: list[tuple[TopicPartition, int]], dropped: set[TopicPartition]
) -> None:
    read = filled(arrivals)
    read.drop(dropped)
    left = [(slot, offset) for offset, (slot, _) in enumerate(arrivals) if slot not in dropped]
    assert (len(read), read.size_bytes) == (len(left), 3 * len(left))
    taken = [read.pop() for _ in range(len(read))]
    assert sorted(record.offset for _, record in taken) == [offset for _, offset in left]
    for slot in SLOTS:
        offsets = [record.offset for from_slot, record in taken if from_slot == slot]
        assert offsets == sorted(offsets)
    assert (len(read), read.size_bytes) == (0, 0)
    with pytest.raises(IndexError):
        read.pop()


@given(ARRIVALS, st.sets(st.sampled_from(SLOTS)))
def test_the_oldest_of_all_partitions_comes_first(
    arrivals: list[tuple[TopicPartition, int]], dropped: set[TopicPartition]
) -> None:
    """Also of those that are left once some were dropped."""
    read = filled(sorted(arrivals, key=lambda arrival: arrival[1]))
    read.drop(dropped)
    times = [read.pop()[1].value[0] for _ in range(len(read))]
    assert times == sorted(times)


def test_the_oldest_is_found_though_the_first_was_dropped() -> None:
    read = filled(list(zip(SLOTS, (1, 8, 2, 9), strict=True)))
    read.drop({SLOTS[0]})
    assert [read.pop()[1].value[0] for _ in range(len(read))] == [2, 8, 9]


def test_a_publisher_whose_clock_is_ahead_waits_for_nobody_that_comes_later() -> None:
    """Else a partition of its records would stand still while there are others."""
    now_s = [1.0]
    read = ReadAhead(lambda: now_s[0])
    for offset, (slot, time_ms) in enumerate([(SLOTS[0], 10**15), (SLOTS[1], 1001)]):
        now_s[0] += 1.0
        read.add(slot, time_ms, Record(slot.topic, slot.partition, offset, b"", b""))
    now_s[0] += 1.0
    read.add(SLOTS[2], 2001, Record("t", 2, 2, b"", b""))
    assert [read.pop()[1].offset for _ in range(3)] == [1, 0, 2]
