"""MCAP recordings, written with the libraries of MCAP: cameras and series of a robot, in protobuf, ROS 2 or JSON."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message_factory import GetMessageClass
from mcap.writer import CompressionType, Writer
from mcap_protobuf.writer import Writer as ProtobufWriter
from mcap_ros2.writer import Writer as Ros2Writer
from numpy.typing import NDArray

FPS = 20
BEGIN_NS = 1_700_000_000_000_000_000
WRIST_LATE_S = 0.12
"""The second camera begins to record so much later."""
TOP, WRIST, ARM = "/top/image", "/wrist/image", "/arm/state"
_SIZE = "uint32 height\nuint32 width"
_IMAGE = f"std_msgs/Header header\n{_SIZE}\nstring encoding\nuint8 is_bigendian\nuint32 step\nuint8[] data"
_COMPRESSED = "std_msgs/Header header\nstring format\nuint8[] data"
_HEADER = f"{'=' * 80}\nMSG: std_msgs/Header\nbuiltin_interfaces/Time stamp\nstring frame_id\n"
_TIME = f"{'=' * 80}\nMSG: builtin_interfaces/Time\nint32 sec\nuint32 nanosec\n"
_STATE = "std_msgs/Header header\nfloat64[] position\nfloat64[] command"


def moments(count: int, late_s: float = 0.0) -> list[int]:
    """The log times of frames, which jitter."""
    return [BEGIN_NS + int(1e9 * (late_s + n / FPS + 0.004 * (n % 3))) for n in range(count)]


def position(number: int) -> list[float]:
    """What the arm says in its message of this number; it says so 100 times a second."""
    return [number / 2, -float(number)]


def compressed(pictures: Sequence[NDArray[np.uint8]], codec: str, **options: str) -> list[bytes]:
    """`(H, W, 3)` pictures as one packet each, without B-frames."""
    context = av.CodecContext.create(codec, "w")
    assert isinstance(context, av.VideoCodecContext)
    height, width = pictures[0].shape[:2]
    context.width, context.height, context.pix_fmt = width, height, "yuvj420p" if codec == "mjpeg" else "yuv420p"
    context.time_base, context.framerate, context.options = Fraction(1, FPS), Fraction(FPS), options
    context.gop_size, context.max_b_frames = 5, 0
    frames = [av.VideoFrame.from_ndarray(picture, "rgb24").reformat(format=context.pix_fmt) for picture in pictures]
    return [bytes(packet) for frame in [*frames, None] for packet in context.encode(frame)]


def write_ros2(
    path: Path, top: Sequence[bytes], wrist: Sequence[NDArray[Any]], encoding: str = "rgb8", form: str = "jpeg"
) -> None:
    """A camera of compressed pictures, one of pictures without compression, and the state of an arm."""
    header = {"stamp": {"sec": 0, "nanosec": 0}, "frame_id": ""}
    messages: list[tuple[int, str, str, dict[str, Any]]] = [
        (stamp, TOP, "jpeg", {"header": header, "format": form, "data": data})
        for stamp, data in zip(moments(len(top)), top, strict=True)
    ]
    for stamp, picture in zip(moments(len(wrist), WRIST_LATE_S), wrist, strict=True):
        rows = np.pad(picture.reshape(len(picture), -1).view(np.uint8), ((0, 0), (0, 5)))  # rows are longer
        size = {"height": len(picture), "width": picture.shape[1], "step": rows.shape[1]}
        raw = {"header": header, **size, "encoding": encoding, "is_bigendian": 0, "data": rows.tobytes()}
        messages.append((stamp, WRIST, "raw", raw))
    for number in range(100 * len(top) // FPS):
        stamp = BEGIN_NS + 5_000_000 + 10_000_000 * number  # the first one comes after the first picture
        state = {"header": header, "position": position(number), "command": position(number + 1)}
        messages.append((stamp, ARM, "state", state))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, Ros2Writer(file) as writer:
        schemas = {
            "jpeg": writer.register_msgdef("sensor_msgs/msg/CompressedImage", f"{_COMPRESSED}\n{_HEADER}{_TIME}"),
            "raw": writer.register_msgdef("sensor_msgs/msg/Image", f"{_IMAGE}\n{_HEADER}{_TIME}"),
            "state": writer.register_msgdef("arm_msgs/msg/State", f"{_STATE}\n{_HEADER}{_TIME}"),
        }
        for stamp, topic, kind, message in sorted(messages, key=lambda each: each[:2]):
            writer.write_message(topic, schemas[kind], message, log_time=stamp, publish_time=stamp)


def write_json(path: Path, packets: Sequence[bytes], form: str) -> None:
    """A camera of compressed video in JSON, a topic that cannot be decoded, and metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        writer = Writer(file, compression=CompressionType.LZ4)
        writer.start()
        video = writer.register_schema("foxglove.CompressedVideo", "jsonschema", b"{}")
        camera = writer.register_channel(TOP, "json", video)
        other = writer.register_channel("/map", "flatbuffer", 0)
        for stamp, data in zip(moments(len(packets)), packets, strict=True):
            text = json.dumps({"timestamp": {"sec": 1}, "format": form, "data": b64encode(data).decode()})
            writer.add_message(camera, stamp, text.encode(), stamp)
            writer.add_message(other, stamp, b"?", stamp)
        writer.add_metadata("run", {"task": "lift the cube"})
        writer.finish()  # type: ignore[no-untyped-call]


def write_protobuf(path: Path, packets: Sequence[bytes], form: str) -> None:
    """A camera of compressed video, and a message within a message."""
    video, turn, motion = _messages(
        {
            "CompressedVideo": {"format": "string", "data": "bytes"},
            "Turn": {"x": "double", "y": "double"},
            "Imu": {"frame_id": "string", "turn": ".foxglove.Turn"},
        }
    )
    with path.open("wb") as file, ProtobufWriter(file) as writer:
        for number, (stamp, data) in enumerate(zip(moments(len(packets)), packets, strict=True)):
            imu = motion(frame_id="arm", turn=turn(x=number, y=-number))
            writer.write_message("/imu", imu, log_time=stamp, publish_time=stamp)
            writer.write_message(TOP, video(format=form, data=data), log_time=stamp + 1, publish_time=stamp)


def _messages(fields: Mapping[str, Mapping[str, str]]) -> list[Any]:
    """Classes of protobuf messages in the package of Foxglove's."""
    file = FileDescriptorProto(name="recording.proto", package="foxglove", syntax="proto3")
    for name, kinds in fields.items():
        message = file.message_type.add(name=name)
        for number, (field, kind) in enumerate(kinds.items(), 1):
            added = message.field.add(name=field, number=number, label=FieldDescriptorProto.LABEL_OPTIONAL)
            if kind.startswith("."):
                added.type, added.type_name = FieldDescriptorProto.TYPE_MESSAGE, kind
            else:
                added.type = FieldDescriptorProto.Type.Value(f"TYPE_{kind.upper()}")
    pool = DescriptorPool()
    pool.Add(file)
    return [GetMessageClass(pool.FindMessageTypeByName(f"foxglove.{name}")) for name in fields]
