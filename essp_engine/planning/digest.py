"""A digest of consumed clips: two consumers with equal digests have seen exactly the same clips.

The digest of some clips is the sum, modulo 2^128, of a BLAKE2b hash of each clip's identity. So it does not depend on
which rank saw which clip, and ranks add up their digests; but a clip that is left out, seen twice, or differs from the
plan changes it. It does not cover the order of clips, which `ordered.py` guarantees.

A trainer stores it with its weights; `essp audit` recomputes it from the plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from essp_common.pb.v1.messages_pb2 import ClipRef

_MODULUS = 2**128


def clip_digest(phase_index: int, index: int, attempt: int, video: str, first_frame: int) -> int:
    """The digest of one clip; `phase_index`: in `JobSnapshot.phases`."""
    identity = f"{phase_index} {index} {attempt} {first_frame} {video}".encode()
    return int.from_bytes(blake2b(identity, digest_size=16).digest(), "little")


def ref_digest(phase_index: int, clip: ClipRef) -> int:
    """The digest of the clip in a message."""
    return clip_digest(phase_index, clip.index, clip.attempt, clip.video_id, clip.first_frame)


def joined(digests: Iterable[int]) -> int:
    """The combined digest of clips with these digests."""
    return sum(digests) % _MODULUS


def as_text(digest: int) -> str:
    """32 hexadecimal digits."""
    return f"{digest:032x}"


def from_text(text: str) -> int:
    """The inverse of `as_text`; an empty text is the digest of no clips."""
    return int(text or "0", 16)
