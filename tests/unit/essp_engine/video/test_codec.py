"""Frame codecs: what goes in comes out, chosen frames alone are read, and damaged bytes are told as such."""

from __future__ import annotations

import struct
import zlib
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from numpy.typing import NDArray

from essp_common.cache.seal import checksum
from essp_common.errors import BadFrames, ConfigError
from essp_common.job.clip_spec import CodecSpec
from essp_common.pb.v1.messages_pb2 import FrameCodec
from essp_engine.video import codec
from essp_engine.video.colour import Colour
from essp_engine.video.compressors import COMPRESSORS

RAW = FrameCodec(name="raw")
ZSTD = FrameCodec(name="zstd")
JPEG = FrameCodec(name="jpeg", quality=95, subsampling="444")
ALL = pytest.mark.parametrize("kind", [RAW, ZSTD, JPEG], ids=lambda kind: kind.name)

DTYPES = st.sampled_from(
    [np.dtype(name) for name in ("uint8", "int16", "uint16", "float16", "float32", "int64", ">i2", ">f4")]
)
SHAPES = hnp.array_shapes(min_dims=2, max_dims=5, min_side=0, max_side=7)
ARRAYS: st.SearchStrategy[NDArray[Any]] = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, SHAPES))


def smooth_clip(frames: int = 5, channels: int = 3) -> NDArray[np.uint8]:
    """A clip that JPEG keeps well: `(T, 24, 40, C) uint8`."""
    t, y, x, c = np.ogrid[:frames, :24, :40, :channels]
    clip: NDArray[np.uint8] = (40 + 3 * y + 2 * x + 10 * t + 15 * (c % 5)).clip(0, 255).astype(np.uint8)
    return clip


@given(array=ARRAYS, kind=st.sampled_from([RAW, ZSTD]))
def test_lossless_codecs_give_back_the_same_array(array: NDArray[Any], kind: FrameCodec) -> None:
    back = codec.decode(codec.encode(array, kind))
    assert back.shape == array.shape
    assert back.dtype == array.dtype.newbyteorder("<")
    np.testing.assert_array_equal(back, array)


@given(array=ARRAYS, kind=st.sampled_from([RAW, ZSTD]), data=st.data())
def test_chosen_frames_are_those_of_the_whole(array: NDArray[Any], kind: FrameCodec, data: st.DataObject) -> None:
    last = array.shape[0] - 1
    chosen = data.draw(st.lists(st.integers(0, last), max_size=6)) if last >= 0 else []
    np.testing.assert_array_equal(codec.decode(codec.encode(array, kind), chosen), array[np.array(chosen, int)])


@given(
    frames=st.integers(0, 3), height=st.integers(1, 40), width=st.integers(1, 40), channels=st.integers(1, 7),
    subsampling=st.sampled_from(["444", "422", "420"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_jpeg_takes_any_size_and_number_of_channels(
    frames: int, height: int, width: int, channels: int, subsampling: str, seed: int
) -> None:
    level = np.random.default_rng(seed).integers(0, 256, (frames, 1, 1, channels), np.uint8)
    clip = np.broadcast_to(level, (frames, height, width, channels))
    back = codec.decode(codec.encode(clip, FrameCodec(name="jpeg", quality=100, subsampling=subsampling)))
    assert (back.shape, back.dtype) == (clip.shape, clip.dtype)
    # Rounding luminance and colour differences to integers puts a channel off by 1.9; one more is the transform's.
    np.testing.assert_allclose(back.astype(int), clip, atol=3)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 20])
def test_jpeg_stays_close_to_the_clip(channels: int) -> None:
    clip = smooth_clip(channels=channels)
    back = codec.decode(codec.encode(clip, JPEG))
    assert np.abs(back.astype(int) - clip).max() <= 6
    np.testing.assert_array_equal(codec.decode(codec.encode(clip, JPEG), [3, 1]), back[[3, 1]])


def test_jpeg_quality_decides_the_size() -> None:
    clip = np.random.default_rng(0).integers(0, 256, (2, 64, 64, 3), np.uint8)
    sizes = [len(codec.encode(clip, FrameCodec(name="jpeg", quality=q))) for q in (30, 80, 95)]
    assert sizes == sorted(sizes)
    assert len(codec.encode(clip, FrameCodec(name="jpeg"))) == sizes[-1]


def test_smooth_flow_shrinks_without_loss() -> None:
    y, x = np.mgrid[:128, :128]
    flow = np.stack([128 + 60 * np.sin(x / 31 + k) * np.cos(y / 17) for k in range(4)], -1).astype(np.uint8)[None]
    value = codec.encode(flow, ZSTD)
    assert len(value) < flow.nbytes / 4
    np.testing.assert_array_equal(codec.decode(value), flow)


@given(
    shape=st.tuples(st.integers(1, 3), st.integers(1, 40), st.integers(1, 40), st.sampled_from([1, 2, 3, 20])),
    name=st.sampled_from(["raw", "jpeg", "zstd"]),
    quality=st.sampled_from([0, 1, 5, 100]),
    subsampling=st.sampled_from(["444", "422", "420"]),
    seed=st.integers(0, 100),
)
@settings(max_examples=150)
def test_noise_stays_within_the_bound(
    shape: tuple[int, int, int, int], name: str, quality: int, subsampling: str, seed: int
) -> None:
    if name == "zstd":
        quality = min(quality, 5)
    noise = np.random.default_rng(seed).integers(0, 256, shape, np.uint8)
    value = codec.encode(noise, FrameCodec(name=name, quality=quality, subsampling=subsampling))
    assert len(value) <= codec.max_encoded_bytes(shape, "uint8", name)


@given(array=ARRAYS, kind=st.sampled_from([RAW, ZSTD]))
def test_any_array_stays_within_the_bound(array: NDArray[Any], kind: FrameCodec) -> None:
    assert len(codec.encode(array, kind)) <= codec.max_encoded_bytes(array.shape, array.dtype, kind.name)


def test_the_bound_of_what_a_codec_cannot_hold_is_refused() -> None:
    with pytest.raises(ConfigError, match="use raw or zstd"):
        codec.max_encoded_bytes((1, 4, 4, 3), "float32", "jpeg")
    with pytest.raises(ConfigError, match="use one of raw, jpeg, zstd"):
        codec.max_encoded_bytes((1, 4, 4, 3), "uint8", "png")


def test_jobs_can_name_each_codec_that_exists() -> None:
    named = get_args(CodecSpec.model_fields["name"].annotation)
    assert named == tuple(codec.header(codec.encode(smooth_clip(), FrameCodec(name=name))).codec for name in named)
    assert named == ("raw", *COMPRESSORS)


def test_header_describes_the_array() -> None:
    found = codec.header(codec.encode(smooth_clip(channels=4), JPEG))
    assert (found.codec, found.shape, found.dtype) == ("jpeg", (5, 24, 40, 4), np.dtype(np.uint8))
    assert found.nbytes == 5 * 24 * 40 * 4
    assert len(found.parts) == 5 * 4


def test_raw_is_read_without_a_copy() -> None:
    value, frames = codec.frame_buffer((4, 2, 2, 3), np.uint8)
    frames[...] = 7
    codec.complete(value)
    for array in (codec.decode(value), codec.decode(value, [0, 2]), codec.decode(value, range(1, 4))):
        assert np.shares_memory(array, frames)
        assert not array.flags.writeable
    frames[2] = 9
    with pytest.raises(BadFrames, match="frame 2 is damaged"):
        codec.decode(value, [2])
    assert codec.decode(value, [2], checked=True).max() == 9


def test_filled_buffer_equals_the_encoded_array() -> None:
    clip = smooth_clip()
    value, frames = codec.frame_buffer(clip.shape, clip.dtype)
    frames[...] = clip
    with pytest.raises(BadFrames, match="damaged"):
        codec.decode(value)
    codec.complete(value)
    assert bytes(value) == bytes(codec.encode(clip, RAW))


@ALL
def test_any_buffer_can_be_read(kind: FrameCodec) -> None:
    value = bytes(codec.encode(smooth_clip(), kind))
    expected = codec.decode(value)
    for buffer in (bytearray(value), memoryview(value)):
        np.testing.assert_array_equal(codec.decode(buffer), expected)


@ALL
def test_arrays_of_any_strides_are_taken(kind: FrameCodec) -> None:
    clip = smooth_clip()[::2, ::-1, 4:33]
    expected = codec.decode(codec.encode(np.ascontiguousarray(clip), kind))
    np.testing.assert_array_equal(codec.decode(codec.encode(clip, kind)), expected)


@ALL
@pytest.mark.parametrize("frames", [[5], [-1], [0, 99]])
def test_frame_that_is_not_there(kind: FrameCodec, frames: list[int]) -> None:
    with pytest.raises(IndexError, match="of a clip that has 5"):
        codec.decode(codec.encode(smooth_clip(), kind), frames)


@pytest.mark.parametrize(
    ("array", "kind", "message"),
    [
        (np.zeros((2, 8, 8, 3), np.float32), JPEG, "uint8"),
        (np.zeros((2, 8, 8), np.uint8), JPEG, "T, H, W, C"),
        (np.zeros((2, 0, 8, 3), np.uint8), JPEG, "cannot hold"),
        (smooth_clip(), FrameCodec(name="jpeg", subsampling="411"), "444"),
        (smooth_clip(), FrameCodec(name="jpeg", quality=101), "1 to 100"),
        (smooth_clip(), FrameCodec(name="zstd", quality=95), "1 .fast. to 22"),
        (smooth_clip(), FrameCodec(name="webp"), "webp"),
        (np.zeros((2, 8), object), RAW, "cannot be stored"),
        (np.zeros((2, 8), complex), ZSTD, "cannot be stored"),
        (np.zeros(9, np.uint8), ZSTD, "dimensions"),
    ],
)
def test_what_a_codec_cannot_hold(array: NDArray[Any], kind: FrameCodec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        codec.encode(array, kind)


@pytest.mark.parametrize(("shape", "dtype"), [((512, 4320, 7680, 3), np.uint8), ((2, 2**15, 2**15), np.float32)])
def test_giant_buffer_is_refused(shape: tuple[int, ...], dtype: type) -> None:
    with pytest.raises(ConfigError, match="shorter clips"):
        codec.frame_buffer(shape, dtype)


@pytest.mark.parametrize(
    ("shape", "dtype", "possible"),
    [
        ((2, 12, 10), np.uint8, True),
        ((2, 8, 10, 1), np.uint8, True),
        ((2, 11, 10), np.uint8, False),
        ((2, 12, 9), np.uint8, False),
        ((2, 12, 10), np.uint16, False),
        ((2, 12, 10, 3), np.uint8, False),
        ((12, 10), np.uint8, False),
        ((2, 3, 12, 10, 1), np.uint8, False),
    ],
)
def test_only_frames_of_yuv_and_of_luma_have_a_videos_own_colours(
    shape: tuple[int, ...], dtype: type, possible: bool
) -> None:
    value = codec.encode(np.zeros(shape, dtype), RAW, Colour("bt709", full=True))
    if possible:
        assert codec.header(value).colour == Colour("bt709", full=True)
    else:
        with pytest.raises(BadFrames, match="impossible frames"):
            codec.header(value)


@ALL
@given(data=st.data())
def test_flipped_bit_is_found(kind: FrameCodec, data: st.DataObject) -> None:
    value = bytearray(codec.encode(smooth_clip(frames=2), kind))
    position = data.draw(st.integers(0, len(value) * 8 - 1))
    value[position // 8] ^= 1 << position % 8
    with pytest.raises(BadFrames):
        codec.decode(value)


@pytest.mark.parametrize("frames", [[0], [3, 1], [4, 4]])
def test_parts_of_a_raw_value_are_checked(frames: list[int]) -> None:
    value = memoryview(codec.encode(smooth_clip(), RAW))
    parts = codec.raw_parts(len(value), 5, frames)
    joined = bytearray(b"".join(value[begin:end] for begin, end in parts))
    np.testing.assert_array_equal(codec.decode(joined, frames), codec.decode(value)[frames])
    joined[-1] ^= 1
    with pytest.raises(BadFrames, match=f"frame {frames[-1]} is damaged"):
        codec.decode(joined, frames)
    if frames != frames[::-1]:
        with pytest.raises(BadFrames, match="damaged"):
            codec.decode(joined, frames[::-1])


@ALL
@given(data=st.data())
def test_value_of_the_wrong_length_is_found(kind: FrameCodec, data: st.DataObject) -> None:
    value = bytes(codec.encode(smooth_clip(frames=2), kind))
    with pytest.raises(BadFrames):
        codec.decode(value[: data.draw(st.integers(0, len(value) - 1))])
    with pytest.raises(BadFrames, match="foreign bytes"):
        codec.decode(value + data.draw(st.binary(min_size=1, max_size=9)))


@given(data=st.binary(max_size=300), magic=st.booleans())
def test_foreign_bytes_are_told_as_such(data: bytes, magic: bool) -> None:
    with pytest.raises(BadFrames):
        codec.decode(b"ESSP\x02" + data if magic else data)


@ALL
def test_damage_elsewhere_does_not_touch_the_chosen_frame(kind: FrameCodec) -> None:
    value = bytearray(codec.encode(smooth_clip(), kind))
    expected = codec.decode(bytes(value), [0])
    value[-1] ^= 0xFF
    np.testing.assert_array_equal(codec.decode(value, [0]), expected)


def forge(kind: int, shape: tuple[int, ...], dtype: bytes, parts: list[bytes], payload: int | None = None) -> bytes:
    """A value with a valid checksum that says what an attacker likes."""
    sizes = sum(map(len, parts)) if payload is None else payload
    padded = (*shape, *[0] * (8 - len(shape)))
    head = struct.pack("<4sBBBxIQ8s8I", b"ESSP", 2, kind, len(shape), len(parts), sizes, dtype, *padded)
    table = b"".join(struct.pack("<II", len(part), checksum(part)) for part in parts)
    return b"".join([head, struct.pack("<I", zlib.crc32(table, zlib.crc32(head))), table, *parts])


ONE_JPEG = bytes(codec.encode(smooth_clip(frames=1), JPEG))[72:]
ONE_ZSTD = bytes(codec.encode(smooth_clip(frames=1), ZSTD))[72:]


def test_forgery_of_a_sound_value_is_sound() -> None:
    """Or the next test would show nothing."""
    assert codec.decode(forge(1, (1, 24, 40, 3), b"|u1", [ONE_JPEG])).shape == (1, 24, 40, 3)
    assert codec.decode(forge(2, (1, 24, 40, 3), b"|u1", [ONE_ZSTD])).shape == (1, 24, 40, 3)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (forge(0, (2**31, 2**31), b"|u1", [], 2**62), "impossible"),
        (forge(0, (1000, 1000, 1000), b"|u1", [], 10**9), "truncated"),
        (forge(2, (1, 2**16, 2**15), b"|u1", [ONE_ZSTD]), "Zstandard frame of 2880 bytes"),
        (forge(2, (1, 24, 40, 3), b"|u1", [b"not zstd"]), "do not decode"),
        (forge(2, (1, 24, 40, 3), b"|u1", [ONE_ZSTD[:-9]]), "do not decode"),
        (forge(2, (5, 24, 40, 3), b"|u1", [ONE_ZSTD]), "impossible"),
        (forge(1, (1, 60000, 60000, 1), b"|u1", [ONE_JPEG]), "JPEG of"),
        (forge(1, (1, 24, 40, 3), b"|u1", [ONE_JPEG[:-90]]), "do not decode"),
        (forge(1, (1, 24, 40, 3), b"|u1", [b"\xff\xd8\xff"]), "do not decode"),
        (forge(1, (1, 24, 40), b"|u1", [ONE_JPEG]), "impossible"),
        (forge(1, (1, 24, 40, 3), b"<f4", [ONE_JPEG]), "impossible"),
        (forge(0, (1, 1), b"|O8", [], 8), "unknown kind"),
        (forge(7, (1, 1), b"|u1", [], 1), "unknown kind"),
        (forge(0, (1,), b"|u1", [], 1), "unknown kind"),
        (b"ESSP\x01" + bytes(80), "version 1"),
        (b"", "0 bytes"),
    ],
)  # fmt: skip
def test_forged_header_neither_crashes_nor_allocates(value: bytes, message: str) -> None:
    with pytest.raises(BadFrames, match=message):
        codec.decode(value)
