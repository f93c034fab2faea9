"""Images of records as frames: the pixels are those that OpenCV reads, and damage is named."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Resize
from essp_engine.video.images import ImageDecoder
from tests.harness.record_sets import image

HEIGHT, WIDTH = 24, 28
WHOLE = Resize(mode=Resize.NONE)


@pytest.fixture
def images() -> ImageDecoder:
    return ImageDecoder(2**20)


def encoded(name: str) -> bytes:
    return cv2.imencode(name, image(1, 0)[..., ::-1])[1].tobytes()


def written(images: ImageDecoder, data: bytes, shape: tuple[int, int, int] | None, resize: Resize) -> NDArray[np.uint8]:
    size = (resize.height, resize.width) if resize.mode != Resize.NONE else (HEIGHT, WIDTH)
    target = np.zeros((*size, 3), np.uint8)
    assert images.write(data, shape, resize, target) is None
    return target


@pytest.mark.parametrize("name", [".png", ".bmp", ".tiff"])
def test_files_without_loss_give_their_pixels_each_time(images: ImageDecoder, name: str) -> None:
    for _ in range(2):  # what came before has no say
        np.testing.assert_array_equal(written(images, encoded(name), None, WHOLE), image(1, 0))


def test_a_jpeg_gives_what_its_standard_says_to_within_the_colours_of_neighbours(images: ImageDecoder) -> None:
    """Decoders interpolate halved chroma in different ways; where neighbours are equal, there is nothing to choose."""
    grey = np.repeat(image(1, 0)[..., :1], 3, axis=2)
    data = cv2.imencode(".jpg", grey)[1]
    expected = cv2.imdecode(data, cv2.IMREAD_COLOR)
    found = written(images, data.tobytes(), None, WHOLE)
    assert np.abs(found.astype(int) - expected).max() <= 2  # a rounding in each of two steps


def jpeg_turned(exif: bytes) -> bytes:
    """Grey, see above."""
    data = cv2.imencode(".jpg", np.repeat(image(1, 0)[..., :1], 3, axis=2))[1].tobytes()
    return data[:2] + b"\xff\xe1" + struct.pack(">H", len(exif) + 8) + b"Exif\0\0" + exif + data[2:]


def png_turned(exif: bytes) -> bytes:
    data, begin = encoded(".png"), 8 + 25  # after the signature and the header
    chunk = b"eXIf" + exif
    return data[:begin] + struct.pack(">I", len(exif)) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[begin:]


def webp_turned(exif: bytes) -> bytes:
    """Without loss, in the extended format."""
    picture = cv2.imencode(".webp", image(1, 0)[..., ::-1], [cv2.IMWRITE_WEBP_QUALITY, 101])[1].tobytes()[12:]
    sides = b"".join((side - 1).to_bytes(3, "little") for side in (WIDTH, HEIGHT))
    head = b"VP8X" + struct.pack("<IB3x", 10, 0x08) + sides
    chunks = b"WEBP" + head + picture + b"EXIF" + struct.pack("<I", len(exif)) + exif
    return b"RIFF" + struct.pack("<I", len(chunks)) + chunks


@pytest.mark.parametrize(("turned", "off"), [(jpeg_turned, 2), (png_turned, 0), (webp_turned, 0)])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_an_image_is_turned_and_mirrored_as_its_exif_says(
    images: ImageDecoder, turned: Callable[[bytes], bytes], off: int, orientation: int
) -> None:
    """`off`: largest difference, by the way of decoding."""
    tag = struct.pack("<HHIHH", 0x0112, 3, 1, orientation, 0)
    data = turned(struct.pack("<2sHIH", b"II", 42, 8, 1) + tag + bytes(4))
    decoded = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    assert decoded is not None
    expected = decoded[..., ::-1]
    assert expected.shape[:2] == ((HEIGHT, WIDTH) if orientation < 5 else (WIDTH, HEIGHT))
    target = np.zeros(expected.shape, np.uint8)
    assert images.write(data, None, WHOLE, target) is None
    assert np.abs(target.astype(int) - expected).max() <= off


@pytest.mark.parametrize("name", [".png", ".jpg", ".webp"])
@pytest.mark.parametrize("cut", [10, 100])
def test_a_file_that_ends_early_is_refused(images: ImageDecoder, name: str, cut: int) -> None:
    with pytest.raises(BadVideo, match=r"cannot be decoded|ends early|not an image"):
        written(images, encoded(name)[:cut], None, WHOLE)


@pytest.mark.parametrize("name", [".jpg", ".gif"])
def test_any_lack_of_the_end_is_damage_where_any_sign_counts(images: ImageDecoder, name: str) -> None:
    data, target = encoded(name), np.zeros((HEIGHT, WIDTH, 3), np.uint8)
    images.write(data + b"\0\r\n of another program", None, WHOLE, target)
    with pytest.raises(BadVideo, match="ends early") as caught:
        images.write(memoryview(data)[:-3], None, WHOLE, target)  # type: ignore[arg-type]
    assert caught.value.kind == "truncated"
    images.write(data[:-3], None, WHOLE, target, strict=False)


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("compression", [6, 7])
def test_a_tiff_file_that_would_be_black_is_refused(images: ImageDecoder, order: str, compression: int) -> None:
    """As JPEG within TIFF is."""
    fields = struct.pack(order + "HHHIHH", 1, 259, 3, 1, compression, 0)
    data = (b"II*\0" if order == "<" else b"MM\0*") + struct.pack(order + "I", 8) + fields
    with pytest.raises(BadVideo, match="compressed as JPEG is not read") as caught:
        written(images, data, None, WHOLE)
    assert caught.value.kind == "format"


def test_what_is_no_image_or_too_large_is_refused(images: ImageDecoder) -> None:
    with pytest.raises(BadVideo, match="not an image of a known format") as caught:
        written(images, b"no image at all", None, WHOLE)
    assert caught.value.kind == "format"
    with pytest.raises(BadVideo, match="cannot be decoded"):
        written(ImageDecoder(100), encoded(".png"), None, WHOLE)
    with pytest.raises(BadVideo, match="2 channels"):
        written(images, bytes(8), (2, 2, 2), WHOLE)
    with pytest.raises(BadVideo, match="7 bytes are not an image"):
        written(images, bytes(7), (2, 2, 3), WHOLE)


def test_an_image_that_is_too_narrow_to_cover_a_square_is_refused(images: ImageDecoder) -> None:
    with pytest.raises(BadVideo, match=r"60000x2 cannot be scaled to 6720000x224") as caught:
        written(images, bytes(360_000), (2, 60_000, 3), Resize(mode=Resize.CROP, height=224, width=224))
    assert caught.value.kind == "limit"


def test_numbers_are_cut_where_they_need_no_scaling(images: ImageDecoder) -> None:
    numbers = image(2, 1)
    shape = (HEIGHT, WIDTH, 3)
    np.testing.assert_array_equal(written(images, numbers.tobytes(), shape, WHOLE), numbers)
    crop = Resize(mode=Resize.CROP, height=HEIGHT, width=HEIGHT)
    np.testing.assert_array_equal(written(images, numbers.tobytes(), shape, crop), numbers[:, 2:-2])


def test_numbers_and_files_are_scaled_alike(images: ImageDecoder) -> None:
    numbers = image(2, 1)
    png = cv2.imencode(".png", numbers[..., ::-1])[1].tobytes()
    for resize in (Resize(mode=Resize.CROP, height=10, width=12), Resize(mode=Resize.EXACT, height=30, width=12)):
        found = written(images, numbers.tobytes(), numbers.shape, resize)
        np.testing.assert_array_equal(found, written(images, png, None, resize))


def test_grey_numbers_become_the_colours_asked_for(images: ImageDecoder) -> None:
    grey = image(3, 0)[..., 0]
    data = grey.tobytes()
    np.testing.assert_array_equal(written(images, data, (*grey.shape, 1), WHOLE), np.stack([grey] * 3, axis=2))
    target = np.zeros((HEIGHT * 3 // 2, WIDTH), np.uint8)
    colour = images.write(data, (*grey.shape, 1), Resize(mode=Resize.NONE, pixels="yuv420"), target)
    assert colour is not None
    assert colour.full
    np.testing.assert_array_equal(target[:HEIGHT], grey)
