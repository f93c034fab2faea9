"""What a probe claims of a file is true, and what is not a sound video is said so."""

from __future__ import annotations

import gc
import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import av
import pytest
from av.video.frame import VideoFrame

from essp_common.catalog.rows import VideoRow
from essp_common.catalog.timing import Timing
from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Seek
from essp_engine.video import probe as probing
from essp_engine.video.container import Limits
from essp_engine.video.digest import digest
from essp_engine.video.probe import VideoFacts, probe
from essp_engine.video.reader import Reader
from essp_engine.video.synthetic import Encoding, numbered, pack_bframes, write_video
from tests.harness import transport_streams
from tests.lanes import across, often

FRAMES = 50


DEPTHS = ["whole", "sampled"]


@pytest.fixture(params=DEPTHS)
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to check a file: as a small one, and as one too large to decode whole."""
    if request.param == "sampled":
        monkeypatch.setattr(probing, "WHOLE_PIXELS", 0)
    return str(request.param)


def _decoded(path: Path) -> list[int | None]:
    with av.open(str(path)) as container:
        return [frame.pts for frame in container.decode(video=0)]


PLAIN = {
    "a.mp4": Encoding(bframes=3),
    "open.mp4": Encoding(bframes=3, open_gop=True),
    "a.mkv": Encoding(codec="hevc", bframes=3, open_gop=True),
    "a.avi": Encoding(codec="mpeg4"),
    "b.avi": Encoding(codec="mpeg4", bframes=2),
    "a.webm": Encoding(codec="vp9"),
    "vfr.mp4": Encoding(bframes=2, intervals=(1, 1, 3)),
    "late.mov": Encoding(bframes=2, start_s=2.0),
}


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize(("depth", "name"), often(across(DEPTHS, PLAIN), len(PLAIN)), indirect=["depth"])
def test_facts_are_those_of_a_plain_decode(tmp_path: Path, name: str) -> None:
    encoding = PLAIN[name]
    path = write_video(tmp_path / name, numbered(FRAMES, 162, 122), encoding)
    facts = probe(str(path))
    stamps = _decoded(path)
    assert (facts.width, facts.height, facts.frame_count) == (162, 122, len(stamps))
    assert facts.codec == encoding.codec
    assert facts.seekable
    assert facts.keyframe_frame == (0, 12, 24, 36, 48)
    assert facts.keyframe_pts == tuple(stamps[number] for number in facts.keyframe_frame)
    assert list(facts.keyframe_offset) == sorted(set(facts.keyframe_offset))
    assert probe(io.BytesIO(path.read_bytes())) == facts


def test_sampling_decodes_part_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large file in good order is not decoded whole, and gets the same facts."""
    path = write_video(tmp_path / "a.mp4", numbered(400, 64, 48), Encoding(bframes=2, gop=10))
    whole = probe(str(path), verify=True)
    decoded = []

    def noted(frame: VideoFrame) -> int:
        decoded.append(frame)
        return digest(frame)

    monkeypatch.setattr(probing, "digest", noted)
    monkeypatch.setattr(probing, "WHOLE_PIXELS", 0)
    assert probe(str(path)) == whole
    assert len(decoded) < 100


def test_frames_between_distant_keyframes_do_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "a.ts", numbered(160, 64, 48), Encoding(gop=80))
    facts = probe(str(path))
    present: list[int] = []

    def noted(frame: VideoFrame) -> int:
        present.append(sum(isinstance(one, VideoFrame) for one in gc.get_objects()))
        return digest(frame)

    monkeypatch.setattr(probing, "digest", noted)
    monkeypatch.setattr(probing, "HELD_BYTES", 10 * 64 * 48 * 3 // 2)
    assert probe(str(path)) == facts
    assert facts.keyframe_frame == (0, 80)
    assert max(present) < 40


@pytest.mark.usefixtures("depth")
def test_keyframes_that_do_not_stand_alone_are_not_trusted(tmp_path: Path) -> None:
    """Intra refresh marks recovery points as keyframes; decoding from one gives other frames at first."""
    options = {"x264-params": "intra-refresh=1:scenecut=0:keyint=12:threads=1"}
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES), Encoding(options=options))
    with av.open(str(path)) as container:
        assert sum(packet.is_keyframe for packet in container.demux(video=0) if packet.size) > 1
    facts = probe(str(path))
    assert facts.frame_count == FRAMES
    assert not facts.seekable
    assert facts.keyframe_pts == ()


class _NeedsTheStart(Reader):
    """A decoder that goes wrong unless it has seen the first packet, as with 4:4:4 files of old x264 versions."""

    seen = False

    def frames(self, seek: Seek | None = None, *, strict: bool = True) -> Iterator[tuple[int, VideoFrame]]:
        self.seen = True
        return super().frames(seek, strict=strict)

    def from_keyframe(self, seek: Seek, *, strict: bool = True) -> Iterator[VideoFrame] | None:
        shown = super().from_keyframe(seek, strict=strict)
        return shown if self.seen or shown is None else islice(shown, 1, None)


@pytest.mark.usefixtures("depth")
def test_keyframes_that_need_the_start_of_the_file_are_not_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES), Encoding())
    assert probe(str(path)).seekable
    monkeypatch.setattr(probing, "Reader", _NeedsTheStart)
    assert not probe(str(path)).seekable


@pytest.mark.usefixtures("depth")
def test_packed_bframes_are_counted_and_not_seekable(tmp_path: Path) -> None:
    path = pack_bframes(
        write_video(tmp_path / "a.avi", numbered(FRAMES), Encoding(codec="mpeg4", bframes=2)), tmp_path / "b.avi"
    )
    with av.open(str(path)) as container:
        sizes = [packet.size for packet in container.demux(video=0) if packet.size]
    assert min(sizes) <= 8
    facts = probe(str(path))
    assert facts.frame_count == len(_decoded(path))
    assert not facts.seekable


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize(
    ("degrees", "clockwise", "size"), [(90, 270, (48, 64)), (180, 180, (64, 48)), (0, 0, (64, 48))]
)
def test_size_is_as_displayed(tmp_path: Path, degrees: int, clockwise: int, size: tuple[int, int]) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(8, 64, 48), Encoding(rotation=degrees))
    facts = probe(str(path))
    assert (facts.rotation, (facts.width, facts.height)) == (clockwise, size)


def test_time_is_told(tmp_path: Path) -> None:
    facts = probe(str(write_video(tmp_path / "a.mp4", numbered(FRAMES), Encoding(fps=20))))
    assert (facts.fps, facts.duration_s) == (20.0, 2.5)
    assert facts.time_base[0] / facts.time_base[1] * facts.keyframe_pts[1] == pytest.approx(12 / 20)


def _kind(source: Path, limits: Limits | None = None) -> str:
    with pytest.raises(BadVideo) as caught:
        probe(str(source), limits=limits)
    return caught.value.kind


def test_what_is_not_a_video_is_said(tmp_path: Path) -> None:
    text = tmp_path / "text.mp4"
    text.write_text("no video, " * 1000)
    playlist = tmp_path / "list.mp4"
    target = write_video(tmp_path / "target.ts", numbered(8), Encoding())
    playlist.write_text(f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:1,\n{target}\n#EXT-X-ENDLIST\n")
    script = tmp_path / "concat.mp4"
    script.write_text(f"ffconcat version 1.0\nfile {target.name}\n")
    empty = tmp_path / "empty.mp4"
    empty.touch()
    assert [_kind(path) for path in (text, playlist, script)] == ["not_video"] * 3
    assert _kind(empty) == "empty"
    assert _kind(tmp_path / "none.mp4") == "vanished"
    assert _kind(tmp_path) == "not_video"


def test_names_are_not_taken_for_protocols(tmp_path: Path) -> None:
    write_video(tmp_path / "a.mp4", numbered(4), Encoding())
    assert _kind(Path(f"concat:{tmp_path}/a.mp4")) == "vanished"


@pytest.mark.parametrize(
    ("depth", "share", "name"),
    often(across(DEPTHS, [0.3, 0.6, 0.95], ["a.avi", "faststart.mp4", "a.mp4", "a.mkv"]), 10),
    indirect=["depth"],
)
def test_truncated_files_are_found(tmp_path: Path, name: str, share: float, depth: str) -> None:
    codec = "mpeg4" if name.endswith("avi") else "h264"
    path = write_video(tmp_path / name, numbered(FRAMES), Encoding(codec=codec))
    if name.startswith("fast"):
        with (
            av.open(str(path)) as source,
            av.open(str(tmp_path / "b.mp4"), "w", options={"movflags": "faststart"}) as out,
        ):
            stream = out.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.dts is not None:
                    packet.stream = stream
                    out.mux(packet)
        path = tmp_path / "b.mp4"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    assert _kind(path) == "truncated"


def test_a_recording_that_has_sound_in_its_middle_is_whole() -> None:
    """FFmpeg finds that stream only when it comes there: the beginning and the end of the file do not name it."""
    path = io.BytesIO(transport_streams.with_late_sound())
    with av.open(path) as container:
        assert len(container.streams) == 1
    facts = probe(path)
    assert facts.frame_count == transport_streams.FRAMES
    with Reader(path, lookahead=facts.lookahead) as reader:
        assert sum(1 for _ in reader.frames()) == transport_streams.FRAMES


def test_a_live_recording_that_does_not_know_its_size_is_sound(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mkv", numbered(FRAMES), Encoding())
    data = bytearray(path.read_bytes())
    size_at = data.index(b"\x18S\x80g") + 4
    assert data[size_at] == 1, "a size of eight bytes"
    data[size_at + 1 : size_at + 8] = b"\xff" * 7
    path.write_bytes(data)
    assert probe(str(path)).frame_count == FRAMES


def test_damage_that_the_decoder_notices_is_found(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES), Encoding())
    with av.open(str(path)) as container:
        packets = [(packet.pos, packet.size) for packet in container.demux(video=0) if packet.size]
    start, size = packets[20]
    assert start is not None
    data = bytearray(path.read_bytes())
    data[start : start + size] = b"\xff" * size
    path.write_bytes(data)
    assert _kind(path) == "damaged"


def test_limits(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES), Encoding())
    assert _kind(path, Limits(frames=FRAMES - 1)) == "limit"
    assert _kind(path, Limits(pixels=100)) == "limit"
    assert _kind(path, Limits(size_bytes=100)) == "limit"
    assert isinstance(probe(str(path), limits=Limits(frames=FRAMES)), VideoFacts)


@pytest.mark.parametrize("codec", ["vp8", "vp9", "av1"])
def test_large_files_of_any_codec_are_not_decoded_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str
) -> None:
    path = write_video(tmp_path / "a.webm", numbered(240, 64, 48), Encoding(codec=codec, gop=10))
    whole = probe(str(path), verify=True)
    assert whole.seekable
    decoded = noted_digests(monkeypatch)
    monkeypatch.setattr(probing, "WHOLE_PIXELS", 0)
    assert probe(str(path)) == whole
    # libvpx hides frames of VP8 in packets of their own, so packets tell nothing, and all is decoded: but once.
    assert len(decoded) < (240 * 1.4 if codec == "vp8" else 120)


def test_a_large_file_of_another_container_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_video(tmp_path / "a.flv", numbered(240, 64, 48), Encoding(bframes=2, gop=10))
    whole = probe(str(path), verify=True)
    assert whole.seekable
    decoded = noted_digests(monkeypatch)
    monkeypatch.setattr(probing, "WHOLE_PIXELS", 0)
    assert probe(str(path)) == whole
    assert 240 <= len(decoded) < 240 * 1.4


def noted_digests(monkeypatch: pytest.MonkeyPatch) -> list[VideoFrame]:
    """All frames that a probe looks at from now on."""
    decoded: list[VideoFrame] = []

    def noted(frame: VideoFrame) -> int:
        decoded.append(frame)
        return digest(frame)

    monkeypatch.setattr(probing, "digest", noted)
    return decoded


@pytest.mark.parametrize("name", ["a.mp4", "a.mkv", "a.flv", "a.ts", "a.webm"])
def test_rates_and_lengths_are_those_of_the_timestamps(tmp_path: Path, name: str) -> None:
    """Containers with a clock of milliseconds declare 1000 frames a second, or nothing at all."""
    codec = "vp9" if name.endswith("webm") else "h264"
    for intervals, variable in (((), False), ((1.0, 1.0, 9.0), True)):
        path = write_video(tmp_path / name, numbered(50), Encoding(codec=codec, fps=30, intervals=intervals))
        facts = probe(str(path))
        with av.open(str(path)) as container:
            times = [frame.time or 0.0 for frame in container.decode(video=0)]
        length_s = times[-1] - times[0]
        assert length_s < facts.duration_s <= length_s + 10 / 30
        assert facts.fps == pytest.approx(50 / facts.duration_s)
        assert bool(facts.timestamps) == variable
        row = VideoRow("v", "u", "", "", 1, "e", **{f: getattr(facts, f) for f in facts.__slots__})
        shown = [Timing(row).shown_s(number) - facts.start_s for number in range(50)]
        assert shown == pytest.approx([time - times[0] for time in times], abs=2e-3)


def test_a_file_that_begins_late_counts_from_its_beginning(tmp_path: Path) -> None:
    """MPEG-TS begins at any time; the first picture is what a player shows at 0 s."""
    path = write_video(tmp_path / "a.ts", numbered(30), Encoding(fps=30, start_s=2.0))
    assert probe(str(path)).start_s == pytest.approx(0, abs=1e-3)


def test_encrypted_video_is_not_called_damaged(tmp_path: Path) -> None:
    clear, path = write_video(tmp_path / "clear.mp4", numbered(30)), tmp_path / "a.mp4"
    key = {"encryption_scheme": "cenc-aes-ctr", "encryption_key": "0" * 31 + "1", "encryption_kid": "a" * 32}
    with av.open(str(clear)) as source, av.open(str(path), "w", format="mp4", options=key) as target:
        stream = target.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(video=0):
            if packet.size:
                packet.stream = stream
                target.mux(packet)
    with pytest.raises(BadVideo, match="encrypted") as raised:
        probe(str(path))
    assert raised.value.kind == "encrypted"


@pytest.mark.parametrize(
    ("head", "name"),
    [
        (b"\0\0\0\1\x40\x01", "raw H.265"),
        (b"YUV4MPEG2 W64 H48 F25:1", "YUV4MPEG2"),
    ],
)
def test_formats_that_are_not_read_are_named(tmp_path: Path, head: bytes, name: str) -> None:
    (tmp_path / "a.mp4").write_bytes(head + bytes(2000))
    with pytest.raises(BadVideo, match=f"{name}.* is not read; convert it") as raised:
        probe(str(tmp_path / "a.mp4"))
    assert raised.value.kind == "format"


@pytest.mark.parametrize(
    ("name", "encoding", "seekable"),
    [
        ("a.h264", Encoding(bframes=2), False),
        ("a.m4v", Encoding(codec="mpeg4", bframes=2), True),
        ("a.gif", Encoding(codec="gif", pixel_format="rgb8"), True),
    ],
)
def test_streams_without_a_container_are_read(tmp_path: Path, name: str, encoding: Encoding, seekable: bool) -> None:
    """Whatever they are called: a raw stream of H.264 has no timestamps, so it is decoded from its start."""
    path = write_video(tmp_path / name, numbered(30), encoding)
    facts = probe(str(path.rename(tmp_path / "renamed.mp4")))
    assert (facts.container, facts.frame_count, facts.seekable) == (name.split(".")[1], 30, seekable)
    assert facts.fps == pytest.approx(25, rel=0.01)


@pytest.mark.parametrize(
    ("head", "name"),
    [(b"GIF89a", "GIF"), (b"\0\0\0\1\x67\x42\0\x0a", "raw H.264"), (b"\0\0\1\xb0\x01\0\0\1\xb5", "raw MPEG-4")],
)
def test_a_damaged_stream_without_a_container_is_not_a_video(tmp_path: Path, head: bytes, name: str) -> None:
    (tmp_path / "a.mp4").write_bytes(head + bytes(2000))
    with pytest.raises(BadVideo) as raised:
        probe(str(tmp_path / "a.mp4"))
    assert raised.value.kind in ("truncated", "damaged", "empty", "not_video"), name


def test_raw_streams_are_not_looked_for_inside_damaged_files(tmp_path: Path) -> None:
    """FFmpeg finds start codes anywhere; what it made of them would be part of the video, or none of it."""
    path = write_video(tmp_path / "a.avi", numbered(60), Encoding(codec="mpeg4"))
    path.write_bytes(bytes(200) + path.read_bytes()[200:])
    with pytest.raises(BadVideo) as raised:
        probe(str(path))
    assert raised.value.kind == "not_video"


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize("name", ["a.mp4", "a.mov"])
def test_what_an_edit_list_leaves_out_is_not_missing(tmp_path: Path, name: str) -> None:
    """As of a file that was trimmed without being encoded again."""
    path = write_video(tmp_path / name, numbered(FRAMES, 64, 48), Encoding(bframes=2))
    data = bytearray(path.read_bytes())
    at = data.index(b"elst") + 12  # version and flags, the number of edits, and then how long the first one lasts
    data[at : at + 4] = (int.from_bytes(data[at : at + 4], "big") // 2).to_bytes(4, "big")
    path.write_bytes(data)
    assert probe(str(path)).frame_count == len(_decoded(path)) < FRAMES
    path.write_bytes(data[: len(data) * 2 // 3])
    assert _kind(path) == "truncated"


def test_a_gif_without_its_end_is_truncated(tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.gif", numbered(30), Encoding(codec="gif", pixel_format="rgb8"))
    data = path.read_bytes()
    assert probe(io.BytesIO(data)).frame_count == 30
    for end in (len(data) - 1, len(data) // 2):
        path.write_bytes(data[:end])
        with pytest.raises(BadVideo) as raised:
            probe(str(path))
        assert raised.value.kind == "truncated"
    path.write_bytes(data + b"\0\0\n")
    assert probe(str(path)).frame_count == 30, "padded"
