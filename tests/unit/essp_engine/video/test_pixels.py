"""Frames kept in the colours of their video are what libswscale scales them to, and mean what the file says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import numpy as np
import pytest
from av.video.reformatter import Interpolation, VideoReformatter
from numpy.typing import NDArray

from essp_common.errors import BadFrames, BadVideo
from essp_common.pb.v1.messages_pb2 import FrameCodec, Resize, Seed
from essp_engine.video import codec
from essp_engine.video.colour import Colour, pictures
from essp_engine.video.geometry import frame_shape, output_size
from essp_engine.video.reader import Reader
from essp_engine.video.synthetic import Encoding, Picture, write_video
from tests.harness.refused import refused

FRAMES = 4


@dataclass(frozen=True)
class Source:
    encoding: Encoding
    colour: Colour
    size: tuple[int, int] = (160, 120)


def x264(pixel_format: str = "yuv420p", **tags: str) -> Encoding:
    return Encoding(pixel_format=pixel_format, options=tags)


SOURCES = {
    "untagged.mp4": Source(x264(), Colour("bt601")),
    "bt601.mp4": Source(x264(colorspace="smpte170m", color_range="tv"), Colour("bt601")),
    "bt709.mp4": Source(x264(colorspace="bt709", color_range="tv"), Colour("bt709")),
    "bt709-full.mp4": Source(x264(colorspace="bt709", color_range="pc"), Colour("bt709", full=True)),
    "bt2020-10bit.mp4": Source(x264("yuv420p10le", colorspace="bt2020nc"), Colour("bt2020")),
    "422.mp4": Source(x264("yuv422p"), Colour("bt601")),
    "444-odd.mp4": Source(x264("yuv444p"), Colour("bt601"), (161, 121)),
    "full.mp4": Source(x264("yuvj420p"), Colour("bt601", full=True)),
    "gray.mkv": Source(Encoding(codec="ffv1", pixel_format="gray"), Colour("bt601", full=True)),
    "rgb.mkv": Source(Encoding(codec="ffv1", pixel_format="bgr0"), Colour("bt601", full=True)),
    "rotated.mp4": Source(Encoding(rotation=90), Colour("bt601")),
}


def ramps(width: int, height: int) -> Iterator[Picture]:
    """Strong colours that change slowly, since one chroma stands for four pixels; brighter with each frame."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    for number in range(FRAMES):
        red, green, blue = 240 * x / width, 20 + 200 * y / height, 230 - 200 * x / width
        yield (np.stack([red, green, blue], axis=-1) + 3 * number).clip(0, 255).astype(np.uint8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pixels")
    for name, source in SOURCES.items():
        write_video(path / name, ramps(*source.size), source.encoding)
    return path


def read(path: Path, resize: Resize) -> tuple[NDArray[np.uint8], Colour | None]:
    with av.open(str(path)) as container:
        frame = next(container.decode(video=0))
        shown = (frame.width, frame.height) if frame.rotation % 180 else (frame.height, frame.width)
    clip = np.zeros((FRAMES, *frame_shape(resize, *shown)), np.uint8)
    with Reader(str(path)) as reader:
        seed = Seed(frame_count=FRAMES, stride=1, last_frame=FRAMES - 1)
        assert reader.read([seed], resize, [clip]) == [None]
        return clip, reader.colours[0]


def crop(height: int, width: int, pixels: str) -> Resize:
    return Resize(mode=Resize.CROP, height=height, width=width, interpolation="bilinear", pixels=pixels)


@pytest.mark.parametrize("name", SOURCES)
def test_colours_mean_what_the_file_says(folder: Path, name: str) -> None:
    """Of all matrices and ranges, the one found comes nearest to what libswscale makes of the frame, told to be
    accurate."""
    resize = Resize(mode=Resize.EXACT, height=120, width=160, interpolation="bilinear", pixels="yuv420")
    planes, colour = read(folder / name, resize)
    assert colour == SOURCES[name].colour
    with av.open(str(folder / name)) as container:
        frame = next(container.decode(video=0))
        turns = round(frame.rotation / 90)
        height, width = (160, 120) if turns % 2 else (120, 160)
        accurate = Interpolation.BILINEAR | Interpolation.FULL_CHR_H_INT | Interpolation.ACCURATE_RND
        scaled = frame.reformat(width, height, "rgb24", interpolation=accurate).to_ndarray()
    wanted = np.rot90(scaled, turns).astype(int)
    candidates = [Colour(matrix, full) for matrix in ("bt601", "bt709", "bt2020") for full in (False, True)]
    off = {each: np.abs(pictures(planes[:1], each)[0] - wanted).mean() for each in candidates}
    assert off[colour] == min(off.values())
    resize.pixels = "gray"
    luma, same = read(folder / name, resize)
    assert same == colour
    assert np.array_equal(luma[..., 0], planes[:, :120])


def test_planes_are_those_that_libswscale_scales_to(folder: Path) -> None:
    planes, _ = read(folder / "bt709.mp4", Resize(mode=Resize.EXACT, height=64, width=48, pixels="yuv420"))
    with av.open(str(folder / "bt709.mp4")) as container:
        for frame, ours in zip(container.decode(video=0), planes, strict=True):
            scaled = VideoReformatter().reformat(frame, width=48, height=64, format="yuv420p", threads=1)
            assert np.array_equal(ours, scaled.to_ndarray())


@pytest.mark.parametrize("size", [(64, 64), (46, 64), (64, 50), (118, 130)])
def test_a_crop_begins_where_a_square_of_pixels_does(folder: Path, size: tuple[int, int]) -> None:
    """Whatever the offset would be: luma and chroma of one place stay together."""
    planes, colour = read(folder / "untagged.mp4", crop(*size, "yuv420"))
    height, width = size
    scale = max(height / 120, width / 160)
    whole = [max(own, 2 * round(side * scale / 2)) for own, side in zip(size, (120, 160), strict=True)]
    top, left = ((all_ - own) // 2 // 2 * 2 for all_, own in zip(whole, size, strict=True))
    with av.open(str(folder / "untagged.mp4")) as container:
        frame = next(container.decode(video=0))
        scaled = VideoReformatter().reformat(frame, width=whole[1], height=whole[0], format="yuv420p", threads=1)
    everything = pictures(scaled.to_ndarray()[None], colour)
    assert np.array_equal(pictures(planes, colour)[0], everything[0, top : top + height, left : left + width])
    luma, _ = read(folder / "untagged.mp4", crop(*size, "gray"))
    assert np.array_equal(luma[..., 0], planes[:, :height])


def test_sides_of_yuv_are_even() -> None:
    def short(pixels: str) -> Resize:
        return Resize(mode=Resize.SHORT_SIDE, height=90, pixels=pixels)

    assert output_size(short(""), 120, 161) == output_size(short("gray"), 120, 161) == (90, 121)
    assert output_size(short("yuv420"), 120, 161) == (90, 120)
    assert frame_shape(short("yuv420"), 120, 161) == (135, 120)
    assert frame_shape(short("gray"), 120, 161) == (90, 121, 1)
    with refused("clip.pixels", "conflict"):
        frame_shape(Resize(pixels="yuv420"), 120, 161)


def test_a_clip_that_changes_its_colours_fails_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its header has room for one; the clips before and after the change are whole."""
    shown: list[Colour] = [Colour("bt601")] * 2 + [Colour("bt709")] * 2
    monkeypatch.setattr("essp_engine.video.conversion.colour_of", lambda frame: shown.pop(0))
    resize = Resize(mode=Resize.EXACT, height=32, width=32, pixels="yuv420")
    seeds = [Seed(first_frame=first, frame_count=2, stride=1, last_frame=3) for first in (0, 1, 2)]
    with Reader(str(folder / "untagged.mp4")) as reader:
        first, across, last = reader.read(seeds, resize, [np.zeros((2, 48, 32), np.uint8) for _ in seeds])
        assert (first, last) == (None, None)
        assert isinstance(across, BadVideo)
        assert "change their matrix or range" in str(across)
        assert reader.colours[::2] == [Colour("bt601"), Colour("bt709")]
        assert reader.tally.shared == 2


@pytest.mark.parametrize("name", ["raw", "zstd"])
def test_a_value_of_the_cache_says_what_its_numbers_mean(name: str) -> None:
    planes = np.random.default_rng(0).integers(0, 256, (3, 12, 8), dtype=np.uint8)
    value = codec.encode(planes, FrameCodec(name=name), Colour("bt2020", full=True))
    assert codec.header(value).colour == Colour("bt2020", full=True)
    assert np.array_equal(codec.decode(value, [2, 0]), planes[[2, 0]])
    assert codec.header(codec.encode(planes, FrameCodec(name=name))).colour is None


@pytest.mark.parametrize("shape", [(3, 8, 8, 3), (3, 10, 8), (3, 12, 7), (3, 12)])
def test_only_planes_and_luma_have_a_colour(shape: tuple[int, ...]) -> None:
    value = codec.encode(np.zeros(shape, np.uint8), FrameCodec(name="raw"), Colour())
    with pytest.raises(BadFrames, match="of a video's own colours"):
        codec.decode(value)
