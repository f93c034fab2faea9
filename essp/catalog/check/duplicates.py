"""Which files have the same content: copies by the digest of the encoded data, near-duplicates by perceptual hashes.

Two videos are near-duplicates if the hashes of their frames and the hashes of their motion differ in few bits. Another
size, codec, quality or colour changes few bits. Two scenes with the same background have similar frames but different
motion. Not all pairs are compared: candidates share 16 bits, so a hundred thousand videos take seconds. A pair that
differs in a tenth of its bits is a candidate with a probability of more than 99.9 %.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from essp.catalog.check.signals import HASHED

SHOWN_BITS = 6.0
MOVED_BITS = 14.0
"""The most bits, of 64, in which hashes of near-duplicates differ, averaged over frames. Unrelated hashes differ in
32."""
_NEIGHBOURS = 48
"""The number of videos with the same 16 bits that each video is compared with."""


def copies(digests: Mapping[str, str]) -> list[list[str]]:
    """Groups of at least two names with the same digest, sorted."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name, digest in sorted(digests.items()):
        alike[digest].append(name)
    return sorted(names for digest, names in alike.items() if digest and len(names) > 1)


def near(hashes: Mapping[str, tuple[Sequence[int], Sequence[int]]]) -> list[list[str]]:
    """Names of near-duplicates in groups: a name joins a group if it resembles one of its members. `hashes`: the
    results of `signals.hashes`."""
    names = sorted(name for name, (shown, _) in hashes.items() if len(shown) == HASHED)
    if len(names) < 2:
        return []
    shown = np.array([hashes[name][0] for name in names], np.uint64)
    moving = np.array([len(hashes[name][1]) == HASHED for name in names])
    moved = np.array(
        [hashes[name][1] if is_moving else [0] * HASHED for name, is_moving in zip(names, moving, strict=True)],
        np.uint64,
    )
    pairs: set[tuple[int, int]] = set()
    for left, right in _candidates(np.concatenate([shown, moved], axis=1), moving):
        alike = (_apart(shown, left, right) <= SHOWN_BITS) & (moving[left] == moving[right])
        alike &= _apart(moved, left, right) <= MOVED_BITS
        pairs.update(zip(left[alike].tolist(), right[alike].tolist(), strict=True))
    return [[names[place] for place in group] for group in _joined(len(names), pairs)]


def _apart(hashes: NDArray[np.uint64], left: NDArray[np.int64], right: NDArray[np.int64]) -> NDArray[np.float64]:
    """The number of bits in which the hashes of each pair differ, averaged over frames."""
    found: NDArray[np.float64] = np.bitwise_count(hashes[left] ^ hashes[right]).mean(axis=1)
    return found


def _candidates(
    hashes: NDArray[np.uint64], moving: NDArray[np.bool_]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Pairs of indices that share 16 bits. The flat columns of motionless videos do not make pairs."""
    pieces = np.ascontiguousarray(hashes).view(np.uint16)
    half = pieces.shape[1] // 2
    for column in range(pieces.shape[1]):
        places = np.arange(len(pieces)) if column < half else np.flatnonzero(moving)
        order = places[np.argsort(pieces[places, column], kind="stable")]
        keys = pieces[order, column]
        for distance in range(1, min(_NEIGHBOURS, len(order) - 1) + 1):
            same = np.flatnonzero(keys[:-distance] == keys[distance:])
            if not len(same):
                break
            yield order[same], order[same + distance]


def _joined(count: int, pairs: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The groups of at least two that the pairs form, sorted."""
    leader = list(range(count))

    def led(place: int) -> int:
        while leader[place] != place:
            leader[place] = place = leader[leader[place]]
        return place

    for left, right in pairs:
        first, second = sorted((led(left), led(right)))
        leader[second] = first
    groups: defaultdict[int, list[int]] = defaultdict(list)
    for place in range(count):
        groups[led(place)].append(place)
    return [group for group in groups.values() if len(group) > 1]
