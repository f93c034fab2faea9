"""The messages between parent and child.

    parent -> child   its configuration: JSON of `ChildConfig`
    child -> parent   `READY`
    parent -> child   a request: size of the shared memory, the slot of each clip in it, a `DecodeSeed`
    child -> parent   an answer, JSON: {"clips": [size | {"reason", "kind"}, ...], "frames": {what: count}} with one
                      entry per seed and the frame counts of `selection.Tally`; or {"reason", "kind"} if no seed of the
                      request can be decoded; or {"reason", "retry_after_s"} if trying again may help; or {"failed":
                      traceback, "kind"} for an unexpected error, which may be the fault of one seed, or of the child

A clip starts at the begin of its slot and is a value of the cache.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import lru_cache

from essp_common.errors import PermanentError
from essp_common.pb.v1.messages_pb2 import DecodeSeed, FrameCodec, Recipe, Seed, Snippet
from essp_common.runtime.shared_slots import Slot
from essp_engine.video.codec import max_encoded_bytes, raw_bytes
from essp_engine.video.colour import height_of
from essp_engine.video.geometry import frame_dtype, frame_shape
from essp_engine.video.joined import joined_bytes
from essp_engine.video.motion_layout import DTYPE, motion_shape

READY = b"ready"

_HEAD = struct.Struct("<QI")
_SLOT = struct.Struct("<QQ")

Shape = tuple[int, ...]
"""`(T, H, W, 3)` for RGB; `essp_engine/video/colour.py` has the others."""
Shapes = tuple[Shape, ...]
"""Those of a clip: of each of its views."""


@dataclass(frozen=True, slots=True)
class ChildConfig:
    """The configuration that a child receives once, at its start."""

    stores: tuple[str, ...]
    open_videos: int
    video_bytes: int
    frame_pixels: int
    address_bytes: int
    """Address space beyond the shared memory."""
    unit_s: float
    """Maximum time for a request. Twice that in CPU time ends a child whose parent died."""
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The environment with which the stores' clients log in; set when it is sent."""

    def packed(self) -> bytes:
        """The bytes to send."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def unpacked(cls, message: bytes) -> ChildConfig:
        """Parse received bytes."""
        fields = json.loads(message)
        return cls(**{**fields, "stores": tuple(fields["stores"])})


@dataclass(frozen=True, slots=True)
class Request:
    """One work unit."""

    memory_bytes: int
    slots: Sequence[Slot]
    unit: DecodeSeed

    def packed(self) -> bytes:
        """The bytes to send."""
        slots = b"".join(_SLOT.pack(slot.start, slot.size) for slot in self.slots)
        return _HEAD.pack(self.memory_bytes, len(self.slots)) + slots + self.unit.SerializeToString()

    @classmethod
    def unpacked(cls, message: bytes) -> Request:
        """Parse received bytes."""
        memory_bytes, count = _HEAD.unpack_from(message)
        end = _HEAD.size + count * _SLOT.size
        slots = [Slot(*slot) for slot in _SLOT.iter_unpack(message[_HEAD.size : end])]
        return cls(memory_bytes, slots, DecodeSeed.FromString(message[end:]))


def clip_shapes(unit: DecodeSeed) -> list[Shapes]:
    """For each seed, the shape of its frames, followed by those of each further view.

    Raises `PermanentError` for a seed without frames, or with frames that do not divide evenly into its snippets, for
    frame sizes that the recipe's colours do not support, and for views that do not match the recipe.
    """
    whole = (unit.video.height, unit.video.width)
    shapes = []
    for seed in unit.seeds:
        size = (seed.record.height, seed.record.width) if seed.HasField("record") else whole
        shape = frame_shape(unit.recipe.resize, *size)
        if not (all(shape) and seed.frame_count and (seed.stride or seed.offsets)):
            raise PermanentError(f"{unit.video.id}: a seed asks for no frames, or the video has no size")
        if seed.offsets:
            parts: tuple[Seed | Snippet, ...] = (seed, *seed.later)
            chosen = sum(len(part.offsets) for part in parts)
            if chosen != seed.frame_count:
                raise PermanentError(f"{unit.video.id}: a seed names {chosen} of its {seed.frame_count} frames")
        elif seed.frame_count % (snippets := 1 + len(seed.later)):
            raise PermanentError(
                f"{unit.video.id}: {seed.frame_count} frames do not divide into {snippets} equal snippets"
            )
        shapes.append(((seed.frame_count, *shape), *_further_shapes(unit, seed)))
    return shapes


def _further_shapes(unit: DecodeSeed, seed: Seed) -> Iterator[Shape]:
    views = unit.recipe.views[1:]
    if not len(unit.further) == len(seed.views) == len(views):
        raise PermanentError(f"{unit.video.id}: a seed has other views than its recipe")
    for video, view, shown in zip(unit.further, views, seed.views, strict=True):
        shape = frame_shape(view.resize, video.height, video.width)
        if not (all(shape) and shown.frame_count) or len(shown.offsets) != shown.frame_count:
            raise PermanentError(f"{video.id}: a seed asks for no frames, or the video has no size")
        yield shown.frame_count, *shape


def clip_dtypes(recipe: Recipe) -> tuple[str, ...]:
    """The type of the frames of a clip, followed by those of each further view."""
    return tuple(frame_dtype(resize) for resize in (recipe.resize, *(view.resize for view in recipe.views[1:])))


def of_one_seed(unit: DecodeSeed, seed: Seed) -> DecodeSeed:
    """A work unit with only this seed."""
    single = DecodeSeed()
    single.CopyFrom(unit)
    del single.seeds[:]
    single.seeds.append(seed)
    return single


def is_of_records(unit: DecodeSeed) -> bool:
    """Whether the clips are records."""
    return bool(unit.seeds) and unit.seeds[0].HasField("record")


def output_size_of(frames: Shape) -> tuple[int, int]:
    """Height and width of frames of this shape."""
    return (height_of(frames) if len(frames) == 3 else frames[1]), frames[2]


def motion_of(frames: Shape) -> Shape:
    """The shape of the motion of frames of this shape."""
    return frames[0], *motion_shape(*output_size_of(frames))


def is_raw(codec: FrameCodec) -> bool:
    """Whether clips are stored uncompressed."""
    return codec.name in ("", "raw")


def slot_bytes(shapes: Shapes, recipe: Recipe) -> int:
    """Bytes to reserve for a clip's value. Noise may be larger compressed than raw."""
    return _slot_bytes(shapes, clip_dtypes(recipe), recipe.codec.name, recipe.motion)


@lru_cache(maxsize=1024)
def _slot_bytes(shapes: Shapes, dtypes: Sequence[str], codec: str, motion: bool) -> int:
    sizes = [max_encoded_bytes(shape, dtype, codec) for shape, dtype in zip(shapes, dtypes, strict=True)]
    if motion:
        sizes.append(raw_bytes(motion_of(shapes[0]), DTYPE))
    return sizes[0] if len(sizes) == 1 else joined_bytes(sizes)
