"""Looking at what streams carry: the pictures are what consumers get, and the cache is as it was."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray

from essp_common.cache.port import Buffer, Part, clip_key, stream_key
from essp_common.errors import NotFound
from essp_common.job.clip_spec import StreamSpec
from essp_common.job.feature_layout import COLOURS, DESCRIPTOR, MOTION, FeatureLayout
from essp_common.job.status import StreamPreview
from essp_common.pb.v1.messages_pb2 import TRAIN, FrameCodec, Made, Progress
from essp_common.wiring import Adapters
from essp_engine.features.drawing import flow_picture
from essp_engine.features.quantization import ZERO
from essp_engine.video import codec
from essp_engine.video.colour import Colour
from essp_engine.video.joined import joined
from essp_master.effects import previews
from essp_master.effects.previews import Previews
from essp_master.job.stored_clips import StoredClip
from tests.harness.fleet import Clock, FleetOf, make_job, master_over

RAW = FrameCodec(name="raw")
LAYOUTS = {"flow": MOTION, "histogram": DESCRIPTOR, "depth": FeatureLayout()}


def seen(preview: StreamPreview) -> NDArray[np.uint8]:
    picture: NDArray[np.uint8] = simplejpeg.decode_jpeg(base64.b64decode(preview.jpeg))
    return picture


class Looking:
    """A cache with one clip of a stream, and what is seen of it."""

    def __init__(self, folder: Path, adapters: Adapters, stream: StreamSpec | None = None, frames: int = 3) -> None:
        resize = {"height": 16, "width": 16}
        job = make_job(folder, clip={"frames": frames, "resize": resize})
        self.job = job if stream is None else job.model_copy(update={"streams": {"rgb": stream}})
        self.cache = adapters.cache
        self.clock = Clock()
        self.previews = Previews(self.cache, self.clock)

    def put(self, value: Buffer, key: str = "k") -> StoredClip:
        self.cache.put(key, value, ["trainer.rgb"], 60)
        return StoredClip(key, len(value), TRAIN, 0, 4, "v.mp4", "run", 7)

    def look(self, *clips: StoredClip) -> StreamPreview:
        layout = LAYOUTS.get(self.job.streams["rgb"].feature, COLOURS)
        return self.previews.of(self.job, "rgb", layout, clips)


def test_only_the_frames_that_are_looked_at_are_read_and_the_clip_stays(
    tmp_path: Path, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Looking(tmp_path, adapters)
    frames = np.zeros((3, 16, 16, 3), np.uint8)
    frames[1] = (250, 10, 10)
    clip = looking.put(codec.encode(frames, RAW))
    read: list[int] = []
    get = looking.cache.get

    def counting(key: str, parts: Sequence[Part] = ()) -> Buffer:
        found = get(key, parts)
        read.append(len(found))
        return found

    monkeypatch.setattr(looking.cache, "get", counting)
    found = looking.look(clip)
    assert read == [len(codec.encode(frames[:1], RAW))]
    assert (found.pictures, found.shown, found.height, found.width) == (1, 1, 16, 16)
    assert (found.purpose, found.epoch, found.index, found.video, found.class_name) == ("train", 0, 4, "v.mp4", "run")
    assert np.abs(seen(found).mean(axis=(0, 1)) - (250, 10, 10)).max() < 4
    assert looking.cache.usage().keys == 1
    assert looking.cache.ack("k", "trainer.rgb"), "it still waited for its consumer alone"


def test_of_many_frames_some_are_shown_side_by_side(tmp_path: Path, adapters: Adapters) -> None:
    looking = Looking(tmp_path, adapters, StreamSpec(params={"frames": 12}), frames=12)
    frames = np.repeat(np.arange(12, dtype=np.uint8) * 20, 16 * 16 * 3).reshape(12, 16, 16, 3)
    found = looking.look(looking.put(codec.encode(frames, RAW)))
    assert (found.pictures, found.shown) == (12, 6)
    columns = seen(found)[8, 8::18, 0].astype(int)
    assert np.abs(columns - [20, 60, 100, 140, 180, 220]).max() < 4


@pytest.mark.parametrize(("shape", "grey"), [((3, 24, 16), False), ((3, 16, 16, 1), True)])
def test_frames_in_the_colours_of_their_video_become_pictures(
    tmp_path: Path, adapters: Adapters, shape: tuple[int, ...], grey: bool
) -> None:
    looking = Looking(tmp_path, adapters, StreamSpec(params={"frames": 3}))
    found = looking.look(looking.put(codec.encode(np.full(shape, 128, np.uint8), RAW, Colour(full=True))))
    assert (found.shown, found.height, found.width) == (3, 16, 16)
    assert np.abs(seen(found)[:, :16].astype(int) - 128).max() < 3


def test_a_stack_of_flow_is_drawn_as_colours(tmp_path: Path, adapters: Adapters) -> None:
    looking = Looking(tmp_path, adapters, StreamSpec(feature="flow"))
    stack = np.full((1, 16, 16, 20), ZERO, np.uint8)
    stack[..., 0::2] += 10  # all to the right
    found = looking.look(looking.put(codec.encode(stack, FrameCodec(name="zstd"))))
    assert (found.pictures, found.shown) == (10, 6)
    assert np.abs(seen(found)[4, 4] - flow_picture(stack[0, :1, :1, :2], 10)[0, 0].astype(int)).max() < 4
    assert found.caption.startswith("hue: direction (right red")


def test_descriptors_are_one_picture_with_a_row_each_and_the_caption_says_so(
    tmp_path: Path, adapters: Adapters
) -> None:
    looking = Looking(tmp_path, adapters, StreamSpec(feature="histogram"))
    rows = np.zeros((80, 70), np.float32)
    rows[:, 3] = 0.5
    found = looking.look(looking.put(codec.encode(rows, FrameCodec(name="zstd"))))
    assert (found.pictures, found.shown, found.height, found.width) == (1, 1, 80, 70)
    assert found.caption == "80 descriptors, a row each; its 70 numbers, a column each: red above zero, full at 0.5"


def test_large_pictures_are_made_smaller(tmp_path: Path, adapters: Adapters) -> None:
    looking = Looking(tmp_path, adapters)
    found = looking.look(looking.put(codec.encode(np.full((3, 300, 700, 3), 90, np.uint8), RAW)))
    assert (found.height, found.width) == (300, 700)
    assert seen(found).shape == (100, 233, 3)


def test_what_is_gone_or_damaged_is_passed_over(tmp_path: Path, adapters: Adapters) -> None:
    looking = Looking(tmp_path, adapters)
    sound = looking.put(codec.encode(np.zeros((3, 16, 16, 3), np.uint8), RAW), "sound")
    damaged = looking.put(bytes(sound.size_bytes), "damaged")
    gone = replace(sound, key="gone")
    assert looking.look(gone, damaged, sound).video == "v.mp4"
    looking.clock.now_s += 10
    with pytest.raises(NotFound, match="consumed as soon as it is made"):
        looking.look(gone, damaged)


@pytest.mark.parametrize(
    ("feature", "shape", "reason"),
    [("depth", (3, 128), "cannot be drawn"), ("flow", (1, 4, 4, 3), "has no picture")],
)
def test_what_is_no_picture_says_so(
    tmp_path: Path, adapters: Adapters, feature: str, shape: tuple[int, ...], reason: str
) -> None:
    looking = Looking(tmp_path, adapters, StreamSpec(feature=feature))
    with pytest.raises(NotFound, match=reason):
        looking.look(looking.put(codec.encode(np.zeros(shape, np.uint8), RAW)))


def test_more_than_a_look_may_take_is_not_read(
    tmp_path: Path, adapters: Adapters, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking = Looking(tmp_path, adapters, StreamSpec(feature="flow"))
    monkeypatch.setattr(previews, "MOST_BYTES", 1000)
    frames = np.zeros((1, 64, 64, 2), np.uint8)
    stored = looking.put(codec.encode(frames, RAW))
    monkeypatch.setattr(looking.cache, "get", lambda *_: pytest.fail("it was read"))
    with pytest.raises(NotFound, match="at most 1000 B"):
        looking.look(stored)
    monkeypatch.undo()
    monkeypatch.setattr(previews, "MOST_BYTES", 1000)
    packed = looking.put(codec.encode(frames, FrameCodec(name="zstd")), "packed")
    assert packed.size_bytes < 1000
    with pytest.raises(NotFound, match="at most 1000 B"):
        looking.look(packed)


def test_however_many_watch_a_stream_is_drawn_once_a_second(tmp_path: Path, adapters: Adapters) -> None:
    looking = Looking(tmp_path, adapters)
    first = looking.look(looking.put(codec.encode(np.zeros((3, 16, 16, 3), np.uint8), RAW)))
    later = replace(looking.put(codec.encode(np.ones((3, 16, 16, 3), np.uint8), RAW), "later"), index=5)
    assert looking.look(later) is first
    looking.clock.now_s += 1
    assert looking.look(later).index == 5


def test_a_master_shows_the_newest_clips_of_a_job_and_says_where_there_are_none(
    adapters: Adapters, fleet_of: FleetOf
) -> None:
    master, fleet = master_over(adapters), fleet_of()
    with pytest.raises(NotFound, match="no job 'small'"):
        master.preview("small", "rgb")
    master.start(fleet.job)
    with pytest.raises(NotFound, match="no stream 'motion'; "):
        master.preview("small", "motion")
    with pytest.raises(NotFound, match="no clip of stream rgb was made since"):
        master.preview("small", "rgb")
    clip = clip_key("small", TRAIN, 0, 2, 0)
    values = {
        clip: codec.encode(np.zeros((3, 16, 16, 3), np.uint8), RAW),
        stream_key(clip, "diff"): codec.encode(np.zeros((2, 16, 16, 3), np.uint8), RAW),
    }
    for stream, (key, value) in zip(("", "diff"), values.items(), strict=True):
        adapters.cache.put(key, value, ["trainer.x"], 60)
        made = Made(purpose=TRAIN, epoch=0, stream=stream, indices=[0, 1, 2, 999], bytes=[len(value)] * 4, seconds=0.1)
        fleet.report(Progress(made=made))
    master.step(0)
    found = {stream: master.preview("small", stream) for stream in ("rgb", "diff")}
    assert [(each.index, each.pictures, each.purpose) for each in found.values()] == [(2, 1, "train"), (2, 2, "train")]
    assert [each.caption for each in found.values()] == ["", "differences of red, green and blue; grey: none"]
    assert found["rgb"].video
    assert found["rgb"].class_name
    assert adapters.cache.usage().keys == 2
    master.stop("small")
    with pytest.raises(NotFound, match="its clips are gone"):
        master.preview("small", "rgb")


def test_of_a_clip_with_motion_the_frames_are_seen(tmp_path: Path, adapters: Adapters) -> None:
    looking = Looking(tmp_path, adapters)
    looking.job = make_job(tmp_path, clip={"frames": 3, "resize": {"height": 16, "width": 16}, "motion": True})
    frames = np.full((3, 16, 16, 3), 200, np.uint8)
    value = joined([codec.encode(frames, RAW), codec.encode(np.zeros((3, 2, 2, 2), np.int16), RAW)], motion=True)
    assert seen(looking.look(looking.put(value))).mean() > 190


def test_of_several_views_the_streams_own_is_seen(tmp_path: Path, adapters: Adapters) -> None:
    looking = Looking(tmp_path, adapters, StreamSpec(view="right"))
    clip = {"frames": 3, "resize": {"height": 16, "width": 16}, "views": {"left": {}, "right": {}}}
    streams = {"rgb": {"view": "right"}, "diff": {"feature": "frame_diff", "params": {"length": 2}, "view": "left"}}
    looking.job = make_job(tmp_path, clip=clip, streams=streams)
    sides = [codec.encode(np.full((3, 16, 16, 3), grey, np.uint8), RAW) for grey in (10, 200)]
    assert seen(looking.look(looking.put(joined(sides)))).mean() > 190
