"""Shared memory that the machine does not have: the decoder waits, and loses nothing."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from essp_common.errors import Unavailable
from essp_common.runtime.shared_slots import SharedMemory


@contextmanager
def no_larger_than(size: int) -> Iterator[None]:
    """The kernel lets no file grow beyond this."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_no_room_is_waited_for() -> None:
    memory = SharedMemory()
    try:
        first = memory.take(1 << 20)
        with no_larger_than(memory.size), pytest.raises(Unavailable, match="no shared memory"):
            memory.take(memory.size)
        second = memory.take(1 << 24)
        assert second.start >= first.start + first.size
        assert memory.size >= second.start + second.size
        memory.view(second, 100)
    finally:
        memory.close()


def test_where_little_can_be_mapped_no_more_is_asked_for_than_needed() -> None:
    memory = SharedMemory()
    try:
        with no_larger_than(1 << 24):
            slot = memory.take(1 << 20)
            memory.view(slot, 100, writable=True)[:] = bytes(100)
            with pytest.raises(Unavailable, match="no shared memory"):
                memory.take(1 << 24)
        assert memory.size >= slot.start + slot.size
    finally:
        memory.close()


def test_a_mapping_is_not_replaced_while_clips_of_a_gigabyte_are_held() -> None:
    """A new one would cost a page fault for each page of each slot, once more."""
    memory = SharedMemory()
    try:
        memory.take(1 << 24)
        mapped = memory.size
        for _ in range(63):
            memory.take(1 << 24)
        assert memory.size == mapped
    finally:
        memory.close()
