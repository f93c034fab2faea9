"""Bytes from a store are compared with the checksums of the file before anybody gets or keeps them."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.errors import BadVideo, Unavailable
from essp_common.objects.block_sums import (
    LARGEST_BLOCK,
    MOST_SMALL_BLOCKS,
    SMALLEST_BLOCK,
    BlockSums,
    block_bytes_of,
    checksum,
)
from essp_common.objects.ranged import RangedFile, expect, noting, share, verify
from tests.unit.essp_common.objects.test_ranged import DictBlocks

BLOCK = 16
CHECKED = 64
"""Four blocks have one checksum."""
DATA = bytes(i * 7 % 251 for i in range(1000))
SUMS = BlockSums.of(CHECKED, [checksum(DATA[at : at + CHECKED]) for at in range(0, len(DATA), CHECKED)])


class Wire:
    """A store, and what damages some of its answers."""

    def __init__(self, damage: Callable[[int, bytes], bytes] = lambda number, data: data) -> None:
        """`damage(number of the request, data)`."""
        self.requests: list[tuple[int, int]] = []
        self._damage = damage

    def fetch(self, start: int, length: int) -> bytes:
        self.requests.append((start, length))
        return self._damage(len(self.requests), DATA[start : start + length])

    def open(self, sums: BlockSums | None = SUMS, shared: DictBlocks | None = None) -> io.BufferedReader:
        raw = RangedFile(len(DATA), self.fetch, BLOCK, "s3://b/v etag")
        file: io.BufferedReader = io.BufferedReader(raw, buffer_size=BLOCK)
        if shared is not None:
            share(file, shared)
        if sums is not None:
            verify(file, sums)
        return file


def flipped(data: bytes, place: int, bits: int = 1) -> bytes:
    return data[:place] + bytes([data[place] ^ bits]) + data[place + 1 :]


@given(
    wrong=st.sets(st.integers(1, 12), max_size=4),
    place=st.integers(0, 999),
    reads=st.lists(st.tuples(st.integers(0, 999), st.integers(1, 300)), max_size=6),
    announced=st.lists(st.tuples(st.integers(0, 999), st.integers(0, 999)), max_size=3),
    held=st.sets(st.integers(0, 62)),
)
def test_bits_that_flip_now_and_then_reach_nobody(
    wrong: set[int],
    place: int,
    reads: list[tuple[int, int]],
    announced: list[tuple[int, int]],
    held: set[int],
) -> None:
    """Neither a reader nor the shared cache, of whose blocks some are damaged, too."""
    wire = Wire(lambda number, data: flipped(data, place * number % len(data), number) if number in wrong else data)
    shared = DictBlocks()
    with wire.open(None) as file:
        version = file.raw._version  # type: ignore[attr-defined]
    blocks = {number: DATA[number * BLOCK : (number + 1) * BLOCK] for number in held}
    shared.blocks = {
        (version, number): flipped(block, 0, 128) if number % 5 == 0 else block for number, block in blocks.items()
    }
    with wire.open(shared=shared) as file:
        expect(file, announced)
        for start, length in reads:
            file.seek(start)
            assert file.read(length) == DATA[start : start + length]
    for (_, number), block in shared.blocks.items():
        if number not in held:
            assert block == DATA[number * BLOCK : (number + 1) * BLOCK]


def test_whole_checked_blocks_are_fetched_and_none_twice() -> None:
    wire = Wire()
    with wire.open() as file:
        expect(file, [(200, 210)])
        file.seek(200)
        assert file.read(10) == DATA[200:210]
        file.seek(400)
        assert file.read(200) == DATA[400:600]
        file.seek(190)
        file.read(60)
    fetched = [at for start, length in wire.requests for at in range(start, start + length)]
    assert len(set(fetched)) == len(fetched)
    assert {start % CHECKED for start, _ in wire.requests} == {length % CHECKED for _, length in wire.requests} == {0}


def test_what_comes_twice_is_what_the_object_has_become() -> None:
    wire = Wire(lambda _, data: flipped(data, 3))
    with wire.open() as file, pytest.raises(BadVideo, match="s3://b/v: bytes 0 to 63 differ") as caught:
        file.read(10)
    assert caught.value.kind == "changed"
    assert len(wire.requests) == 2


def test_a_wire_that_damages_everything_is_told_as_one() -> None:
    wire = Wire(lambda number, data: flipped(data, number))
    with wire.open() as file, pytest.raises(BadVideo, match="different each time") as caught:
        file.read(10)
    assert caught.value.kind == "damaged"


def test_blocks_without_a_checksum_are_taken_as_they_come() -> None:
    wire = Wire(lambda number, data: flipped(data, 0))
    with wire.open(BlockSums(CHECKED, SUMS.sums[:4])) as file:
        file.seek(64)
        assert file.read(10) == flipped(DATA[64:80], 0)[:10]


@pytest.mark.parametrize("reads", [[], [(900, 50)], [(0, 1000), (0, 1000)]])
def test_checksums_are_made_of_what_is_read(reads: list[tuple[int, int]]) -> None:
    data = DATA * 1000
    requests = []

    def fetch(start: int, length: int) -> bytes:
        requests.append(length)
        return data[start : start + length]

    with io.BufferedReader(RangedFile(len(data), fetch)) as file:
        raw = noting(file)
        assert raw is not None
        for start, length in reads:
            file.seek(start)
            file.read(length)
        sums = raw.noted()
    step = sums.block_bytes
    expected = [checksum(data[at : at + step]) for at in range(0, len(data), step)]
    assert sums == BlockSums.of(SMALLEST_BLOCK, expected)
    assert sum(requests) == len(data), "nothing is read twice"
    assert BlockSums.unpacked(sums.packed()) == sums


def test_a_store_that_says_two_things_gets_no_checksum() -> None:
    answers = iter([b"x" * SMALLEST_BLOCK, b"y" * SMALLEST_BLOCK])
    raw = RangedFile(SMALLEST_BLOCK, lambda *_: next(answers))
    raw.note()
    raw.read(1)
    raw._blocks.clear()
    raw.seek(0)
    with pytest.raises(Unavailable, match="other bytes"):
        raw.read(1)


@pytest.mark.parametrize("size", [0, 1, 10**6, 2**26, 2**26 + 1, 2**28, 2**36])
def test_checksums_stay_small_beside_their_files(size: int) -> None:
    block = block_bytes_of(size)
    assert SMALLEST_BLOCK <= block <= LARGEST_BLOCK
    assert 4 * size / block <= max(4 * MOST_SMALL_BLOCKS, size / 2**18)


@pytest.mark.parametrize("packed", [b"\x12", b"\x121234"])
def test_packed_checksums_come_back(packed: bytes) -> None:
    found = BlockSums.unpacked(packed)
    assert found is not None
    assert found.packed() == packed


@pytest.mark.parametrize("packed", [b"\x12123", b"\0", b"\x40", b"1234"])
def test_other_bytes_are_no_checksums(packed: bytes) -> None:
    with pytest.raises(ValueError, match="not checksums"):
        BlockSums.unpacked(packed)
