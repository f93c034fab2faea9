"""The parts of a clip in the cache: its frames, and each stream computed from them; and which consumers acknowledge
which part.

They match what decoder and extractor store. Part 0 is the clip's frames, which are read by the extractors of its
streams and by the consumers of `rgb`. Every other stream is a separate part, which that stream's consumers read. Sets
of readers are bits of an integer, because the ledger computes with them for every clip.
"""

from __future__ import annotations

from collections.abc import Mapping

CLIP = 0
"""The part with the clip's own frames."""


class ClipParts:
    """The parts of every clip of one job."""

    def __init__(self, features: Mapping[str, str], consumers: Mapping[str, str]) -> None:
        """`features`: stream -> feature. `consumers`: consumer -> stream."""
        self.consumers = tuple(consumers)
        self.streams = tuple(dict.fromkeys(s for s in consumers.values() if features[s] != "rgb"))
        """The stream of part 1, 2, ...: those that are extracted and have a consumer."""
        self.bit = {consumer: 1 << number for number, consumer in enumerate(self.consumers)}
        self._names: dict[int, tuple[str, ...]] = {}
        self.everyone = (1 << len(self.consumers)) - 1
        """The bits of all consumers, without extractors."""
        part_of_stream = {stream: number for number, stream in enumerate(self.streams, 1)}
        self.part = {consumer: part_of_stream.get(stream, CLIP) for consumer, stream in consumers.items()}
        self.part_of_stream = {stream: part_of_stream.get(stream, CLIP) for stream in consumers.values()}
        self.extractor = tuple(1 << len(self.consumers) + number for number in range(len(self.streams)))
        """The bit of the extractor of part 1, 2, ..."""
        self.readers = len(self.consumers) + len(self.streams)
        """The number of consumers and extractors, and so of bits."""
        self.ackers = [sum(self.extractor)] + [0] * len(self.streams)
        """For each part, the bits of its readers, each of which acknowledges it."""
        for consumer, part in self.part.items():
            self.ackers[part] |= self.bit[consumer]

    def demand(self, consumers: int) -> int:
        """Everyone who will acknowledge a clip made for these consumers: the consumers, and the extractors that serve
        them."""
        left = consumers
        for bit, ackers in zip(self.extractor, self.ackers[1:], strict=True):
            if ackers & consumers:
                left |= bit
        return left

    def complete(self, left: int, made: int) -> bool:
        """Whether every part that a consumer in `left` waits for is among the parts in `made`."""
        return all(made >> part & 1 for part, ackers in enumerate(self.ackers) if ackers & left & self.everyone)

    def names(self, left: int) -> tuple[str, ...]:
        """The consumers in `left`."""
        left &= self.everyone
        names = self._names.get(left)
        if names is None:
            names = self._names[left] = tuple(consumer for consumer, bit in self.bit.items() if bit & left)
        return names
