"""Several views of one event in one loader: the same moments of all of them, drawn together, from any position."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import essp
from essp.catalog.build import BuildOptions, build
from essp.catalog.summary import Events, summarize
from tests.flow.conftest import RunExample
from tests.harness.events import LATE_S, in_step, last_shown, plainly_decoded, write_events
from tests.harness.loops import in_groups
from tests.harness.refused import refused
from tests.harness.robots import CAMERAS, EPISODES, FPS, by_timestamp, state, write_robot

pytestmark = pytest.mark.lane("promises")

CLIPS = {
    "left": essp.Clip(frames=3, stride=2, size=(48, 64)),
    "right": essp.Clip(frames=2, stride=6, size=48),
}


@pytest.fixture(scope="module")
def events(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_events(tmp_path_factory.mktemp("events"))


def loader(catalog: Path, **options: Any) -> essp.Loader:
    given = {"clip": CLIPS, "batch_size": 2, "clips_per_epoch": 8, "validation_fraction": 0, **options}
    return essp.Loader(catalog, **in_groups(given))


def taken(batches: Any) -> list[tuple[Any, ...]]:
    """What identifies each clip, with sums over the pixels of both views."""
    names = ("epoch", "index", "event", "first_frame")
    return [
        (*(batch.meta[name][clip] for name in names), *sums)
        for batch in batches
        for clip, sums in enumerate(torch.stack([own.sum((1, 2, 3, 4)) for own in batch.frames.values()], 1).tolist())
    ]


@pytest.mark.parametrize(
    "kind",
    [
        {"kind": "class_balanced"},
        {"kind": "pooled", "clips_per_visit": 4, "window": 8},
        {"kind": "exhaustive", "step": 7, "clips_per_visit": 2, "window": 4},
        {"split": "validation", "validation_fraction": 0.3, "clips_per_video": 2},
    ],
)
def test_each_view_shows_the_moments_of_the_first(events: Path, kind: dict[str, Any]) -> None:
    """Whatever its rate and its clock: frame by frame as a plain decode of its file has them."""
    with loader(events, **kind) as clips:
        assert clips.views == ("left", "right")
        for batch in clips:
            assert {view: tuple(own.shape) for view, own in batch.frames.items()} == {
                "left": (len(batch), 3, 48, 64, 3),
                "right": (len(batch), 2, 48, 48, 3),
            }
            for clip, event in enumerate(batch.meta["event"]):
                late_s = LATE_S[int(event.partition("-")[0]) % len(LATE_S)]
                numbers = batch.meta["frame_numbers"][clip]
                first = batch.meta["first_frame"][clip]
                assert numbers["left"] == [first, first + 2, first + 4]
                assert numbers["right"] == in_step(batch.meta, clip, range(6, -1, -6), late_s)
                for view, uri in batch.meta["uris"][clip].items():
                    frames = plainly_decoded(uri)[1]
                    expected = np.stack([frames[number] for number in numbers[view]])
                    assert np.array_equal(batch.frames[view][clip].numpy(), expected)


def test_views_may_be_sampled_at_rates_of_their_own(events: Path) -> None:
    """Their last moments are the same, whatever the rates of the cameras."""
    clip = {"left": essp.Clip(frames=4, fps=10, size=(48, 64)), "right": essp.Clip(frames=2, fps=5, size=48)}
    with loader(events, clip=clip) as clips:
        for batch in clips:
            for place, event in enumerate(batch.meta["event"]):
                late_s = LATE_S[int(event.partition("-")[0]) % len(LATE_S)]
                numbers, uris = batch.meta["frame_numbers"][place], batch.meta["uris"][place]
                (left, _), (right, frames) = (plainly_decoded(uris[view]) for view in ("left", "right"))
                begin_s = left[batch.meta["first_frame"][place]]
                assert numbers["left"] == [last_shown(left, begin_s + step / 10) for step in range(4)]
                assert numbers["right"] == [last_shown(right, begin_s + late_s + moment) for moment in (0.1, 0.3)]
                expected = np.stack([frames[number] for number in numbers["right"]])
                assert np.array_equal(batch.frames["right"][place].numpy(), expected)
    with refused("clip.right.fps", "conflict"):
        loader(events, clip={"left": essp.Clip(), "right": essp.Clip(fps=5)})
    with refused("clip.left.spread", "conflict"):
        loader(events, clip={"left": essp.Clip(spread="video"), "right": essp.Clip(fps=5)})


def test_a_loop_goes_on_in_the_middle_of_an_epoch_on_two_ranks(events: Path) -> None:
    with loader(events, kind="pooled", clips_per_visit=2, window=4) as whole:
        expected = taken(whole)
        whole.load_state_dict({**whole.state_dict(), "epoch": 0, "clip": 4})
        assert taken(whole) == expected[4:]
        state = {**whole.state_dict(), "epoch": 0, "clip": 4}
    shares = []
    for rank in range(2):
        share = {"rank": rank, "world_size": 2, "batch_size": 1}
        with loader(events, kind="pooled", clips_per_visit=2, window=4, **share) as one:
            one.load_state_dict(state)
            shares += taken(one)
    assert sorted(shares) == sorted(expected[4:])


def test_other_loops_share_the_decodes_of_all_views(events: Path) -> None:
    with loader(events, loops=2) as one, one.another() as other:
        assert taken(one) == taken(other)


def test_a_view_that_cannot_be_decoded_replaces_its_event(events: Path, tmp_path: Path) -> None:
    folder = tmp_path / "events"
    folder.mkdir()
    catalog = write_events(folder)
    with loader(catalog, dead_ratio=1.0, seed=3) as clips:
        whole = taken(clips)
    shutil.copy(folder / "1-right.mkv", folder / "0-right.mkv")  # another file than the catalog says
    with loader(catalog, dead_ratio=1.0, seed=3) as clips:
        batches = list(clips)
    shown = taken(batches)
    assert "0-left.mp4" in {clip[2] for clip in whole} - {clip[2] for clip in shown}
    assert [clip for clip in whole if clip[2] != "0-left.mp4"] == [
        new for new, old in zip(shown, whole, strict=True) if old[2] != "0-left.mp4"
    ]
    for batch in batches:
        for uris in batch.meta["uris"]:
            assert uris["left"].replace("left.mp4", "right.mkv") == uris["right"]


def test_each_view_has_its_own_transform(events: Path) -> None:
    def drawn(frames: Any, random: np.random.Generator) -> Any:
        return frames[:1, :4, :4].astype(np.float32) * 0 + random.random()

    with loader(events, transform={"right": drawn}) as clips:
        batch = next(iter(clips))
        assert batch.frames["left"].dtype is torch.uint8
        assert batch.frames["right"].shape == (2, 1, 4, 4, 3)
    with loader(events, transform=drawn) as clips:
        batch = next(iter(clips))
        assert torch.equal(batch.frames["left"], batch.frames["right"]), "the same random numbers"
    with refused("transform", "unknown"):
        loader(events, transform={"up": drawn})


def test_what_cannot_be_loaded_is_said(events: Path) -> None:
    with refused("clip", "missing") as error:
        loader(events, clip=essp.Clip())
    assert "left, right" in str(error.value)
    with refused("clip.up", "unknown"):
        loader(events, clip={"left": essp.Clip(), "up": essp.Clip()})
    with refused("clip", "missing"):
        loader(events, clip={})
    with refused("clip.right.snippets", "conflict"):
        loader(events, clip={"left": essp.Clip(), "right": essp.Clip(snippets=2)})
    with refused("feature", "missing"):
        loader(events, feature="flow")


def test_all_cameras_of_a_robot_are_one_sample(tmp_path: Path) -> None:
    """Episodes lie one after the other in files; the values are those of the last frame of all cameras."""
    root = write_robot(tmp_path / "robot")
    out = f"file://{tmp_path}/c.parquet"
    built = build(f"lerobot://{root}", out, ("file:///",), BuildOptions())
    assert summarize(built.catalog).events == Events(4, 4, dict.fromkeys(CAMERAS, 4), ())
    top, wrist = CAMERAS
    clip = {top: essp.Clip(frames=1, size=(48, 64)), wrist: essp.Clip(frames=3, stride=2, size=(48, 64))}
    seen = set()
    with loader(tmp_path / "c.parquet", clip=clip, kind="exhaustive", clips_per_epoch=None) as clips:
        for batch in clips:
            for place, first in enumerate(batch.meta["first_frame"]):
                moments = {top: [first], wrist: [first - 4, first - 2, first]}
                for camera, uri in batch.meta["uris"][place].items():
                    times = [frame / FPS for frame in moments[camera]]
                    expected = by_timestamp(Path(uri.removeprefix("file://")), times)
                    assert np.array_equal(batch.frames[camera][place].numpy(), expected)
                assert batch.targets is not None
                index = int(batch.targets.values["index"][place, 0])
                assert batch.targets.values["observation.state"][place].tolist() == [state(index)]
                seen.add(index)
    lengths = [episode.length for episode in EPISODES if episode is not EPISODES[-1]]
    assert len(seen) == sum(length - 4 for length in lengths), "each moment at which all cameras have their frames"


def test_the_example_learns_from_two_views_and_resumes(events: Path, example: RunExample) -> None:
    small = (str(events), "left", "right", "--size", "32", "--batch-size", "2")
    [first] = example("two_views.py", *small, "--epochs", "1")
    assert first.startswith("epoch 1: loss ")
    [second] = example("two_views.py", *small, "--epochs", "2")
    assert second.startswith("epoch 2: loss ")


def test_one_view_of_several(events: Path) -> None:
    with loader(events, clip={"right": CLIPS["right"]}) as clips:
        batch = next(iter(clips))
    assert list(batch.frames) == ["right"]
    assert batch.frames["right"].shape == (2, 2, 48, 48, 3)
    assert all(numbers["right"][1] - numbers["right"][0] == 6 for numbers in batch.meta["frame_numbers"])
