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


@given(ARRIVALS)
def test_the_oldest_of_all_partitions_comes_first(arrivals: list[tuple[TopicPartition, int]]) -> None:
    read = filled(sorted(arrivals, key=lambda arrival: arrival[1]))
    times = [read.pop()[1].value[0] for _ in range(len(read))]
    assert times == sorted(times)
