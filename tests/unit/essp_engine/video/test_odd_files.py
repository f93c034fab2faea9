"""Files that are sound and unlike most: each kind gives the frames and the times of a plain decode, and is told of."""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import av
import numpy as np
import pytest
from av.video.stream import VideoStream
from numpy.typing import NDArray

from essp_common.catalog.notes import lines
from essp_common.catalog.rows import VideoRow
from essp_common.catalog.timing import Timing
from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Resize, Seed, Seek
from essp_engine.planning.plan import seek_to
from essp_engine.video import selection
from essp_engine.video.clock import measure
from essp_engine.video.conversion import FrameConverter
from essp_engine.video.digest import digest
from essp_engine.video.planes import rows_of
from essp_engine.video.probe import VideoFacts, probe, salvage
from essp_engine.video.reader import Reader
from essp_engine.video.synthetic import Encoding, numbered, write_video

NONE = Resize(mode=Resize.NONE)
WIDTH, HEIGHT, FRAMES = 64, 48, 40
Picture = NDArray[np.uint8]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("odd")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    """H.264 with B-frames and a keyframe in 10 frames."""
    return write_video(folder / "plain.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10, bframes=2))


def row_of(facts: VideoFacts, size_bytes: int = 1) -> VideoRow:
    return VideoRow("a", "a", "", "", size_bytes, "", **{f: getattr(facts, f) for f in facts.__dataclass_fields__})


def read_out_of_order(path: Path, facts: VideoFacts) -> list[Picture]:
    """Each frame, asked for by itself in an order that goes back and forth, on one open file."""
    pictures: list[Picture] = [np.zeros((0, 0, 3), np.uint8)] * facts.frame_count
    row = row_of(facts, path.stat().st_size)
    with Reader(str(path), lookahead=facts.lookahead) as reader:
        for number in sorted(range(facts.frame_count), key=lambda k: k * 7919 % facts.frame_count):
            seed = Seed(first_frame=number, frame_count=1, stride=1, last_frame=number)
            if not seek_to(row, number, seed.seek):
                seed.ClearField("seek")
            target = np.zeros((1, facts.height, facts.width, 3), np.uint8)
            assert reader.read([seed], NONE, [target]) == [None]
            pictures[number] = target[0]
    return pictures


def decoded(path: Path) -> list[Picture]:
    """The frames of a sequential decode by PyAV."""
    with av.open(str(path)) as container:
        return [frame.to_ndarray(format="rgb24").astype(np.uint8) for frame in container.decode(video=0)]


def copied(source: Path, target: Path, **options: str) -> Path:
    """The packets of a file in another container."""
    with av.open(str(source)) as given, av.open(str(target), "w", options=options) as made:
        stream = made.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                made.mux(packet)
    return target


# Palettes, and pictures that lie bottom-up


def uncompressed_avi(path: Path, bits: int, bottom_up: bool, changes: Sequence[int] = ()) -> Path:
    """An AVI as Windows writes it, of 12 frames. `changes`: frames before which the palette changes."""

    def chunk(tag: bytes, data: bytes) -> bytes:
        return tag + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

    width, height, count = 32, 24, 12
    size = width * height * bits // 8
    palette = b"".join(bytes([k, 255 - k, k // 2, 0]) for k in range(256)) if bits == 8 else b""
    header = struct.pack("<14I", 100_000, size * 10, 0, 0x10, count, 0, 1, size, width, height, 0, 0, 0, 0)
    stream = b"vidsDIB " + struct.pack(
        "<IHHIIIIIIIIhhhh", 0, 0, 0, 0, 1, 10, 0, count, size, 2**32 - 1, 0, 0, 0, 32, 24
    )
    lines_up = height if bottom_up else -height
    format_ = struct.pack("<IiiHHIIiiII", 40, width, lines_up, 1, bits, 0, size, 0, 0, 256 if palette else 0, 0)
    movie = index = b""
    for number in range(count):
        if number in changes:
            entry = b"".join(bytes([255 - k, number, k, 0]) for k in range(256))
            movie += chunk(b"00pc", struct.pack("<BBH", 0, 0, 0) + entry)
        grey = np.full((height, width), 20 * number + 3, np.uint8)
        grey[0], grey[:, : number + 2] = 250, 100
        rows = grey[::-1] if bottom_up else grey
        data = (rows if bits == 8 else np.repeat(rows[..., None], bits // 8, -1)).tobytes()
        index += b"00db" + struct.pack("<III", 0x10, 4 + len(movie), len(data))
        movie += chunk(b"00db", data)
    lists = chunk(b"LIST", b"strl" + chunk(b"strh", stream) + chunk(b"strf", format_ + palette))
    head = chunk(b"LIST", b"hdrl" + chunk(b"avih", header) + lists)
    body = b"AVI " + head + chunk(b"LIST", b"movi" + movie) + chunk(b"idx1", index)
    path.write_bytes(b"RIFF" + struct.pack("<I", len(body)) + body)
    return path


def palette_frames(changing: bool) -> Iterator[av.VideoFrame]:
    for number in range(12):
        frame = av.VideoFrame(62, 46, "pal8")
        rows_of(frame.planes[0], 62)[:] = number + np.arange(46, dtype=np.uint8)[:, None]
        colours = np.full((256, 4), 255, np.uint8)
        colours[:, 0], colours[:, 1], colours[:, 2] = np.arange(256), 90, 20 * number if changing else 30
        frame.planes[1].update(colours.tobytes())
        frame.pts, frame.time_base = number, Fraction(1, 10)
        yield frame


def encoded(path: Path, codec: str, frames: Iterator[av.VideoFrame], **options: str) -> Path:
    first = next(frames)
    with av.open(str(path), "w", options=options) as container:
        stream = cast(VideoStream, container.add_stream(codec, rate=10))
        stream.width, stream.height, stream.pix_fmt = first.width, first.height, first.format.name
        for frame in itertools.chain([first], frames):
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path


PALETTES: dict[str, Callable[[Path], Path]] = {
    "top-down.avi": lambda path: uncompressed_avi(path, 8, bottom_up=False),
    "bottom-up.avi": lambda path: uncompressed_avi(path, 8, bottom_up=True),
    "changes.avi": lambda path: uncompressed_avi(path, 8, bottom_up=True, changes=[5, 9]),
    "24.avi": lambda path: uncompressed_avi(path, 24, bottom_up=True),
    "32.avi": lambda path: uncompressed_avi(path, 32, bottom_up=True),
    "raw.avi": lambda path: encoded(path, "rawvideo", palette_frames(changing=False)),
    "raw-changes.avi": lambda path: encoded(path, "rawvideo", palette_frames(changing=True)),
    "raw.mov": lambda path: encoded(path, "rawvideo", palette_frames(changing=False)),
    "smc.mov": lambda path: encoded(path, "smc", palette_frames(changing=False)),
}


@pytest.mark.parametrize("name", PALETTES)
def test_palettes_and_bottom_up_pictures_come_in_any_order(tmp_path: Path, name: str) -> None:
    path = PALETTES[name](tmp_path / name)
    facts, wanted = probe(str(path)), decoded(path)
    assert facts.frame_count == len(wanted) == 12
    assert len({picture.tobytes() for picture in wanted}) == 12
    np.testing.assert_array_equal(read_out_of_order(path, facts), wanted)


def test_one_palette_does_not_keep_a_file_from_being_entered_anywhere(tmp_path: Path) -> None:
    assert probe(str(uncompressed_avi(tmp_path / "a.avi", 8, bottom_up=True))).seekable


def test_a_palette_is_kept_whatever_an_older_catalog_says(tmp_path: Path) -> None:
    """Catalogs once said that timestamps tell which frame is which, so that the beginning was never read."""
    path = uncompressed_avi(tmp_path / "a.avi", 8, bottom_up=False)
    with Reader(str(path), lookahead=1) as reader:
        seed = Seed(first_frame=7, frame_count=1, stride=1, last_frame=11)
        seed.seek.pts = seed.seek.frame_index = 7
        target = np.zeros((1, 24, 32, 3), np.uint8)
        assert reader.read([seed], NONE, [target]) == [None]
    np.testing.assert_array_equal(target[0], decoded(path)[7])


def test_the_digest_of_a_frame_is_of_all_that_is_shown_and_nothing_else() -> None:
    """Colours of a palette count, and the last byte of a pixel; neither padding nor bytes without a meaning do."""
    one, other = itertools.islice(palette_frames(changing=True), 2)
    other.planes[0].update(bytes(one.planes[0]))
    assert digest(one) != digest(other)
    for pixel_format, byte, counts in (("bgr0", 3, False), ("bgr0", 0, True), ("bgra", 3, True), ("0rgb", 0, False)):
        frames = [av.VideoFrame(30, 8, pixel_format) for _ in range(2)]
        for frame, value in zip(frames, (0, 9), strict=True):
            frame.planes[0].update(bytes([value]) * frame.planes[0].buffer_size)  # padding, too
            rows = rows_of(frame.planes[0], 120)
            rows[:] = 1
            rows[-1, -4 + byte] = value
        assert (digest(frames[0]) != digest(frames[1])) == counts


@pytest.mark.parametrize("name", ["rgb555be", "rgb565be", "bgr555be", "bgr565be"])
def test_sixteen_bits_in_the_other_order_have_their_colours(name: str) -> None:
    frame = av.VideoFrame(16, 8, name)
    rows_of(frame.planes[0], 32)[:] = np.tile(np.array([0x7C if "555" in name else 0xF8, 0], np.uint8), 16)
    target = np.zeros((8, 16, 3), np.uint8)
    FrameConverter().write(frame, NONE, target)
    red = (255, 0, 0) if name.startswith("rgb") else (0, 0, 255)
    np.testing.assert_allclose(target[4, 4], red, atol=8)


# Interlaced pictures


def fields(path: Path, flag: str) -> Path:
    """A bar that moves from field to field, without loss."""

    def pictures() -> Iterator[Picture]:
        for number in range(6):
            picture = np.zeros((96, 128, 3), np.uint8)
            for field in (0, 1):
                picture[field::2, 10 * (2 * number + field) : 10 * (2 * number + field) + 40] = (200, 60, 90)
            yield picture

    options = {"qp": "0", "x264-params": f"{flag}scenecut=0:threads=1"}
    return write_video(path, pictures(), Encoding(options=options))


@pytest.fixture(scope="module")
def interlaced(folder: Path) -> Path:
    return fields(folder / "interlaced.mp4", "tff=1:")


@pytest.fixture(scope="module")
def unflagged(folder: Path) -> Path:
    return fields(folder / "progressive.mp4", "")


@pytest.mark.parametrize("pixels", ["rgb", "yuv420", "gray"])
@pytest.mark.parametrize("size", [(96, 128), (24, 32), (200, 64)])
def test_interlaced_frames_are_scaled_whole(
    interlaced: Path, unflagged: Path, pixels: str, size: tuple[int, int]
) -> None:
    """As the same pixels without the flag are, at the size of the video, too, where fields of 4:2:0 share chroma."""
    resize = Resize(mode=Resize.EXACT, height=size[0], width=size[1], pixels=pixels)
    shape = {"rgb": (*size, 3), "yuv420": (size[0] * 3 // 2, size[1]), "gray": (*size, 1)}[pixels]
    found = []
    for path, flag in ((interlaced, True), (unflagged, False)):
        with av.open(str(path)) as container:
            frame = next(itertools.islice(container.decode(video=0), 3, None))
        assert frame.interlaced_frame == flag
        found.append(np.zeros(shape, np.uint8))
        FrameConverter().write(frame, resize, found[-1])
    np.testing.assert_array_equal(found[0], found[1])


def test_a_converter_takes_interlaced_frames_of_changing_colours(interlaced: Path) -> None:
    """The matrix of the frame counts, also where it changes; and the frame that was given keeps its flag."""
    converter = FrameConverter()
    with av.open(str(interlaced)) as container:
        frame = next(container.decode(video=0))
    pictures = []
    for matrix in (1, 5, 1):
        frame.colorspace = matrix
        target = np.zeros((96, 128, 3), np.uint8)
        converter.write(frame, NONE, target)
        pictures.append(target)
    assert frame.interlaced_frame
    assert not np.array_equal(pictures[0], pictures[1])
    np.testing.assert_array_equal(pictures[0], pictures[2])


# Where a file is entered


def with_edit(source: Path, target: Path, first_frame: int) -> Path:
    """A copy of an MP4 file whose edit list begins at a later frame (ISO/IEC 14496-12, 8.6.6)."""
    data = bytearray(source.read_bytes())
    at = data.index(b"elst") + 16
    (begin,) = struct.unpack_from(">i", data, at)
    struct.pack_into(">i", data, at, begin + first_frame * 60_000 // 25)
    target.write_bytes(data)
    return target


def with_two_edits(source: Path, target: Path) -> Path:
    """A copy that shows frames 4 to 13, and those from 25 on. The index is behind the frames, so that it may grow."""
    data = bytearray(source.read_bytes())
    assert data.index(b"mdat") < data.index(b"moov")
    at = data.index(b"elst")
    (begin,) = struct.unpack_from(">i", data, at + 16)
    tick = 60_000 // 25
    edits = struct.pack(">IiI", 400, begin + 4 * tick, 1 << 16) + struct.pack(">IiI", 600, begin + 25 * tick, 1 << 16)
    data[at + 8 : at + 24] = struct.pack(">I", 2) + edits
    for box in (b"elst", b"edts", b"trak", b"moov"):
        place = data.index(box) - 4
        struct.pack_into(">I", data, place, struct.unpack_from(">I", data, place)[0] + 12)
    target.write_bytes(data)
    return target


ENTERED: dict[str, Callable[[Path, Path], Path]] = {
    "edited.mp4": lambda path, plain: with_edit(plain, path, 14),
    "edited-at-a-keyframe.mp4": lambda path, plain: with_edit(plain, path, 20),
    "h264.ts": lambda path, plain: copied(plain, path),
    "wraps.ts": lambda path, plain: copied(plain, path, output_ts_offset="95441.5"),
    "h264.flv": lambda path, plain: copied(plain, path),
    **{
        f"mpeg2{suffix}": lambda path, _: write_video(
            path, numbered(FRAMES, WIDTH, HEIGHT), Encoding("mpeg2", gop=10, bframes=2)
        )
        for suffix in (".ts", ".mpg", ".mxf")
    },
    "mpeg4.asf": lambda path, _: write_video(path, numbered(FRAMES, WIDTH, HEIGHT), Encoding("mpeg4", gop=10)),
}


@pytest.mark.parametrize("name", ENTERED)
def test_containers_are_entered_at_keyframes(tmp_path: Path, plain: Path, name: str) -> None:
    """Also where demuxers seek beside the keyframe: with edit lists, by times of decoding, in ASF."""
    path = ENTERED[name](tmp_path / name, plain)
    facts, wanted = probe(str(path)), decoded(path)
    assert facts.seekable
    assert facts.frame_count == len(wanted) >= 20
    np.testing.assert_array_equal(read_out_of_order(path, facts), wanted)
    last = facts.keyframe_frame[-1]
    assert last > 0
    with Reader(str(path)) as reader:
        seed = Seed(first_frame=facts.frame_count - 1, frame_count=1, stride=1, last_frame=facts.frame_count - 1)
        assert seek_to(row_of(facts), facts.frame_count - 1, seed.seek)
        assert reader.read([seed], NONE, [np.zeros((1, HEIGHT, WIDTH, 3), np.uint8)]) == [None]
        assert reader.tally.decoded == facts.frame_count - last


def test_frames_between_two_edits_are_left_out(tmp_path: Path, plain: Path) -> None:
    path = with_two_edits(plain, tmp_path / "a.mp4")
    facts, wanted = probe(str(path)), decoded(path)
    assert facts.frame_count == len(wanted) == 25
    np.testing.assert_array_equal(read_out_of_order(path, facts), wanted)


@pytest.mark.parametrize("lookahead", [1, 2, 4])
def test_packets_that_are_not_shown_do_not_count(lookahead: int) -> None:
    """Whatever their timestamps are: those of an edit list's run-in lie between those of shown frames."""
    given = [(0, False), (30, True), (20, False), (10, False), (15, True), (50, False), (40, False)]
    packets = [SimpleNamespace(pts=pts, size=1, is_discard=unshown) for pts, unshown in given]
    order = selection.Order(iter(cast(Any, packets)), Seek(pts=0, frame_index=5), lookahead)
    numbers = [(packet.pts, number) for packet, number in order]
    assert [pts for pts, _ in numbers] == [pts for pts, _ in given]
    if lookahead > 1:  # what frames that are shown out of order need
        assert [number for _, number in numbers] == [5, -1, 7, 6, -1, 9, 8]


# Clocks


@pytest.mark.parametrize("offset", ["0", "95441.5", "95443", "-0.5"])
@pytest.mark.parametrize("suffix", [".ts", ".mpg"])
def test_seconds_count_from_the_beginning_wherever_the_clock_begins(tmp_path: Path, suffix: str, offset: str) -> None:
    """33 bits of 90 kHz run over after 26.5 h; FFmpeg counts what comes within a minute before that from below zero."""
    source = write_video(tmp_path / "a.mpg", numbered(30, WIDTH, HEIGHT), Encoding("mpeg2", gop=10, bframes=2))
    path = copied(source, tmp_path / f"b{suffix}", output_ts_offset=offset)
    timing = Timing(row_of(probe(str(path))))
    assert timing.frames(0.4, 0.8) == range(10, 20)
    assert timing.frames(0, None) == range(30)


def test_times_of_decoding_give_the_rate_where_timestamps_are_not_those_of_display() -> None:
    """As of H.264 with B-frames in an AVI that declares two ticks a frame."""
    stamps, decoding = [2, 6, 8, 4, 12, 14, 10, 16], range(0, 16, 2)
    times = measure(stamps, Fraction(1, 50), 50.0, 0, 0.0, list(decoding))
    assert (times.fps, times.duration_s) == pytest.approx((25, 8 / 25))
    uneven = [0, 2, 4, 12, 14, 16, 18, 20]
    assert measure(stamps, Fraction(1, 50), 50.0, 0, 0.0, uneven).fps == 50


@pytest.mark.parametrize(("begin_s", "start_s"), [(-2.0, 0.5), (-0.02, -1.5 + 0.02), (0.0, -1.5), (-1.5, 0.0)])
def test_a_beginning_below_zero_counts_where_the_video_has_that_clock(begin_s: float, start_s: float) -> None:
    assert measure(range(-15, 15), Fraction(1, 10), 10.0, 1, begin_s).start_s == pytest.approx(start_s)


def test_the_run_in_of_sound_is_no_other_clock() -> None:
    """AAC and Opus begin a little before zero, and players leave that out."""
    assert measure(range(30), Fraction(1, 10), 10.0, 1, -0.021).start_s == 0


# What is told


def noted(facts: VideoFacts) -> dict[str, str]:
    return dict(lines(facts.notes))


def test_a_usual_file_has_no_notes(plain: Path) -> None:
    assert probe(str(plain)).notes == ""


def test_interlaced_files_say_so(interlaced: Path) -> None:
    assert "6 of 6" in noted(probe(str(interlaced)))["interlaced"]


@pytest.mark.parametrize(
    ("sizes", "default", "taken"),
    [
        ([(64, 48), (96, 80)], 1, (96, 80)),
        ([(96, 80), (64, 48)], 1, (64, 48)),
        ([(64, 48), (96, 80)], None, (96, 80)),  # the largest, as ffmpeg takes it
        ([(64, 48), (64, 48)], None, (64, 48)),
    ],
)
def test_of_several_tracks_the_default_one_is_taken(
    tmp_path: Path, sizes: list[tuple[int, int]], default: int | None, taken: tuple[int, int]
) -> None:
    path = tmp_path / "a.mkv"
    parts = [
        write_video(tmp_path / f"{place}.mp4", numbered(10, *size), Encoding()) for place, size in enumerate(sizes)
    ]
    with av.open(str(path), "w", options={"default_mode": "passthrough"}) as made:
        for place, part in enumerate(parts):
            with av.open(str(part)) as given:
                track = made.add_stream_from_template(given.streams.video[0])
                track.disposition = av.stream.Disposition(int(place == default))
        for place, part in enumerate(parts):
            with av.open(str(part)) as given:
                for packet in given.demux(video=0):
                    if packet.dts is not None:
                        packet.stream = made.streams.video[place]
                        made.mux(packet)
    facts = probe(str(path))
    assert (facts.width, facts.height) == taken
    assert "2 tracks" in noted(facts)["tracks"]
    assert read_out_of_order(path, facts)[3].shape == (taken[1], taken[0], 3)


def test_a_further_track_may_have_an_unknown_codec(tmp_path: Path, plain: Path) -> None:
    path = tmp_path / "a.mkv"
    with av.open(str(plain)) as given, av.open(str(path), "w") as made:
        tracks = [made.add_stream_from_template(given.streams.video[0]) for _ in range(2)]
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = tracks[0]
                made.mux(packet)
    known, name, rest = path.read_bytes().rpartition(b"V_MPEG4/ISO/AVC")
    facts = probe(io.BytesIO(known + name.replace(b"AVC", b"XYZ") + rest))
    assert facts.frame_count == probe(str(plain)).frame_count
    assert "track 1: of an unknown codec" in noted(facts)["tracks"]


def test_a_size_that_changes_is_told(tmp_path: Path) -> None:
    parts = [
        write_video(tmp_path / f"{width}.ts", numbered(10, width, 48), Encoding("mpeg2", start_s=start))
        for width, start in ((64, 0.0), (96, 0.4))
    ]
    path = tmp_path / "both.ts"
    path.write_bytes(b"".join(part.read_bytes() for part in parts))
    assert noted(probe(str(path)))["sizes"].startswith("64 x 48 from frame 0 on, 96 x 48 from frame ")


def test_edges_that_players_cut_off_are_told(tmp_path: Path) -> None:
    """PixelCropLeft (RFC 9559) in place of an element of the same length."""
    path = write_video(tmp_path / "a.mkv", numbered(3, WIDTH, HEIGHT), Encoding())
    data = path.read_bytes()
    assert data.count(b"\x54\xb2\x81\x04") == 1
    path.write_bytes(data.replace(b"\x54\xb2\x81\x04", b"\x54\xcc\x81\x06"))
    facts = probe(str(path))
    assert "58 x 48 of 64 x 48" in noted(facts)["crop"]
    assert (facts.width, facts.height) == (WIDTH, HEIGHT)


def test_grey_of_many_bits_is_told(tmp_path: Path) -> None:
    def frames() -> Iterator[av.VideoFrame]:
        for number in range(3):
            frame = av.VideoFrame(32, 24, "gray16le")
            frame.planes[0].update(bytes([number]) * frame.planes[0].buffer_size)
            frame.pts, frame.time_base = number, Fraction(1, 10)
            yield frame

    assert "16 bits" in noted(probe(str(encoded(tmp_path / "a.mkv", "ffv1", frames()))))["bits"]


# Files that were cut off


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.avi", "a.gif"])
@pytest.mark.parametrize("share", [0.75, 0.9])
def test_the_sound_part_of_a_file_that_was_cut_off_can_be_used(
    tmp_path: Path, plain: Path, name: str, share: float
) -> None:
    source = plain
    if name == "a.avi":
        source = write_video(tmp_path / "b.avi", numbered(FRAMES, WIDTH, HEIGHT), Encoding("mpeg4", gop=10, bframes=2))
    whole = tmp_path / name
    if name == "a.gif":
        write_video(whole, numbered(FRAMES, WIDTH, HEIGHT), Encoding("gif", pixel_format="rgb8", fps=20))
    else:
        copied(source, whole, **({"movflags": "faststart"} if name == "a.mp4" else {}))
    wanted = decoded(whole)
    data = whole.read_bytes()
    whole.write_bytes(data[: int(share * len(data))])
    with pytest.raises(BadVideo):
        probe(str(whole))
    facts = salvage(str(whole))
    assert 8 < facts.frame_count < FRAMES
    assert str(facts.frame_count) in noted(facts)["salvaged"]
    np.testing.assert_array_equal(read_out_of_order(whole, facts), wanted[: facts.frame_count])


def test_salvaging_changes_nothing_of_a_whole_file(plain: Path) -> None:
    assert salvage(str(plain)) == probe(str(plain))


def test_what_holds_no_sound_frame_stays_an_error(tmp_path: Path, plain: Path) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(plain.read_bytes()[:1500])  # without its index
    with pytest.raises(BadVideo, match="not one frame") as caught:
        salvage(str(path))
    assert caught.value.kind == "truncated"


# Animated pictures


def animated_png(path: Path, profile: bool) -> Path:
    def frames() -> Iterator[av.VideoFrame]:
        for number, picture in enumerate(numbered(6, WIDTH, HEIGHT)):
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, 10)
            yield frame

    encoded(path, "apng", frames(), plays="0")
    if profile:
        data = path.read_bytes()
        content = b"icc\0\0" + zlib.compress(bytes(128))
        chunk = struct.pack(">I", len(content)) + b"iCCP" + content + struct.pack(">I", zlib.crc32(b"iCCP" + content))
        path.write_bytes(data[:33] + chunk + data[33:])  # behind the header
    return path


@pytest.mark.parametrize("profile", [False, True])
def test_animated_png_is_read(tmp_path: Path, profile: bool) -> None:
    """With a colour profile, too, which ends the process where PyAV gets at it."""
    path = animated_png(tmp_path / "a.apng", profile)
    facts = probe(str(path))
    assert facts.frame_count == 6
    assert facts.fps == pytest.approx(10)
    np.testing.assert_array_equal(read_out_of_order(path, facts), list(numbered(6, WIDTH, HEIGHT)))
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(BadVideo) as caught:
        probe(str(path))
    assert caught.value.kind == "truncated"


@pytest.mark.parametrize(
    ("head", "kind", "words"),
    [
        (b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\x02\0\0\0", "format", "an animated WebP, .* convert it"),
        (b"RIFF\x40\0\0\0WEBPVP8X\x0a\0\0\0\x10\0\0\0", "not_video", "a picture \\(WebP\\)"),
        (b"RIFF\x40\0\0\0WEBPVP8 \x0a\0\0\0", "not_video", "a picture \\(WebP\\)"),
        (b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR", "not_video", "a picture \\(PNG\\)"),
    ],
)
def test_pictures_are_called_what_they_are(tmp_path: Path, head: bytes, kind: str, words: str) -> None:
    path = tmp_path / "a.mp4"
    path.write_bytes(head + bytes(100))
    with pytest.raises(BadVideo, match=words) as caught:
        probe(str(path))
    assert caught.value.kind == kind
