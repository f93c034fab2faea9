"""Who is a copy of whom."""

from __future__ import annotations

import numpy as np

from essp.catalog.check.duplicates import copies, near

Hashes = dict[str, tuple[list[int], list[int]]]


def drawn(count: int, seed: int) -> list[tuple[list[int], list[int]]]:
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**64, (count, 16), np.uint64)
    return [(row[:8].tolist(), row[8:].tolist()) for row in words]


def flipped(words: list[int], bits: int, rng: np.random.Generator) -> list[int]:
    """Each word with so many bits changed."""
    return [word ^ sum(1 << int(bit) for bit in rng.choice(64, bits, replace=False)) for word in words]


def test_copies_are_those_of_one_digest() -> None:
    assert copies({"b": "1", "a": "1", "c": "2", "d": "", "e": ""}) == [["a", "b"]]


def test_near_duplicates_are_found_among_many_others() -> None:
    rng = np.random.default_rng(3)
    hashes: Hashes = {f"v{number:04}": one for number, one in enumerate(drawn(2000, seed=1))}
    for number in range(40):
        shown, moved = hashes[f"v{number:04}"]
        hashes[f"w{number:04}"] = flipped(shown, 5, rng), flipped(moved, 11, rng)
    assert near(hashes) == [[f"v{number:04}", f"w{number:04}"] for number in range(40)]


def test_one_background_does_not_make_a_duplicate() -> None:
    (background, _), *others = drawn(30, seed=2)
    hashes: Hashes = {f"v{number}": (background, moved) for number, (_, moved) in enumerate(others)}
    assert near(hashes) == []
    assert near({**hashes, "still": (background, [])}) == [], "what does not move is like no video that does"
    assert near({"a": (background, []), "b": (background, [])}) == [["a", "b"]]


def test_who_is_like_one_of_a_group_is_in_it() -> None:
    rng = np.random.default_rng(7)
    (shown, moved), *_ = drawn(1, seed=4)
    hashes: Hashes = {"a": (shown, moved)}
    for before, name in zip("abc", "bcd", strict=True):
        hashes[name] = flipped(hashes[before][0], 4, rng), moved
    assert near(hashes) == [["a", "b", "c", "d"]]


def test_what_has_no_hash_is_like_nothing() -> None:
    assert near({"a": ([], []), "b": ([], [])}) == []
    assert near({}) == []
