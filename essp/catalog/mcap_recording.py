"""One MCAP recording: its cameras as video files, and the numbers in its other topics at the times of their frames.

`read` runs in a child process (`essp_engine.decoding.probing`), because what it reads is not trusted. The library
`mcap` reads the file, and the decoders of Foxglove and ROS 2 its messages.

The clock is `log_time`, the only one that all topics have. At a frame, a topic has the values of its last message
before it, and NaN before its first one.
"""

from __future__ import annotations

import json
import struct
import tempfile
from array import array
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from google.protobuf.message import DecodeError
from mcap.decoder import DecoderFactory
from mcap.exceptions import McapError
from mcap.reader import McapReader, make_reader
from mcap.records import Channel, Schema
from mcap_protobuf.decoder import DecoderFactory as ProtobufDecoder
from mcap_ros2.decoder import DecoderFactory as Ros2Decoder
from numpy.typing import NDArray
from zstandard import ZstdError

from essp_common.catalog.targets import Targets, pack
from essp_common.errors import BadVideo
from essp_engine.video.remux import CODECS, RawPicture, copy_packets, store_pictures

_VIDEO = ("foxglove.CompressedVideo", "foxglove_msgs/msg/CompressedVideo")
_PICTURE = (
    *("foxglove.CompressedImage", "foxglove_msgs/msg/CompressedImage"),
    "sensor_msgs/msg/CompressedImage",
)
_RAW = ("foxglove.RawImage", "foxglove_msgs/msg/RawImage", "sensor_msgs/msg/Image")
_CAMERAS = (*_VIDEO, *_PICTURE, *_RAW)
_DEPTH = "compressedDepth"
"""In the format of a PNG that follows 12 bytes of the camera's settings."""
_DEPTH_HEAD_BYTES = 12
_MILLIMETRES, _INVERSE = "16UC1", "32FC1"
"""Pictures of distances. ROS compresses the second kind as 16 bits of `a / distance + b`."""
_SIGNATURES = {b"\xff\xd8\xff": "jpeg", b"\x89PNG": "png"}
_NAMES = {"hevc": "h265"}
_CLOCKS = frozenset({"header", "timestamp", "stamp"})
"""Fields that say when and where a message was made, which are not learned."""
_MOST_VALUES = 4096
"""Numbers of a field; a larger one is a map or a scan and no state."""
_NS_PER_US = 1000
_DAMAGED = (McapError, DecodeError, ZstdError, struct.error, RuntimeError, ValueError)
"""What the libraries raise for a damaged file; lz4 raises `RuntimeError`."""


@dataclass(frozen=True, slots=True)
class Camera:
    """A camera of a recording, and the files with its frames and series in `Recording.folder`."""

    topic: str
    video: str
    series: str
    begins_s: float
    """When its first frame was recorded, from the beginning of the recording."""
    depth: bool
    """Whether its frames are distances."""


@dataclass(frozen=True, slots=True)
class Recording:
    """What was found in a file."""

    folder: str
    cameras: tuple[Camera, ...]
    meta: Mapping[str, str]
    """The metadata of the recording."""
    notes: tuple[str, ...]
    """What was left out."""


def read(file: str | BinaryIO, folder: str) -> Recording:
    """Write the cameras of a recording into a new folder below `folder`.

    Raises `BadVideo` for a file that is damaged, or without a camera.
    """
    if isinstance(file, str):
        with open(file, "rb") as opened:
            return read(opened, folder)
    try:
        return _Reading(file, Path(tempfile.mkdtemp(dir=folder))).recording()
    except _DAMAGED as error:
        hint = "`mcap recover` of the MCAP command line saves what is whole"
        raise BadVideo(f"{type(error).__name__}: {error}; {hint}", "damaged") from error


class _Json(DecoderFactory):
    def decoder_for(self, message_encoding: str, schema: Schema | None) -> Callable[[bytes], Any] | None:
        return json.loads if message_encoding == "json" else None


class _Reading:
    """A file while it is read."""

    def __init__(self, file: BinaryIO, folder: Path) -> None:
        self._file, self._folder = file, folder
        self._factories = (_Json(), ProtobufDecoder(), Ros2Decoder())
        self._decoders: dict[int, Callable[[bytes], Any] | None] = {}
        self._notes: list[str] = []
        self._begin_ns = 0

    def recording(self) -> Recording:
        """Read the file once for the series, and once for each camera."""
        stamps, states = self._states()
        if not stamps:
            raise BadVideo(f"no topic has pictures; known are messages of {', '.join(_CAMERAS)}", "not_video")
        cameras = [
            self._camera(number, topic, stamps[topic], states[topic]) for number, topic in enumerate(sorted(stamps))
        ]
        meta = {key: value for each in self._reader().iter_metadata() for key, value in each.metadata.items()}
        return Recording(self._folder.name, tuple(cameras), meta, tuple(dict.fromkeys(self._notes)))

    def _reader(self) -> McapReader:
        self._file.seek(0)
        return make_reader(self._file)

    def _decoder(self, channel: Channel, schema: Schema | None) -> Callable[[bytes], Any] | None:
        if channel.id not in self._decoders:
            makers = (factory.decoder_for(channel.message_encoding, schema) for factory in self._factories)
            self._decoders[channel.id] = found = next(filter(None, makers), None)
            if found is None:
                kind = f"{channel.message_encoding or 'unknown'} messages of {schema.name if schema else 'no schema'}"
                self._notes.append(f"{channel.topic} is left out: {kind} cannot be decoded")
        return self._decoders[channel.id]

    def _states(self) -> tuple[dict[str, list[int]], dict[str, list[list[Mapping[str, Any]]]]]:
        """For each camera, the log time of each frame, and the values of all other topics at this moment."""
        stamps: dict[str, list[int]] = {}
        states: dict[str, list[list[Mapping[str, Any]]]] = {}
        latest: dict[str, _Latest] = {}
        for schema, channel, message in self._reader().iter_messages():
            self._begin_ns = self._begin_ns or message.log_time
            decoder = self._decoder(channel, schema)
            if decoder is None:
                continue
            if schema is None or schema.name not in _CAMERAS:
                latest[channel.topic] = _Latest(channel.topic, decoder, message.data)
                continue
            stamps.setdefault(channel.topic, []).append(message.log_time)
            states.setdefault(channel.topic, []).append([each.values() for each in latest.values()])
        return stamps, states

    def _camera(self, number: int, topic: str, stamps: list[int], states: list[list[Mapping[str, Any]]]) -> Camera:
        """Write the files of a camera."""
        video, series = f"camera_{number}.mp4", f"camera_{number}.series"
        try:
            depth = self._write_video(topic, str(self._folder / video))
        except BadVideo as error:
            raise BadVideo(f"{topic}: {error}", error.kind) from error
        (self._folder / series).write_bytes(pack(Targets(series=self._series(states))))
        return Camera(topic, video, series, (stamps[0] - self._begin_ns) / 1e9, depth)

    def _series(self, states: list[list[Mapping[str, Any]]]) -> dict[str, NDArray[Any]]:
        """Name -> `(frames, ...)`."""
        rows = [{name: value for each in state for name, value in each.items()} for state in states]
        found = {}
        for name in sorted({name for row in rows for name in row}):
            values = [row.get(name) for row in rows]
            shapes = {np.shape(value) for value in values if value is not None}
            if len(shapes) > 1:
                self._notes.append(f"{name} is left out: it has several lengths")
                continue
            missing = np.full(shapes.pop(), np.nan)
            found[name] = np.stack([np.asarray(missing if value is None else value) for value in values])
        return found

    def _write_video(self, topic: str, path: str) -> bool:
        """Write the frames of a camera. Returns whether they are distances."""
        messages = self._messages(topic)
        (first_us, schema, first) = next(messages)
        rest = ((stamp, message) for stamp, _, message in messages)
        if schema in _RAW:
            pictures = [(first_us, _raw_picture(first))]
            store_pictures(path, chain(pictures, ((stamp, _raw_picture(message)) for stamp, message in rest)))
            return pictures[0][1].encoding == _MILLIMETRES
        said = str(_field(first, "format"))
        if _DEPTH in said and said.startswith(_INVERSE):
            raise BadVideo(
                f"{said!r} stores the inverses of distances, which are not read; record {_MILLIMETRES}", "format"
            )
        data = [(first_us, _compressed(first))]
        codec = _NAMES.get(said.lower(), said.lower()) if schema in _VIDEO else _signature(data[0][1])
        if codec not in CODECS:
            raise BadVideo(f"frames of the format {said!r} are not read; known: {', '.join(sorted(CODECS))}", "format")
        copy_packets(path, codec, chain(data, ((stamp, _compressed(message)) for stamp, message in rest)))
        return _DEPTH in said

    def _messages(self, topic: str) -> Iterator[tuple[int, str, Any]]:
        """The messages of a camera, with microseconds since its first one, which increase, and their schema."""
        first_ns, before = None, -1
        for schema, channel, message in self._reader().iter_messages(topics=[topic]):
            decoder = self._decoder(channel, schema)
            if decoder is None or schema is None:
                continue
            first_ns = message.log_time if first_ns is None else first_ns
            before = max(before + 1, (message.log_time - first_ns) // _NS_PER_US)
            yield before, schema.name, decoder(message.data)


class _Latest:
    """The last message of a topic, which is decoded when a frame needs it."""

    def __init__(self, topic: str, decode: Callable[[bytes], Any], data: bytes) -> None:
        self._topic, self._decode, self._data = topic, decode, data
        self._values: dict[str, Any] | None = None

    def values(self) -> Mapping[str, Any]:
        """Its numbers, by topic and field."""
        if self._values is None:
            self._values = dict(_numbers(self._topic, self._decode(self._data)))
        return self._values


def _numbers(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """The numbers in a message: `/arm/state.position` -> values."""
    if isinstance(value, (bool, int, float)):
        yield name, value
    elif isinstance(value, (np.ndarray, array)):
        yield from [(name, np.asarray(value))] if len(value) <= _MOST_VALUES else ()
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes, bytearray)):
        if all(isinstance(each, (bool, int, float)) for each in value[:_MOST_VALUES]):
            yield from [(name, np.asarray(value))] if 0 < len(value) <= _MOST_VALUES else ()
        else:
            for place, each in enumerate(value[:_MOST_VALUES]):
                yield from _numbers(f"{name}.{place}", each)
    else:
        for field in _fields(value):
            if field not in _CLOCKS:
                yield from _numbers(f"{name}.{field}", _field(value, field))


def _fields(message: Any) -> Sequence[str]:
    """The names of the fields of a message of JSON, protobuf or ROS 2; other values have none."""
    if isinstance(message, Mapping):
        return list(map(str, message))
    if (descriptor := getattr(message, "DESCRIPTOR", None)) is not None:
        return [field.name for field in descriptor.fields]
    return list(getattr(message, "__slots__", ()))


def _field(message: Any, name: str, default: Any = None) -> Any:
    if isinstance(message, Mapping):
        return message.get(name, default)
    return getattr(message, name, default)


def _data(message: Any) -> bytes:
    """The field `data`, which JSON has in base 64. Raises `BadVideo`."""
    data = _field(message, "data", b"")
    try:
        return b64decode(data, validate=True) if isinstance(data, str) else bytes(data)
    except ValueError as error:
        raise BadVideo(f"the data of a message are not in base 64: {error}", "damaged") from error


def _compressed(message: Any) -> bytes:
    data = _data(message)
    return data[_DEPTH_HEAD_BYTES:] if _DEPTH in str(_field(message, "format", "")) else data


def _signature(data: bytes) -> str:
    """The codec of a picture, which its first bytes say; `format` has many spellings."""
    return next((codec for begin, codec in _SIGNATURES.items() if data.startswith(begin)), "")


def _raw_picture(message: Any) -> RawPicture:
    width, height, step = (int(_field(message, name, 0)) for name in ("width", "height", "step"))
    encoding, big_endian = str(_field(message, "encoding", "")), bool(_field(message, "is_bigendian", False))
    return RawPicture(width, height, encoding, step, _data(message), big_endian)
