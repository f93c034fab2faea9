"""How the build of a catalog has decoders read files (`essp catalog build --connect`).

    build   -> essp.seeds   a `DecodeSeed` with a `Probe`: some files, how to read them, and the key of the answer
    decoder -> cache        an `Answer` under this key, which the build takes and acks

Both read a file by the same code, in the same kind of child process (`probing.py`), so it does not matter who does.
A decoder that dies leaves its message to another one. A build that is killed leaves answers, which expire.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Sequence
from dataclasses import dataclass

from essp_common.pb.v1.messages_pb2 import DecodeSeed, Probe
from essp_engine.decoding.probing import BYTES, PROBE, SALVAGE, Outcome, ProbeOptions

TTL_S = 3600.0
"""How long an answer waits for its build."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a decoder found. Files without an outcome must be asked for again."""

    outcomes: Sequence[Outcome] = ()
    unavailable: str = ""
    """Why none of the files can be read now: a store that does not answer, or that the decoder does not know."""
    rejected: str = ""
    """`kind: reason` if the message could not be processed, because of one of its files."""

    def packed(self) -> bytes:
        """The value in the cache."""
        outcomes = [(each.uri, _in_text(each.facts), each.error) for each in self.outcomes]
        return json.dumps([outcomes, self.unavailable, self.rejected]).encode()

    @classmethod
    def unpacked(cls, value: bytes | bytearray | memoryview) -> Answer:
        """Parse a value of the cache. Raises `ValueError`."""
        outcomes, unavailable, rejected = json.loads(bytes(value))
        return cls([Outcome(uri, _as_bytes(facts), error) for uri, facts, error in outcomes], unavailable, rejected)


def request(job: str, key: str, consumer: str, uris: Sequence[str], options: ProbeOptions) -> DecodeSeed:
    """The message that asks for these files."""
    probe = Probe(
        uris=uris,
        quick=options.quick,
        salvage=options.probe == SALVAGE,
        timeout_s=options.timeout_s,
        key=key,
        consumer=consumer,
    )
    return DecodeSeed(job=job, probe=probe)


def options_of(probe: Probe) -> ProbeOptions:
    """How a decoder reads the files: as the build would, one after the other."""
    way = SALVAGE if probe.salvage else PROBE
    return ProbeOptions(1, probe.timeout_s, probe=way, sums=True, quick=probe.quick)


def _in_text(facts: dict[str, object]) -> dict[str, object]:
    return {name: b64encode(value).decode() if isinstance(value, bytes) else value for name, value in facts.items()}


def _as_bytes(facts: dict[str, object]) -> dict[str, object]:
    return {name: b64decode(str(value)) if name in BYTES else value for name, value in facts.items()}
