"""Very many objects in little memory: nothing is lost, and sorting is that of Python."""

from __future__ import annotations

import random
from dataclasses import replace
from operator import attrgetter

import pytest

from essp.catalog import spool as spool_module
from essp.catalog.entry import Entry, Segment
from essp.catalog.spool import Spool, in_order, joined

URI = attrgetter("uri")


def entries(count: int) -> list[Entry]:
    """Entries in the order of their URIs."""
    return [
        Entry(
            f"run/{number:06}.mp4", f"s3://b/run/{number:06}.mp4", "run", "train", number, f"{number * 7919:032x}",
            Segment(number, None, "s") if number % 3 else None, labels=("run",), meta={"take": number},
        )
        for number in range(count)
    ]  # fmt: skip


def test_a_spool_gives_what_it_got_from_few_bytes() -> None:
    """An entry takes half a kilobyte as an object."""
    given = entries(5000)
    spool = Spool(Entry, given)
    assert list(spool) == given
    assert len(spool) == 5000
    assert sum(map(len, spool._parts)) < 40 * len(given)
    assert list(spool.drained()) == given
    assert not spool
    assert list(spool) == []


@pytest.mark.parametrize("order", ["rising", "nearly", "falling", "random"])
def test_items_are_sorted_as_a_list_is(monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    """Equal keys keep their order, also among those that were sorted apart from each other."""
    for name, number in (("_OF_A_PART", 4), ("_SORTED_AT_ONCE", 8), ("_MERGED_AT_ONCE", 3)):
        monkeypatch.setattr(spool_module, name, number)
    given = [replace(entry, uri=entry.uri[:-5]) for entry in entries(500)]
    if order == "falling":
        given.reverse()
    elif order != "rising":
        reach = 30 if order == "nearly" else len(given)
        rng = random.Random(0)
        given = [entry for _, entry in sorted(enumerate(given), key=lambda each: each[0] + rng.uniform(0, reach))]
    assert list(in_order(Entry, given, URI)) == sorted(given, key=URI)


def test_streams_are_joined_by_their_keys() -> None:
    one, two, three = (replace(entry, uri=uri) for entry, uri in zip(entries(3), "aab", strict=True))
    assert list(joined(URI, [one, two], [], [three])) == [[[one, two], [], []], [[], [], [three]]]
    assert list(joined(URI, [one], [two, three])) == [[[one], [two]], [[], [three]]]
