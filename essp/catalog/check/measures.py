"""What reading one file for a check came to. Plain numbers, lists and texts: it crosses a pipe and lies in a journal.

Pictures are small JPEG files in base64, as a page holds them. They are most of the bytes, so a check keeps them in its
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
    """Frames of a file that something is the matter with."""

    kind: StretchKind
    first: int
    last: int
    """Inclusive. Of a cut, `first` is the last frame of the scene before and `last` the first one of the next."""
    pictures: tuple[str, ...] = ()
    """Frames of it, as JPEG in base64."""


@dataclass(frozen=True, slots=True)
class Measures:
    """Of one file."""

    decoded: bool = False
    """False: its packets were read, and no frame was decoded. There are no stretches and hashes then."""
    packets: int = 0
    frames: int = 0
    """Frames that a plain decode of the file gives; 0 if it was not decoded."""
    declared: int = 0
    """Frames that the container declares; 0: it does not say."""
    damaged: int = 0
    """Packets that the decoder rejects, and frames that it flags as corrupt."""
    first_damaged: int = -1
    """Number of the first of these frames."""
    keyframes: int = 0
    """Packets that are marked as keyframes."""
    notes: str = ""
    """What was seen in its frames, as `VideoRow.notes` tells it."""
    pixel_aspect: float = 1.0
    """Width to height of a stored pixel, as players show it."""
    digest: str = ""
    """Of the encoded video: equal for copies, also in another container."""
    shown: tuple[int, ...] = ()
    moved: tuple[int, ...] = ()
    """Perceptual hashes (`signals.hashes`)."""
    stretches: tuple[Stretch, ...] = ()
    left_out: Mapping[str, int] = field(default_factory=dict)
    """Kind -> stretches beyond the most that are kept of one file."""
    strip: tuple[str, ...] = ()
    """A few frames from all over the video, as JPEG in base64."""
    error: str | None = None
    """`kind: reason` where the file could not be read at all."""

    def bare(self) -> Measures:
        """The same without its pictures."""
        return replace(self, strip=(), stretches=tuple(replace(found, pictures=()) for found in self.stretches))


@dataclass(frozen=True, slots=True)
class Checked:
    """A file, in the version that was read, and its measures."""

    uri: str
    size_bytes: int
    etag: str
    measures: Measures


def measures_of(facts: Mapping[str, Any]) -> Measures:
    """The measures that crossed a pipe, or lay in a journal, as JSON."""
    values: dict[str, Any] = {name: tuple(value) if isinstance(value, list) else value for name, value in facts.items()}
    stretches = (Stretch(**{**found, "pictures": tuple(found["pictures"])}) for found in values.pop("stretches", ()))
    return Measures(**values, stretches=tuple(stretches))


def packed(checked: Sequence[Checked]) -> bytes:
    """A part of a journal."""
    return gzip.compress("\n".join(json.dumps(asdict(one)) for one in checked).encode(), compresslevel=3)


def unpacked(part: bytes) -> list[Checked]:
    """The content of a part. Raises `ValueError` for anything else."""
    try:
        lines = gzip.decompress(part).decode().splitlines()
        found = [json.loads(line) for line in lines]
        return [Checked(**{**values, "measures": measures_of(values["measures"])}) for values in found]
    except (OSError, EOFError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"not a part of a check's journal: {error}") from error
