"""A quick build decodes nothing and reads little; and whatever it has not proven, the reader does before it shows a
frame."""

from __future__ import annotations

import io
import struct
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from av.packet import Packet
from numpy.typing import NDArray

from essp_common.catalog.rows import VideoRow
from essp_common.errors import BadVideo
from essp_common.objects.ranged import RangedFile
from essp_common.objects.seekable import SeekableFile
from essp_common.pb.v1.messages_pb2 import Resize, Seed
from essp_engine.planning.plan import seek_to
from essp_engine.video.container import VideoFile, open_video
from essp_engine.video.probe import VideoFacts, probe
from essp_engine.video.quick import quick
from essp_engine.video.reader import Reader
from essp_engine.video.synthetic import Encoding, numbered, pack_bframes, write_video

FRAMES, WIDTH, HEIGHT = 40, 64, 48
UNKNOWN = ("pixel_format", "notes", "unproven")

ZOO = {
    "a.mp4": Encoding(gop=10, bframes=2),
    "vfr.mp4": Encoding(gop=10, bframes=2, intervals=(1, 1, 3)),
    "late.mov": Encoding(gop=10, bframes=2, start_s=2.0),
    "hevc.mp4": Encoding(codec="hevc", gop=10, bframes=3, open_gop=True),
    "av1.mp4": Encoding(codec="av1", gop=10),
    "mjpeg.mov": Encoding(codec="mjpeg", pixel_format="yuvj420p"),
    "a.mkv": Encoding(gop=10, bframes=2),
    "late.mkv": Encoding(gop=10, start_s=3.3),
    "vp8.webm": Encoding(codec="vp8", gop=10),
}
DOUBTFUL = {
    "mpeg4.mp4": Encoding(codec="mpeg4", gop=10),
    "mpeg4.avi": Encoding(codec="mpeg4", gop=10),
    "444.mp4": Encoding(gop=10, pixel_format="yuv444p"),
    "open.mp4": Encoding(gop=10, bframes=3, open_gop=True),
}


def row_of(facts: VideoFacts, size_bytes: int) -> VideoRow:
    return VideoRow("a", "a", "", "", size_bytes, "", **{f.name: getattr(facts, f.name) for f in fields(facts)})


def frames_of(path: Path, row: VideoRow, wanted: list[int]) -> list[NDArray[np.uint8] | BadVideo]:
    """Each frame, asked for by itself, on one open file."""
    found: list[NDArray[np.uint8] | BadVideo] = []
    with Reader(str(path), lookahead=row.lookahead, declared=row.declared) as reader:
        for number in wanted:
            seed = Seed(first_frame=number, frame_count=1, stride=1, last_frame=number)
            if not seek_to(row, number, seed.seek):
                seed.ClearField("seek")
            target = np.zeros((1, row.height, row.width, 3), np.uint8)
            (error,) = reader.read([seed], Resize(mode=Resize.NONE), [target])
            found.append(error or target[0])
    return found


def check_frames(path: Path, facts: VideoFacts, wanted: list[int]) -> None:
    """The frames are those of a plain decode."""
    with av.open(str(path)) as container:
        plain = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    for number, frame in zip(wanted, frames_of(path, row_of(facts, path.stat().st_size), wanted), strict=True):
        assert isinstance(frame, np.ndarray), frame
        np.testing.assert_array_equal(frame, plain[number])


@pytest.mark.parametrize("name", ZOO)
def test_the_facts_are_those_of_a_probe_and_the_frames_those_of_a_plain_decode(tmp_path: Path, name: str) -> None:
    path = write_video(tmp_path / name, numbered(FRAMES, WIDTH, HEIGHT), ZOO[name])
    facts = quick(str(path))
    assert facts is not None
    proven = asdict(probe(str(path)))
    assert {k: v for k, v in asdict(facts).items() if k not in UNKNOWN} == {
        k: v for k, v in proven.items() if k not in UNKNOWN
    }
    of_index = name.endswith((".mp4", ".mov"))
    assert facts.unproven == ("packets order pixels damage" if of_index else "order pixels damage")
    assert quick(io.BytesIO(path.read_bytes())) == facts
    check_frames(path, facts, [25, 3, 39, 11, 12, 0])


@pytest.mark.parametrize("name", DOUBTFUL)
def test_keyframes_that_cannot_be_relied_on_are_not_used(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / name, numbered(FRAMES, WIDTH, HEIGHT), DOUBTFUL[name])
    facts = quick(str(path))
    assert facts is not None
    assert (facts.frame_count, facts.seekable, facts.keyframe_frame) == (FRAMES, False, ())
    check_frames(path, facts, [25, 3, 39, 12])
    monkeypatch.setattr("essp_engine.video.quick.WHOLE_PIXELS", 0)
    assert quick(str(path)) is None, "a long one is probed"


def test_files_whose_packets_are_not_frames_in_order_and_truncated_ones_are_probed(tmp_path: Path) -> None:
    encoding = Encoding(codec="mpeg4", bframes=2)
    packed = pack_bframes(write_video(tmp_path / "a.avi", numbered(50), encoding), tmp_path / "b.avi")
    assert quick(str(packed)) is None
    assert quick(str(write_video(tmp_path / "a.ts", numbered(20), Encoding(gop=10)))) is None
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10))
    first = index_first(path)
    assert quick(io.BytesIO(first)) is not None
    assert quick(io.BytesIO(first[:-1000])) is None


def boxes(data: bytes) -> dict[bytes, bytes]:
    found, at = {}, 0
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        found[data[at + 4 : at + 8]] = data[at : at + length]
        at += length
    return found


def index_first(source: Path) -> bytes:
    """An MP4 file with its index before its media data."""
    target = source.with_name("first.mp4")
    with av.open(str(source)) as given, av.open(str(target), "w", options={"movflags": "faststart"}) as made:
        stream = made.add_stream_from_template(given.streams.video[0])
        for packet in given.demux(video=0):
            if packet.dts is not None:
                packet.stream = stream
                made.mux(packet)
    return target.read_bytes()


def test_an_index_that_leads_beyond_the_end_gets_no_more_bytes_than_were_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """PyAV copies whatever it is given into FFmpeg's buffer."""
    data = bytearray(write_video(tmp_path / "a.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10)).read_bytes())
    data[data.index(b"stsz") + 17] = 1  # a first frame of more than 64 KiB
    excess: list[int] = []

    def noted(file: VideoFile, *arguments: Any, **named: Any) -> Any:
        if isinstance(file, SeekableFile):
            read = file.read

            def counted(length: int) -> bytes | None:
                found = read(length) or b""
                excess.append(len(found) - length)
                return found[:length]

            monkeypatch.setattr(file, "read", counted)
        return open_video(file, *arguments, **named)

    monkeypatch.setattr("essp_engine.video.quick.open_video", noted)
    assert quick(io.BytesIO(data)) is None
    assert max(excess) <= 0


@pytest.mark.parametrize("index", ["first", "last"])
def test_of_thirty_megabytes_less_than_one_is_read(tmp_path: Path, index: str) -> None:
    """Media data are padded: a large box, in the middle of which nobody may look."""
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10))
    found = boxes(path.read_bytes())
    media, padding = found[b"mdat"], 30 * 2**20
    grown = struct.pack(">I4s", len(media) + padding, b"mdat") + media[8:] + bytes(padding)
    if index == "last":
        data = found[b"ftyp"] + found.get(b"free", b"") + grown + found[b"moov"]
    else:
        moved = index_first(path)
        data = moved + struct.pack(">I4s", padding, b"mdat") + bytes(padding - 8)
    read = []

    def fetch(start: int, length: int) -> bytes:
        read.append(length)
        return data[start : start + length]

    facts = quick(io.BufferedReader(RangedFile(len(data), fetch)))
    assert facts is not None
    assert facts.frame_count == FRAMES
    assert "packets" in facts.unproven
    assert sum(read) <= 2**20


def test_nothing_is_decoded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10))
    monkeypatch.setattr("essp_engine.video.probe.Reader", None)
    assert quick(str(path)) is not None


# What is wrong in a file becomes an error of the clips that meet it, and never a wrong frame.


def rewritten(source: Path, target: Path, change: dict[int, bytes]) -> Path:
    """A file with the content of some packets replaced; its index says the same."""
    with av.open(str(source)) as given, av.open(str(target), "w") as made:
        stream = made.add_stream_from_template(given.streams.video[0])
        for number, packet in enumerate(given.demux(video=0)):
            if packet.dts is None:
                continue
            content = change.get(number)
            new = packet if content is None else Packet(content)
            if content is not None:
                new.pts, new.dts, new.time_base = packet.pts, packet.dts, packet.time_base
                new.is_keyframe = packet.is_keyframe
            new.stream = stream
            made.mux(new)
    return target


def test_a_packet_that_shows_nothing_fails_the_clips_around_it(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10))
    nothing = b"\0\0\0\x0e\x06\x05\x0a" + bytes(10) + b"\x80"  # a message for people, and no picture
    odd = rewritten(path, tmp_path / "odd.mp4", {14: nothing})
    facts = quick(str(odd))
    assert facts is not None
    assert facts.frame_count == FRAMES
    row = row_of(facts, odd.stat().st_size)
    before, there, behind, later = frames_of(odd, row, [12, 14, 16, 25])
    assert isinstance(there, BadVideo)
    assert isinstance(behind, BadVideo)
    with av.open(str(path)) as container:
        plain = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert isinstance(before, np.ndarray)
    np.testing.assert_array_equal(before, plain[12])
    assert not isinstance(later, np.ndarray) or np.array_equal(later, plain[25])


def test_a_keyframe_that_the_index_invents_is_not_entered(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10))
    facts = quick(str(path))
    assert facts is not None
    data = path.read_bytes()
    at = data.index(b"stss")
    places = [int.from_bytes(data[at + 12 + 4 * k : at + 16 + 4 * k], "big") for k in range(4)]
    assert places == [1, 11, 21, 31]
    invented = struct.pack(">3I", 14, 21, 31)
    odd = tmp_path / "odd.mp4"
    odd.write_bytes(data[: at + 16] + invented + data[at + 28 :])
    claimed = quick(str(odd))
    assert claimed is not None
    assert claimed.keyframe_frame == (0, 13, 20, 30)
    check_frames(odd, claimed, [15, 22, 5])


def test_frames_of_another_size_than_declared_are_an_error(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10))
    facts = quick(str(path))
    assert facts is not None
    row = replace(row_of(facts, path.stat().st_size), width=WIDTH // 2)
    (error,) = frames_of(path, row, [15])
    assert isinstance(error, BadVideo)
    assert error.kind == "changed"


def test_a_damaged_group_of_pictures_fails_its_clips_only(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES, WIDTH, HEIGHT), Encoding(gop=10))
    odd = rewritten(path, tmp_path / "odd.mp4", {k: b"\xff" * 60 for k in range(15, 20)})
    facts = quick(str(odd))
    assert facts is not None
    row = row_of(facts, odd.stat().st_size)
    with pytest.raises(BadVideo):
        probe(str(odd))
    first, damaged, last = frames_of(odd, row, [5, 17, 35])
    assert isinstance(damaged, BadVideo)
    assert isinstance(first, np.ndarray)
    assert not isinstance(last, BadVideo) or last.kind in ("damaged", "changed")
