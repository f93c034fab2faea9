"""A file read in ranges: the same bytes as the object, by few requests."""

from __future__ import annotations

import io
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import Unavailable
from essp_common.objects.archive import _Part
from essp_common.objects.ranged import CACHED_BLOCKS, LARGEST_REQUEST_BLOCKS, RangedFile, expect, share

BLOCK = 16


class Source:
    """Bytes that remember which ranges were asked for."""

    def __init__(self, size: int) -> None:
        self.data = bytes(i * 7 % 251 for i in range(size))
        self.requests: list[tuple[int, int]] = []

    def fetch(self, start: int, length: int) -> bytes:
        assert 0 <= start < start + length <= len(self.data), "asks for no byte that is not there"
        self.requests.append((start, length))
        return self.data[start : start + length]

    def open(self, version: str = "") -> io.BufferedReader:
        return io.BufferedReader(RangedFile(len(self.data), self.fetch, BLOCK, version), buffer_size=BLOCK)


class DictBlocks:
    """Keeps everything."""

    def __init__(self) -> None:
        self.blocks: dict[tuple[str, int], bytes] = {}

    def get(self, version: str, first: int, count: int) -> list[bytes | None]:
        return [self.blocks.get((version, block)) for block in range(first, first + count)]

    def put(self, version: str, first: int, blocks: Sequence[memoryview]) -> None:
        self.blocks = {(version, number): bytes(block) for number, block in enumerate(blocks, first)} | self.blocks

    def drop(self, version: str) -> None:
        self.blocks = {key: block for key, block in self.blocks.items() if key[0] != version}


@given(
    size=st.integers(0, 700),
    moves=st.lists(st.tuples(st.sampled_from([0, 1, 2]), st.integers(-800, 800), st.integers(-1, 300)), max_size=12),
    announced=st.lists(st.tuples(st.integers(0, 800), st.integers(0, 800)), max_size=4),
    lost=st.none() | st.sets(st.integers(0, 45)),
)
def test_reads_like_a_file_in_memory(
    size: int, moves: list[tuple[int, int, int]], announced: list[tuple[int, int]], lost: set[int] | None
) -> None:
    """Also with a shared that holds all blocks but those that are `lost`."""
    source = Source(size)
    shared = DictBlocks()
    if lost is not None:
        with source.open("v") as whole:
            share(whole, shared)
            whole.read()
        shared.blocks = {key: block for key, block in shared.blocks.items() if key[1] not in lost}
    with source.open("v") as ranged:
        share(ranged, shared)
        expect(ranged, announced)
        _compare(ranged, io.BytesIO(source.data), size, moves)


def test_what_a_shelf_holds_is_not_fetched() -> None:
    source, shared = Source(BLOCK * 20), DictBlocks()
    for version, fetched in (("v1", 20), ("v1", 0), ("v2", 20), ("v1", 0), ("", 20)):
        source.requests.clear()
        with source.open(version) as file:
            share(file, shared)
            expect(file, [(0, 100), (200, 250)])
            assert file.read() == source.data
        assert sum(length for _, length in source.requests) == fetched * BLOCK
    assert len(shared.blocks) == 40, "without a version, nothing is kept"


def test_a_part_of_a_file_shares_the_blocks_of_the_whole() -> None:
    source, shared = Source(BLOCK * 20), DictBlocks()
    with io.BufferedReader(_Part(source.open("v"), 5, 100)) as part:
        share(part, shared)
        assert part.read() == source.data[5:105]
    assert b"".join(shared.blocks[key] for key in sorted(shared.blocks))[5:105] == source.data[5:105]


def _compare(ranged: io.BufferedReader, plain: io.BytesIO, size: int, moves: list[tuple[int, int, int]]) -> None:
    for whence, offset, length in moves:
        base = (0, plain.tell(), size)[whence]
        target = max(0, base + offset)
        assert ranged.seek(target - base, whence) == plain.seek(target)
        assert ranged.read(length) == plain.read(length)
        assert ranged.tell() == plain.tell()


def test_requests_grow_while_reading_on() -> None:
    source = Source(BLOCK * 200)
    assert source.open().read() == source.data
    blocks = [length // BLOCK for _, length in source.requests]
    assert blocks == [1, 2, 4, 8, 16, 32, 64, 64, 9]
    assert max(blocks) == LARGEST_REQUEST_BLOCKS


def test_jump_asks_for_one_block() -> None:
    source = Source(BLOCK * 40)
    file = source.open()
    file.read(BLOCK * 7)
    source.requests.clear()
    file.seek(BLOCK * 30 + 3)
    file.read(5)
    assert source.requests == [(BLOCK * 30, BLOCK)]


def test_seeking_back_asks_for_nothing() -> None:
    source = Source(BLOCK * CACHED_BLOCKS)
    file = source.open()
    file.read()
    asked = len(source.requests)
    for position in (0, BLOCK * 9 + 1, BLOCK * 3):
        file.seek(position)
        assert file.read(BLOCK) == source.data[position : position + BLOCK]
    assert len(source.requests) == asked


def test_what_is_announced_comes_in_one_request() -> None:
    source = Source(BLOCK * 40)
    with source.open() as file:
        expect(file, [(BLOCK * 3 + 5, BLOCK * 6 + 1), (BLOCK * 20, BLOCK * 21)])
        file.seek(BLOCK * 3 + 5)
        assert file.read(BLOCK * 3) == source.data[BLOCK * 3 + 5 : BLOCK * 6 + 5]
        file.seek(BLOCK * 20)
        file.read(BLOCK)
    assert sorted(source.requests) == [(BLOCK * 3, BLOCK * 4), (BLOCK * 20, BLOCK)]


def test_what_is_there_is_not_asked_for_again() -> None:
    source = Source(BLOCK * 40)
    with source.open() as file:
        file.seek(BLOCK * 5)
        file.read(BLOCK)
        expect(file, [(BLOCK * 4, BLOCK * 7)])
        file.seek(BLOCK * 4)
        file.read(BLOCK * 3)
    assert sorted(source.requests) == [(BLOCK * 4, BLOCK), (BLOCK * 5, BLOCK), (BLOCK * 6, BLOCK)]


def test_announcing_more_than_is_kept_asks_for_no_more_than_that() -> None:
    source = Source(BLOCK * 4 * CACHED_BLOCKS)
    with source.open() as file:
        expect(file, [(0, len(source.data))])
        assert file.read() == source.data
    assert sum(length for _, length in source.requests) == len(source.data)


def test_a_request_that_failed_in_the_background_is_made_again() -> None:
    source = Source(BLOCK * 8)
    answers = iter([Unavailable("no answer")])

    def fetch(start: int, length: int) -> bytes:
        for error in answers:
            raise error
        return source.fetch(start, length)

    with io.BufferedReader(RangedFile(len(source.data), fetch, BLOCK), buffer_size=BLOCK) as file:
        expect(file, [(0, BLOCK * 4)])
        with pytest.raises(Unavailable, match="no answer"):
            file.read(BLOCK)
        file.seek(0)
        assert file.read(BLOCK * 4) == source.data[: BLOCK * 4]


def test_announcing_what_is_no_ranged_file_does_nothing() -> None:
    expect(io.BytesIO(b"abc"), [(0, 3)])


def test_memory_is_bounded() -> None:
    source = Source(BLOCK * 2 * CACHED_BLOCKS)
    raw = RangedFile(len(source.data), source.fetch, BLOCK)
    while raw.read(BLOCK):
        assert len(raw._blocks) <= CACHED_BLOCKS


def test_short_answer_is_no_data() -> None:
    file = RangedFile(100, lambda start, length: b"short", BLOCK)
    with pytest.raises(Unavailable, match="received 5 bytes of the 16"):
        file.read(10)


def test_position_before_the_start() -> None:
    with pytest.raises(ValueError, match="cannot seek"):
        RangedFile(9, Source(9).fetch, BLOCK).seek(-1)
