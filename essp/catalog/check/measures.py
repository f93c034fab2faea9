"""The result of reading one file for a check. Plain numbers, lists and texts, for a pipe and for a journal.

Pictures are small JPEG files in base64, ready for the page. They are most of the bytes, so a check keeps them in its
journal and not in memory.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Literal

StretchKind = Literal["cut", "black", "frozen"]


@dataclass(frozen=True, slots=True)
class Stretch:
    """Frames of a file that have a fault."""

    kind: StretchKind
    first: int
    last: int
    """Both inclusive. For a cut, `first` is the last frame of the scene before it and `last` the first frame of the
    next."""
    pictures: tuple[str, ...] = ()
    """Some of its frames, as JPEG in base64."""


@dataclass(frozen=True, slots=True)
class Measures:
    """The measures of one file."""

    decoded: bool = False
    """False: only packets were read, so there are no stretches or hashes."""
    packets: int = 0
    frames: int = 0
    """Frames that a plain decode of the file gives; 0 if it was not decoded."""
    declared: int = 0
    """Frames that the container declares; 0: it declares no number."""
    damaged: int = 0
    """Packets that the decoder rejects, and frames that it flags as corrupt."""
    first_damaged: int = -1
    """Number of the first damaged frame."""
    keyframes: int = 0
    """Packets marked as keyframes."""
    notes: str = ""
    """What its frames show, in the form of `VideoRow.notes`."""
    pixel_aspect: float = 1.0
    """Width to height of a stored pixel, as players display it."""
    digest: str = ""
    """Digest of the encoded video: equal for copies, even in another container."""
    shown: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    """Perceptual hashes (`signals.hashes`)."""
    stretches: tuple[Stretch, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Kind -> number of stretches that exceed the limit for one file."""
    strip: tuple[str, ...] = ()
    """A few frames from all over the video, as JPEG in base64."""
    error: str | None = None
    """`kind: reason` if the file could not be read at all."""

    def bare(self) -> Measures:
        """The same measures without the pictures."""
        return replace(self, strip=(), stretches=tuple(replace(found, pictures=()) for found in self.stretches))


@dataclass(frozen=True, slots=True)
class Checked:
    """The version of a file that was read, and its measures."""

    uri: str
    size_bytes: int
    etag: str
    measures: Measures


def measures_of(facts: Mapping[str, Any]) -> Measures:
    """The measures from their JSON form in a pipe or a journal."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    stretches = (Stretch(**{**found, "pictures": tuple(found["pictures"])}) for found in values.pop("stretches", ()))
    return Measures(**values, stretches=tuple(stretches))


def packed(checked: Sequence[Checked]) -> bytes:
    """Encode a part of a journal."""
    return gzip.compress("\n".join(json.dumps(asdict(one)) for one in checked).encode(), compresslevel=3)


def unpacked(part: bytes) -> list[Checked]:
    """Decode a part of a journal. Raises `ValueError` for anything else."""
    try:
        lines = gzip.decompress(part).decode().splitlines()
        found = [json.loads(line) for line in lines]
        return [Checked(**{**values, "measures": measures_of(values["measures"])}) for values in found]
    except (OSError, EOFError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a part of a check's journal: {error}") from error
