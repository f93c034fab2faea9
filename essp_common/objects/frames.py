"""Folders of frames as objects: pictures, one for each frame, are read as the video file that they would be.

    videos/run_01/img_*.jpg@25      the JPEG pictures img_00001.jpg, img_00002.jpg, ... at 25 frames per second

The pictures of a series have the same text before their first digit, and are in the order of their numbers; it does
not matter with how many digits these are written, nor whether some are left out. JPEG (`*.jpg`, which also means
`.jpeg` and `.JPG`) and PNG are read.

The file is QuickTime: an index and then the files of the pictures, one after the other, unchanged. It is never written:
its index is computed from the sizes of the pictures, and the rest is read from their files. So all that reads videos
reads frames, with the same guarantees; each frame is a keyframe. The decoder is FFmpeg's, as for any other video.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import struct
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from typing import BinaryIO

from essp_common.errors import BadVideo, ConfigError, NotFound
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.objects.read_only import Derived
from essp_common.objects.seekable import SeekableFile

_log = logging.getLogger(__name__)

FRAME_RATE = 25.0
"""Frames per second, if nothing says another rate."""
_SUFFIXES = {".jpg": "jpg", ".jpeg": "jpg", ".jpe": "jpg", ".png": "png"}
_TAGS = {"jpg": b"jpeg", "png": b"png "}
_KEY = re.compile(r"(?:(?P<folder>.+)/)?(?P<begin>[^/*]*)\*\.(?P<kind>jpg|png)@(?P<rate>[0-9]+(?:\.[0-9]+)?)")
_PATTERN = re.compile(
    r"(?:(?P<folder>.+)/)?(?P<begin>[^/*%]*)(?:\*|%0?[0-9]*d)\.(?P<kind>jpe?g|png)(?:@(?P<rate>[0-9]+(?:\.[0-9]+)?))?",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"([0-9]+)")
_BEFORE_DIGITS = re.compile(r"[^0-9]*")
_SMALLEST_RATE, _LARGEST_RATE = 0.001, 10_000
_LARGEST_SIDE = 2**16 - 1
_JPEG_SCAN, _JPEG_END, _PNG_END = b"\xff\xda", b"\xff\xd9", b"IEND\xaeB`\x82"
_TAIL_BYTES = 1024
_HELD = 16
"""Pictures that an open file keeps in memory, so that a demuxer can go back a little."""
_BUFFER_BYTES = 2**16


@dataclass(frozen=True, slots=True)
class Series:
    """The name of a series of pictures. Raises `ConfigError` for a rate that no video has."""

    folder: str
    """Key of the folder; empty: the root of the store."""
    begin: str
    """What the names have before their first digit."""
    kind: str
    """`jpg` or `png`."""
    rate: float = FRAME_RATE

    def __post_init__(self) -> None:
        checked_rate(self.rate, "fps")

    @property
    def key(self) -> str:
        """The key of the series as one video."""
        name = f"{self.begin}*.{self.kind}@{self.rate:.10g}"
        return f"{self.folder}/{name}" if self.folder else name

    @classmethod
    def of_key(cls, key: str) -> Series | None:
        """The inverse of `key`; None if the key does not belong to a series."""
        found = _KEY.fullmatch(key)
        if found is None or not _is_rate(float(found["rate"])):
            return None
        return cls(found["folder"] or "", found["begin"], found["kind"], float(found["rate"]))

    @classmethod
    def of_pattern(cls, pattern: str, rate: float = FRAME_RATE) -> Series | None:
        """The series that a user names, as in `run/img_%05d.jpg`, `run/img_*.jpg` or `run/img_*.jpg@30`; None for
        another text."""
        found = _PATTERN.fullmatch(pattern)
        if found is None:
            return None
        kind = _SUFFIXES[f".{found['kind'].lower()}"]
        return cls(found["folder"] or "", found["begin"], kind, float(found["rate"] or rate))

    @classmethod
    def of_picture(cls, key: str, rate: float = FRAME_RATE) -> Series | None:
        """The series that a file belongs to; None if it is not a picture by name."""
        folder, _, name = key.rpartition("/")
        stem, dot, suffix = name.rpartition(".")
        kind = _SUFFIXES.get(f"{dot}{suffix.lower()}")
        return None if kind is None else cls(folder, _begin(stem), kind, rate)


def is_series(key: str) -> bool:
    """Whether a key belongs to a series of pictures."""
    return _KEY.fullmatch(key) is not None


def checked_rate(rate: float, field: str) -> float:
    """The frame rate of pictures. Raises `ConfigError`."""
    if not _is_rate(rate):
        raise ConfigError(
            f"must be from {_SMALLEST_RATE} to {_LARGEST_RATE} frames per second, got {rate:g}",
            field=field,
            code="range",
        )
    return rate


def _is_rate(rate: float) -> bool:
    return _SMALLEST_RATE <= rate <= _LARGEST_RATE


def ordered(pictures: Iterable[ObjectInfo]) -> list[ObjectInfo]:
    """Pictures in the order of the numbers in their names."""
    return sorted(pictures, key=lambda info: _natural(info.key.rpartition("/")[2]))


def as_one(series: Series, pictures: Sequence[ObjectInfo]) -> ObjectInfo:
    """What is known about the video that these pictures, in order, are."""
    digest = hashlib.blake2b(digest_size=16)
    for info in pictures:
        digest.update(f"{info.key.rpartition('/')[2]} {info.size_bytes} {info.etag}\n".encode())
    size = _header_bytes(len(pictures)) + sum(info.size_bytes for info in pictures)
    return ObjectInfo(series.key, size, digest.hexdigest())


class FrameFolders(Derived):
    """An `ObjectStore` of the series of pictures in a store."""

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Return a range of the video file."""
        with self.open(key) as file:
            file.seek(start)
            return file.read(-1 if length is None else length)

    def head(self, key: str) -> ObjectInfo:
        """Return its size; its ETag changes whenever a picture does, or one comes or goes."""
        series = _series(key)
        return as_one(series, self._pictures(series))

    def open(self, key: str) -> BinaryIO:
        """Return the video file."""
        series = _series(key)
        return io.BufferedReader(_Frames(self._store, series, self._pictures(series)), _BUFFER_BYTES)

    def unwritable(self) -> str:
        """Return the reason: frames are read-only."""
        return "folders of frames are only read"

    def below(self, folder: str) -> FrameFolders:
        """Return the store for a folder of series."""
        return FrameFolders(self._store.below(folder))

    def _pictures(self, series: Series) -> Sequence[ObjectInfo]:
        """The pictures of a series, in order. Raises `NotFound`."""
        begin = f"{series.folder}/{series.begin}" if series.folder else series.begin
        same = (info for info in self._store.list(begin) if Series.of_picture(info.key, series.rate) == series)
        if not (found := ordered(same)):
            raise NotFound(f"there is no picture {self.uri(series.key)}")
        return found


class _Frames(SeekableFile):
    """The video file of a series of pictures."""

    def __init__(self, store: ObjectStore, series: Series, pictures: Sequence[ObjectInfo]) -> None:
        self._store = store
        self._pictures = pictures
        self._held: OrderedDict[int, bytes] = OrderedDict()
        sizes = [info.size_bytes for info in pictures]
        self._edges = list(accumulate(sizes, initial=_header_bytes(len(sizes))))
        """Where each picture begins, and the end of the last one."""
        super().__init__(self._edges[-1])
        self._header = b""
        self._series = series
        self._sizes = sizes

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        if self._position >= self._size_bytes or not len(buffer):
            return 0
        number = bisect_right(self._edges, self._position) - 1
        if number < 0:
            found = self._index()[self._position : self._position + len(buffer)]
        else:
            at = self._position - self._edges[number]
            found = self._picture(number)[at : at + len(buffer)]
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)

    def _index(self) -> bytes:
        if not self._header:
            size = _picture_size(self._picture(0))
            if max(size) > _LARGEST_SIDE:
                raise BadVideo(f"a frame has {size[0]}x{size[1]} pixels; {_LARGEST_SIDE} a side are read", "limit")
            self._header = _header(self._series, self._sizes, size)
        return self._header

    def _picture(self, number: int) -> bytes:
        """The file of a picture. Raises `BadVideo` if it has changed."""
        if number in self._held:
            self._held.move_to_end(number)
            return self._held[number]
        info = self._pictures[number]
        try:
            data = self._store.get(info.key)
        except NotFound as error:
            raise BadVideo(f"{info.key} is not there any more", "changed") from error
        if len(data) != info.size_bytes:
            raise BadVideo(f"{info.key} has changed; build the catalog again", "changed")
        if not _is_whole(data, self._series.kind):
            _log.warning("%s is cut off, so this frame is damaged", self._store.uri(info.key))
            data = bytes(len(data))  # FFmpeg would fill up what is missing, and say nothing
        self._held[number] = data
        while len(self._held) > _HELD:
            self._held.popitem(last=False)
        return data


def _is_whole(data: bytes, kind: str) -> bool:
    """Whether the file of a picture is complete: its end mark follows the last beginning of a picture in it, which may
    be after a thumbnail."""
    if kind == "png":
        return _PNG_END in data[-_TAIL_BYTES:]
    return data.rfind(_JPEG_END) > data.rfind(_JPEG_SCAN)


def _series(key: str) -> Series:
    series = Series.of_key(key)
    if series is None:
        raise NotFound(f"{key!r} is not a series of pictures")
    return series


def _begin(stem: str) -> str:
    """What a name has before its first digit; empty if it has no digit."""
    found = _BEFORE_DIGITS.match(stem)
    begin = found[0] if found else ""
    return "" if begin == stem else begin


def _natural(name: str) -> list[tuple[int, int, str]]:
    """Sorts names by their numbers: `img_9.jpg` before `img_10.jpg`."""
    return [(1, int(part), part) if part.isdecimal() else (0, 0, part) for part in _DIGITS.split(name)]


# --- the index ---


def _box(name: bytes, *content: bytes) -> bytes:
    data = b"".join(content)
    return struct.pack(">I4s", 8 + len(data), name) + data


def _header(series: Series, sizes: Sequence[int], size: tuple[int, int]) -> bytes:
    """Everything before the pictures (QuickTime File Format). `size`: width and height."""
    width, height = size
    rate = Fraction(series.rate).limit_denominator(1001)
    scale, step, count = rate.numerator, rate.denominator, len(sizes)
    length = count * step
    unity = struct.pack(">9I", 1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    start = _header_bytes(count)
    description = struct.pack(
        ">6xHHH4sIIHHIIIH32sHh",
        *(1, 0, 0, b"ESSP", 0, 512, width, height, 72 << 16, 72 << 16, 0, 1, b"", 24, -1),
    )
    table = _box(
        b"stbl",
        _box(b"stsd", struct.pack(">II", 0, 1), _box(_TAGS[series.kind], description)),
        _box(b"stts", struct.pack(">IIII", 0, 1, count, step)),
        _box(b"stsc", struct.pack(">IIIII", 0, 1, 1, count, 1)),
        _box(b"stsz", struct.pack(f">III{count}I", 0, 0, count, *sizes)),
        _box(b"co64", struct.pack(">IIQ", 0, 1, start)),
    )
    references = _box(b"dinf", _box(b"dref", struct.pack(">II", 0, 1), _box(b"url ", struct.pack(">I", 1))))
    media = _box(
        b"mdia",
        _box(b"mdhd", struct.pack(">IIIIIHH", 0, 0, 0, scale, length, 0, 0)),
        _box(b"hdlr", struct.pack(">I4s4sIII", 0, b"mhlr", b"vide", 0, 0, 0), b"\0"),
        _box(b"minf", _box(b"vmhd", struct.pack(">IHHHH", 1, 0, 0, 0, 0)), references, table),
    )
    track = _box(
        b"tkhd",
        struct.pack(">IIIIII8xHHHH", 3, 0, 0, 1, 0, length, 0, 0, 0, 0),
        unity,
        struct.pack(">II", width << 16, height << 16),
    )
    movie = _box(
        b"moov",
        _box(b"mvhd", struct.pack(">IIIIIIH10x", 0, 0, 0, scale, length, 1 << 16, 256), unity, struct.pack(">24xI", 2)),
        _box(b"trak", track, media),
    )
    data = struct.pack(">I4sQ", 1, b"mdat", 16 + sum(sizes))
    return _box(b"ftyp", b"qt  ", struct.pack(">I", 512), b"qt  ") + movie + data


def _header_bytes(count: int) -> int:
    """The length of the header of this many pictures."""
    return _FIXED_BYTES + 4 * count


_FIXED_BYTES = 0
_FIXED_BYTES = len(_header(Series("", "", "jpg"), [], (0, 0)))


def _picture_size(data: bytes) -> tuple[int, int]:
    """Width and height that the header of a JPEG or PNG file says. Raises `BadVideo`."""
    if data.startswith(b"\x89PNG") and len(data) >= 24:
        width, height = struct.unpack(">II", data[16:24])
        return width, height
    at = 2
    while data.startswith(b"\xff\xd8") and at + 9 < len(data) and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
    raise BadVideo("the first frame is not a JPEG or PNG picture, or it is damaged")
