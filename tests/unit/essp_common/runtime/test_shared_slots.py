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
