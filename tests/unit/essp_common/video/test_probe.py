"""What a probe claims of a file is true, and what is not a sound video is said so."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import av
import pytest
from av.video.frame import VideoFrame

from essp_common.errors import BadVideo
from essp_common.pb.v1.messages_pb2 import Seek
from essp_common.video import probe as probing
from essp_common.video.container import Limits
from essp_common.video.digest import digest
from essp_common.video.probe import VideoFacts, probe
from essp_common.video.reader import Reader
from essp_common.video.synthetic import Encoding, numbered, pack_bframes, write_video

FRAMES = 50


@pytest.fixture(params=["whole", "sampled"])
def depth(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways to check a file: as a small one, and as one too large to decode whole."""
    if request.param == "sampled":
        monkeypatch.setattr(probing, "WHOLE_PIXELS", 0)
    return str(request.param)


def _decoded(path: Path) -> list[int | None]:
    with av.open(str(path)) as container:
        return [frame.pts for frame in container.decode(video=0)]


@pytest.mark.usefixtures("depth")
@pytest.mark.parametrize(
    ("name", "encoding"),
    [
        ("a.mp4", Encoding(bframes=3)),
        ("open.mp4", Encoding(bframes=3, open_gop=True)),
        ("a.mkv", Encoding(codec="hevc", bframes=3, open_gop=True)),
        ("a.avi", Encoding(codec="mpeg4")),
        ("b.avi", Encoding(codec="mpeg4", bframes=2)),
        ("a.webm", Encoding(codec="vp9")),
        ("vfr.mp4", Encoding(bframes=2, intervals=(1, 1, 3))),
        ("late.mov", Encoding(bframes=2, start_s=2.0)),
    ],
)
def test_facts_are_those_of_a_plain_decode(tmp_path: Path, name: str, encoding: Encoding) -> None:
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


@pytest.mark.parametrize("name", ["a.avi", "faststart.mp4", "a.mp4", "a.mkv"])
@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
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
