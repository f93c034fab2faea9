"""Compressed video that a decoder keeps: bounded, the least recently used first, and safe from its children."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import closing
from multiprocessing import Pipe

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from essp_engine.decoding.block_cache import BlockCache, BlockServer
from essp_engine.decoding.block_protocol import BlockClient, answer, parsed

Step = tuple[bool, str, int, list[bytes]]
some = st.lists(st.binary(min_size=1, max_size=9), min_size=1, max_size=4)
steps = st.tuples(st.booleans(), st.sampled_from("ab"), st.integers(0, 4), some)


@given(st.integers(0, 40), st.lists(steps, max_size=30))
def test_it_holds_what_was_used_last_within_its_limit(limit: int, moves: list[Step]) -> None:
    cache = BlockCache(limit)
    model: OrderedDict[tuple[str, int], bytes] = OrderedDict()
    for writes, version, first, blocks in moves:
        keys = [(version, first + number) for number in range(len(blocks))]
        if writes:
            cache.put(version, first, blocks)
            for key, block in zip(keys, blocks, strict=True):
                if key not in model and len(block) <= limit:
                    model[key] = block
                    while sum(map(len, model.values())) > limit:
                        model.popitem(last=False)
        else:
            assert cache.get(version, first, len(blocks)) == [model.get(key) for key in keys]
            for key in keys:
                if key in model:
                    model.move_to_end(key)
        assert cache.held_bytes == sum(map(len, model.values())) <= limit


def test_what_may_be_damaged_goes() -> None:
    cache = BlockCache(100)
    for version in ("s3://b/v 1", "s3://b/v 2", "s3://b/v2 1"):
        cache.put(version, 0, [b"12345", b"1234"])
    cache.drop("s3://b/v 1")
    assert cache.get("s3://b/v 1", 0, 2) == [None, None]
    assert cache.held_bytes == 18
    cache.drop("s3://b/v ")  # the versions of one object
    assert cache.held_bytes == 9


def counted(what: str) -> float:
    return REGISTRY.get_sample_value("essp_video_cache_bytes_total", {"what": what}) or 0.0


def test_bytes_are_counted() -> None:
    before = {what: counted(what) for what in ("hit", "miss", "evicted")}
    cache = BlockCache(10)
    cache.put("v", 0, [b"12345", b"1234"])
    cache.put("v", 2, [b"123"])
    cache.get("v", 0, 3)
    assert {what: counted(what) - before[what] for what in before} == {"hit": 7, "miss": 12, "evicted": 5}
    held = {
        state: REGISTRY.get_sample_value("essp_video_cache_held_bytes", {"state": state}) for state in ("used", "limit")
    }
    assert held == {"used": 7, "limit": 10}


class Served:
    """A cache, and the end of a child's."""

    def __init__(self) -> None:
        self.cache = BlockCache(2**20)
        ours, self.theirs = Pipe()
        self.server = BlockServer(self.cache, ours)

    def close(self) -> None:
        self.theirs.close()
        self.server.join()


@pytest.fixture
def served() -> Iterator[Served]:
    with closing(Served()) as served:
        yield served


def test_a_child_finds_what_another_one_read(served: Served) -> None:
    BlockClient(served.theirs).put("s3://b/ü x", 7, [memoryview(b"seven"), memoryview(b"eight")])
    ours, theirs = Pipe()
    other = BlockServer(served.cache, ours)
    BlockClient(served.theirs).get("v", 0, 1)  # what was put before has arrived
    with theirs:
        assert BlockClient(theirs).get("s3://b/ü x", 6, 4) == [None, b"seven", b"eight", None]
        assert BlockClient(theirs).get("s3://b/other", 7, 1) == [None]
    other.join()


def test_a_child_has_damaged_blocks_forgotten(served: Served) -> None:
    client = BlockClient(served.theirs)
    client.put("v", 7, [memoryview(b"seven")])
    client.drop("v")
    assert client.get("v", 7, 1) == [None]


@pytest.mark.parametrize(
    "message",
    [b"", b"x" * 40, b"g" + bytes(16), b"p" + bytes(8) + b"\x01\0\0\0" + bytes(4) + b"\xff\0\0\0", b"\xff" * 99],
)
def test_a_child_that_does_not_follow_the_format_is_not_heard_any_more(served: Served, message: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parsed(message)
    served.theirs.send_bytes(message)
    served.server.join()
    assert served.cache.held_bytes == 0
    client = BlockClient(served.theirs)
    assert client.get("v", 0, 2) == [None, None], "a child without a decoder reads from the store"
    client.put("v", 0, [memoryview(b"1")])


def test_an_answer_that_does_not_fit_is_none() -> None:
    ours, theirs = Pipe()
    with ours, theirs:
        ours.send_bytes(answer([b"1", None])[:-1])
        assert BlockClient(theirs).get("v", 0, 2) == [None, None]
