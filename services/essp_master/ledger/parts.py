"""The parts of a clip in the cache: its frames, and each stream made of them; and who acks which.

Mirrors what decoder and extractor put: part 0 is the clip's frames, read by the extractors of its streams and by
the consumers of `rgb` themselves; every other stream is a part of its own, read by that stream's consumers. Who has
yet to ack is a set of bits, since the ledger goes through this for every clip.
"""

from __future__ import annotations

from collections.abc import Mapping

CLIP = 0
"""The part that holds the clip's own frames."""


class ClipParts:
    """The parts of every clip of one job."""

    def __init__(self, features: Mapping[str, str], consumers: Mapping[str, str]) -> None:
        """`features`: stream -> feature. `consumers`: consumer -> stream."""
        self.consumers = tuple(consumers)
        self.streams = tuple(dict.fromkeys(s for s in consumers.values() if features[s] != "rgb"))
        """Stream of part 1, 2, ...: those that are extracted and read by somebody."""
        self.bit = {consumer: 1 << place for place, consumer in enumerate(self.consumers)}
        self._names: dict[int, tuple[str, ...]] = {}
        self.everyone = (1 << len(self.consumers)) - 1
        """The bits of all consumers, without extractors."""
        part_of_stream = {stream: number for number, stream in enumerate(self.streams, 1)}
        self.part = {consumer: part_of_stream.get(stream, CLIP) for consumer, stream in consumers.items()}
        self.part_of_stream = {stream: part_of_stream.get(stream, CLIP) for stream in consumers.values()}
        self.extractor = tuple(1 << len(self.consumers) + place for place in range(len(self.streams)))
        """The bit of the extractor of part 1, 2, ..."""
        self.ackers = [sum(self.extractor)] + [0] * len(self.streams)
        """The bits of those who ack each part."""
        for consumer, part in self.part.items():
            self.ackers[part] |= self.bit[consumer]

    def demand(self, consumers: int) -> int:
        """All who will ack a clip made for these consumers: themselves, and the extractors that serve them."""
        left = consumers
        for bit, ackers in zip(self.extractor, self.ackers[1:], strict=True):
            if ackers & consumers:
                left |= bit
        return left

    def complete(self, left: int, made: int) -> bool:
        """Whether every part that somebody in `left` waits for is among the parts in `made`."""
        return all(made >> part & 1 for part, ackers in enumerate(self.ackers) if ackers & left & self.everyone)

    def names(self, left: int) -> tuple[str, ...]:
        """The consumers in `left`."""
        left &= self.everyone
        names = self._names.get(left)
        if names is None:
            names = self._names[left] = tuple(consumer for consumer, bit in self.bit.items() if bit & left)
        return names
