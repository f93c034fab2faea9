"""Each fault is found in a video that has it, at its frames; a sound video has none."""

from __future__ import annotations

import io
from base64 import b64decode
from collections.abc import Callable
from dataclasses import asdict
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path

import av
import numpy as np
import pytest
import simplejpeg

from essp.catalog.check.duplicates import near
from essp.catalog.check.measures import Checked, Measures, measures_of, packed, unpacked
from essp.catalog.check.reading import decoded, packets_only
from essp_common.errors import BadVideo
from essp_engine.video.container import VideoFile
from essp_engine.video.synthetic import Encoding, Picture, drifting, numbered, write_video
from tests.harness import transport_streams
from tests.harness.photographs import photograph

WIDTH, HEIGHT = 128, 96


def moving(count: int, seed: int = 0) -> list[Picture]:
    return list(drifting(photograph(WIDTH, HEIGHT, seed), count, velocity=(2, 1)))


def still(count: int, seed: int = 0) -> list[Picture]:
    return [photograph(WIDTH, HEIGHT, seed)] * count


def black(count: int) -> list[Picture]:
    return [np.full((HEIGHT, WIDTH, 3), 3, np.uint8)] * count


def measured(folder: Path, pictures: list[Picture], encoding: Encoding | None = None, name: str = "a.mp4") -> Measures:
    return decoded(str(write_video(folder / name, pictures, encoding or Encoding(gop=25))))


def told(found: Measures) -> list[tuple[str, int, int]]:
    return [(stretch.kind, stretch.first, stretch.last) for stretch in found.stretches]


@pytest.mark.parametrize("codec", ["h264", "mpeg4", "vp9"])
def test_a_sound_video_has_no_fault(tmp_path: Path, codec: str) -> None:
    found = measured(tmp_path, moving(80), Encoding(codec=codec, gop=25), "a.mkv")
    assert (found.frames, found.packets, found.damaged, found.stretches) == (80, 80, 0, ())
    assert len(found.strip) == 4


@pytest.mark.parametrize("read", [decoded, packets_only])
@pytest.mark.parametrize(("aspect", "name"), [(Fraction(16, 11), "a.mp4"), (Fraction(1), "b.mkv"), (None, "c.avi")])
def test_the_shape_of_pixels_is_that_of_the_container(
    tmp_path: Path, read: Callable[[str], Measures], aspect: Fraction | None, name: str
) -> None:
    path = str(tmp_path / name)
    with av.open(path, "w") as container:
        stream = container.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        if aspect is not None:
            stream.codec_context.sample_aspect_ratio = aspect
        for picture in moving(6):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(picture)))
        container.mux(stream.encode())
    assert read(path).pixel_aspect == pytest.approx(float(aspect or 1), rel=1e-6)


@pytest.mark.parametrize("read", [decoded, packets_only])
def test_sound_that_begins_in_the_middle_hides_no_frame(read: Callable[[VideoFile], Measures]) -> None:
    assert read(io.BytesIO(transport_streams.with_late_sound())).packets == transport_streams.FRAMES


def test_cuts_are_found_with_the_frames_on_both_sides(tmp_path: Path) -> None:
    found = measured(tmp_path, moving(30, seed=1) + moving(30, seed=2))
    assert told(found) == [("cut", 29, 30)]
    before, after = (simplejpeg.decode_jpeg(b64decode(picture)) for picture in found.stretches[0].pictures)
    for seed, picture in ((1, before), (2, after)):
        unlike = np.abs(picture.astype(int).mean(axis=2) - _thumbnail(seed)).mean()
        assert unlike < 12


def _thumbnail(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Frame 29 or 0 of the scene, at the size of a thumbnail (160 x 120)."""
    picture = moving(30, seed)[29 if seed == 1 else 0]
    rows = (np.arange(120) * HEIGHT / 120).astype(int)
    columns = (np.arange(160) * WIDTH / 160).astype(int)
    shown: np.ndarray[tuple[int, ...], np.dtype[np.float64]] = picture[rows][:, columns].mean(axis=2)
    return shown


def test_black_stretches_are_found_and_are_not_frozen_or_cuts_too(tmp_path: Path) -> None:
    found = measured(tmp_path, moving(20) + black(25) + moving(40, seed=2))
    assert told(found) == [("black", 20, 44)]
    assert len(found.stretches[0].pictures) == 1


def test_a_few_black_frames_between_scenes_are_cuts(tmp_path: Path) -> None:
    assert told(measured(tmp_path, moving(20) + black(4) + moving(40, seed=2))) == [("cut", 19, 20), ("cut", 23, 24)]


@pytest.mark.parametrize("codec", ["h264", "mpeg4"])
def test_frozen_stretches_are_found_across_keyframes(tmp_path: Path, codec: str) -> None:
    scene = moving(20)
    pictures = scene + [scene[-1]] * 50 + moving(30, seed=0)[20:]
    ((kind, first, last),) = told(measured(tmp_path, pictures, Encoding(codec=codec, gop=16), "a.mkv"))
    assert (kind, last) == ("frozen", 69)
    assert 19 <= first <= 34, "the encoder takes some frames to settle"


def test_a_frame_shown_twice_is_not_frozen(tmp_path: Path) -> None:
    assert told(measured(tmp_path, [frame for frame in moving(40) for _ in range(2)])) == []


def test_a_hundred_cuts_are_counted_and_some_are_kept(tmp_path: Path) -> None:
    pictures = list(chain.from_iterable(moving(4, seed=seed) for seed in range(30)))
    found = measured(tmp_path, pictures)
    cuts = [stretch for stretch in found.stretches if stretch.kind == "cut"]
    assert len(cuts) == 12
    assert len(cuts) + found.left_out["cut"] <= 29
    assert all(len(cut.pictures) == 2 for cut in cuts)


def test_damage_is_counted_and_the_rest_is_looked_at(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", numbered(60), Encoding(codec="mjpeg", pixel_format="yuvj420p"))
    data = bytearray(path.read_bytes())
    with av.open(str(path)) as container:
        packet = next(islice(container.demux(video=0), 20, None))
        assert packet.pos is not None
        begin, size = packet.pos + 8, packet.size - 16
    data[begin : begin + size] = bytes(size)
    path.write_bytes(data)
    found = decoded(str(path))
    assert found.damaged >= 1
    assert found.first_damaged == 20
    assert (found.packets, found.frames) == (60, 59)


def test_a_copy_in_another_container_has_the_same_digest(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(20))
    with av.open(str(path)) as source, av.open(str(tmp_path / "b.mkv"), "w") as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    other = write_video(tmp_path / "c.mp4", numbered(20, seed=1))
    one, copy, another = (decoded(str(tmp_path / name)).digest for name in ("a.mp4", "b.mkv", "c.mp4"))
    assert one == copy != another == decoded(str(other)).digest


def test_the_same_video_in_another_size_codec_and_quality_is_a_near_duplicate(tmp_path: Path) -> None:
    large = list(drifting(photograph(256, 192, 3), 60, velocity=(4, 2)))
    names = {
        "large.mp4": write_video(tmp_path / "large.mp4", large),
        "small.avi": write_video(tmp_path / "small.avi", [p[::2, ::2] for p in large], Encoding(codec="mpeg4")),
        "poor.webm": write_video(tmp_path / "poor.webm", large, Encoding(codec="vp9", options={"b": "60k"})),
        "other.mp4": write_video(tmp_path / "other.mp4", list(drifting(photograph(256, 192, 4), 60, velocity=(4, 2)))),
        "elsewhere.mp4": write_video(tmp_path / "elsewhere.mp4", list(drifting(photograph(256, 192, 3), 60, (-4, 3)))),
    }
    found = {name: decoded(str(path)) for name, path in names.items()}
    assert near({name: (one.shown, one.moved) for name, one in found.items()}) == [
        ["large.mp4", "poor.webm", "small.avi"]
    ]


def test_packets_alone_give_counts_and_digest(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", moving(20, seed=1) + moving(20, seed=2))
    found = packets_only(str(path))
    assert (found.decoded, found.packets, found.declared, found.frames) == (False, 40, 40, 0)
    assert found.digest == decoded(str(path)).digest
    assert (found.stretches, found.shown, found.strip) == ((), (), ())


def test_a_binary_file_gives_the_same_as_its_path(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", still(30) + moving(20, seed=2))
    assert decoded(io.BytesIO(path.read_bytes())) == decoded(str(path))


def test_what_is_no_video_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.mp4").write_text("no video")
    for read in (decoded, packets_only):
        with pytest.raises(BadVideo, match="not a video"):
            read(str(tmp_path / "a.mp4"))


def test_measures_pass_a_journal_unchanged(tmp_path: Path) -> None:
    found = measured(tmp_path, moving(20, seed=1) + moving(20, seed=2))
    assert found.shown
    assert found.moved
    assert measures_of(asdict(found)) == found
    checked = [Checked("u", 5, "e", found), Checked("v", 6, "f", Measures(error="damaged: all of it"))]
    assert unpacked(packed(checked)) == checked
    for part in (b"damaged", packed(checked)[:-9], packed([])[:5]):
        with pytest.raises(ValueError, match="journal"):
            unpacked(part)
