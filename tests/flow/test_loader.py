"""`essp.Loader` on real videos: the very clips, once each, in the same order for everybody, from any position."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import essp
from essp_engine.planning import work_units
from essp_engine.seeding.instructions import IssueUnits
from essp_engine.seeding.message_builder import MessageBuilder
from tests.flow.conftest import MakeJob
from tests.harness.loops import CLIP, loader, taken
from tests.harness.refused import refused


def test_batches_are_the_decoded_frames(catalog: Path) -> None:
    with loader(catalog) as clips:
        assert len(clips) == 3
        batches = list(clips)
        again = list(clips)
    rows = {row.id: row for row in essp.open_catalog(catalog).rows}
    assert [batch.frames.shape for batch in batches] == [(4, 4, 40, 40, 3), (4, 4, 40, 40, 3), (2, 4, 40, 40, 3)]
    for batch in batches:
        assert batch.frames.dtype is torch.uint8
        assert [clips.classes[label] for label in batch.labels] == batch.meta["class_name"]
        for frames, video, first in zip(batch.frames, batch.meta["video"], batch.meta["first_frame"], strict=True):
            assert np.array_equal(frames.numpy(), essp.decode(rows[video], first, clip=clips.clip))
    assert [entry[:2] for entry in taken(again)] == [(1, index) for index in range(10)]
    assert taken(batches) != taken(again)


@pytest.mark.parametrize("pixels", ["yuv420", "gray"])
def test_frames_that_stay_in_the_colours_of_their_video_become_pictures(catalog: Path, pixels: Any) -> None:
    """In a loader's thread, or where a device is asked to, once they are there: the same integers."""
    clip = essp.Clip(frames=4, stride=2, size=40, pixels=pixels)
    rows = {row.id: row for row in essp.open_catalog(catalog).rows}
    with loader(catalog, clip=clip) as clips:
        batches = list(clips)
        for batch in batches:
            assert batch.frames.shape[1:] == (4, 40, 40, 3 if pixels == "yuv420" else 1)
            for frames, video, first in zip(batch.frames, batch.meta["video"], batch.meta["first_frame"], strict=True):
                assert np.array_equal(frames.numpy(), essp.decode(rows[video], first, clip=clips.clip))
    with loader(catalog, clip=clip, transform=lambda frames, random: frames[:2]) as clips:
        assert torch.equal(next(iter(clips)).frames, batches[0].frames[:, :2])


def test_flow_of_luma_is_flow_of_yuv(catalog: Path) -> None:
    taken, gray = [], None
    for pixels in ("gray", "yuv420"):
        clip = essp.Clip(frames=4, size=40, pixels=pixels)
        with loader(catalog, clip=clip, feature="flow", params={"length": 3}, clips_per_epoch=4) as clips:
            batch = next(iter(clips))
            taken.append(batch.frames)
            gray = gray or clips.clip
    assert taken[0].shape == (4, 1, 40, 40, 6)
    assert torch.equal(*taken)
    rows = {row.id: row for row in essp.open_catalog(catalog).rows}
    luma = essp.decode(rows[batch.meta["video"][0]], batch.meta["first_frame"][0], clip=gray)
    assert np.array_equal(essp.compute_feature(luma, "flow", length=3), taken[0][0])


def test_a_long_video_is_shared_by_decoders(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Into how many messages its clips are divided changes none of them, nor their order."""
    told: list[float] = []

    def units(builder: MessageBuilder, instruction: IssueUnits) -> list[tuple[bytes, bytes]]:
        messages = whole(builder, instruction)
        told.append(len(messages) / len(instruction.units))
        return messages

    whole = MessageBuilder.units
    monkeypatch.setattr(MessageBuilder, "units", units)
    single = essp.Clip(frames=1, size=40)
    options: dict[str, Any] = {
        "clip": single,
        "kind": "pooled",
        "clips_per_visit": 8,
        "window": 64,
        "clips_per_epoch": 64,
        "decoders": 2,
    }
    with loader(catalog, **options) as clips:
        undivided = taken(clips)
    assert max(told) == 1
    monkeypatch.setattr(work_units, "PIECE_PIXELS", 1)
    monkeypatch.setattr(work_units, "_LONG_PIXELS", 1)
    with loader(catalog, **options) as clips:
        assert taken(clips) == undivided
    assert max(told) > 1


def test_the_test_split_is_the_same_whatever_is_set_aside_of_the_training_videos(catalog: Path) -> None:
    shown = []
    for fraction in (0, 0.15):
        with loader(catalog, split="test", validation_fraction=fraction) as one:
            shown.append([clip for batch in one for clip in batch.meta["video"]])
    assert shown[0] == shown[1] != []


def test_uniform_sampling_shows_each_video_once_an_epoch(catalog: Path) -> None:
    videos = [row.id for row in essp.open_catalog(catalog).rows if row.split == "train"]
    with loader(catalog, validation_fraction=0, kind="uniform", clips_per_epoch=None) as clips:
        shown = [[video for batch in clips for video in batch.meta["video"]] for _ in range(2)]
    assert shown == [sorted(videos)] * 2


def test_every_place_comes_once(catalog: Path) -> None:
    """Also to a loop that is left and goes on from its state."""
    options: dict[str, Any] = {"kind": "exhaustive", "step": 5, "clips_per_visit": 2, "clips_per_epoch": None}
    rows = [row for row in essp.open_catalog(catalog).rows if row.split == "train"]
    last = {row.id: row.last_frame - (CLIP.frames - 1) * CLIP.stride for row in rows}
    expected = {(name, min(first, end)) for name, end in last.items() for first in range(0, end + 5, 5)}
    with loader(catalog, validation_fraction=0, **options) as one:
        shown = [next(iter(one))]
        state = one.state_dict()
        assert len(one) == -(-len(expected) // 4)
    with loader(catalog, validation_fraction=0, **options) as other:
        other.load_state_dict(state)
        shown += list(other)
    found = [pair for batch in shown for pair in zip(batch.meta["video"], batch.meta["first_frame"], strict=True)]
    assert sorted(found) == sorted(expected)


def test_nothing_is_decoded_beyond_the_last_epoch(catalog: Path) -> None:
    """And a loop that goes on all the same has the clips that it would have had."""
    with loader(catalog, epochs=1) as clips:
        first = taken(clips)
        counts = clips._source._job.status().counts  # type: ignore[attr-defined]
        assert counts.issued == 10
        went_on = taken(clips)
    with loader(catalog) as clips:
        assert taken(clips) == first
        assert taken(clips) == went_on


def test_a_state_goes_on_with_the_very_clips(catalog: Path) -> None:
    visits: dict[str, Any] = {"kind": "pooled", "clips_per_visit": 2, "window": 8}
    with loader(catalog, **visits) as one:
        first, states = [], []
        for batch in one:
            first.append(batch)
            states.append(one.state_dict())
        second = list(one)
    with loader(catalog, **visits) as other:
        other.load_state_dict(states[0])
        assert taken(other) == taken(first[1:])
        assert taken(other) == taken(second)
        other.load_state_dict(states[-1])
        assert other.epoch == 1, "nothing is left of epoch 0"
        assert taken(other) == taken(second)
    for changed in ({"seed": 1}, {"clip": essp.Clip(frames=4, size=40)}, {"clips_per_visit": 4}):
        with refused("state", "conflict"):
            loader(catalog, **{**visits, **changed}).load_state_dict(states[0])


def test_ranks_share_the_batches_of_one(catalog: Path) -> None:
    """And a state of two ranks goes on with one."""
    with loader(catalog) as alone:
        whole = taken(alone)
    shares, states = [], []
    for rank in range(2):
        with loader(catalog, batch_size=2, rank=rank, world_size=2) as share:
            own = []
            for batch in share:
                own += taken([batch])
                states.append(share.state_dict())
            shares.append(own)
    assert sorted(entry for share in shares for entry in share) == whole
    assert states[:3] == states[3:]
    with loader(catalog) as alone:
        alone.load_state_dict(states[1])
        assert taken(alone) == whole[8:]
    whole = taken(loader(catalog, clips_per_epoch=None))
    shares = [taken(loader(catalog, clips_per_epoch=None, batch_size=2, rank=rank, world_size=2)) for rank in range(2)]
    assert sorted(entry for share in shares for entry in share) == whole


def test_clips_that_no_rank_shows_are_said_once(catalog: Path, caplog: pytest.LogCaptureFixture) -> None:
    for clips, options in ((10, {}), (9, {"split": "validation", "clips_per_video": 3}), (12, {})):
        for rank in range(4):
            loader(catalog, **{"clips_per_epoch": clips, **options}, rank=rank, world_size=4).close()
    [warning] = [record.message for record in caplog.records if "ranks" in record.message]
    assert "last 2 of the 10" in warning
    assert warning.startswith("sampling.clips_per_epoch: ")


@pytest.mark.parametrize(("batch_size", "shown"), [(4, [2, 3, 4, 5, 6, 7, 8, 9]), (3, [2, 3, 4, 5, 6, 7])])
def test_a_state_goes_to_another_size_of_batches(catalog: Path, batch_size: int, shown: list[int]) -> None:
    """All of which are full. The clips up to a multiple of the size were left out."""
    with loader(catalog, batch_size=2) as one:
        next(iter(one))
        state = one.state_dict()
    with loader(catalog, batch_size=batch_size, drop_last=True) as other:
        other.load_state_dict(state)
        batches = [batch.meta["index"] for batch in other]
    assert [index for batch in batches for index in batch] == shown
    assert {len(batch) for batch in batches} == {batch_size}


def test_ranks_have_as_many_batches_whatever_is_damaged(own_set: tuple[Path, Path]) -> None:
    """Where no other clips stand in for those that cannot be decoded, the others would wait for ever."""
    damaged, catalog = own_set
    (damaged / "train" / "left" / "0.mp4").unlink()
    places = {"kind": "exhaustive", "step": 5, "clips_per_visit": 1, "clips_per_epoch": None}
    options: dict[str, Any] = {**places, "validation_fraction": 0, "dead_ratio": 1.0}
    missing = 0
    for rank in range(2):
        with loader(catalog, batch_size=1, rank=rank, world_size=2, **options) as share:
            shown = taken(share)
            assert len(shown) == len(share)
            missing += len(shown) - len(set(shown))
            assert share.epoch == 1
        assert "train/left/0.mp4" not in {video for _, _, video, _, _ in shown}
    assert missing > 0


def test_an_epoch_begins_with_its_first_batch(catalog: Path) -> None:
    """Not with an iterator that is never asked; and an epoch is over when what is left of it would be left out."""
    with loader(catalog, drop_last=True) as clips:
        iter(clips)
        batches = iter(clips)
        shown = [next(batches), next(batches)]
        assert [batch.meta["epoch"][0] for batch in shown] == [0, 0]
        state = clips.state_dict()
        assert (state["epoch"], state["clip"]) == (0, 8)
        clips.load_state_dict(state)
        assert [entry[:2] for entry in taken(clips)] == [(1, index) for index in range(8)]


def test_a_loaded_state_is_not_lost_by_an_epoch_that_is_set(catalog: Path) -> None:
    with loader(catalog) as clips:
        clips.load_state_dict({**clips.state_dict(), "epoch": 3, "clip": 8})
        clips.set_epoch(3)
        with refused("epoch", "conflict"):
            clips.set_epoch(0)
        assert [entry[:2] for entry in taken(clips)] == [(3, 8), (3, 9)]
        clips.set_epoch(0)
        assert clips.epoch == 0


def test_batches_may_be_anything(catalog: Path) -> None:
    with loader(catalog, loops=2).map(lambda batch: batch.meta["index"]) as clips, clips.another() as other:
        for loop in (clips, other):
            given: list[Any] = list(loop)
            assert given == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
            assert loop.state_dict()["epoch"] == 1


def test_evaluation_shows_each_video_alike_in_each_epoch(catalog: Path) -> None:
    with loader(catalog, split="validation", clips_per_video=2, clips_per_epoch=None) as clips:
        first, second = taken(clips), taken(clips)
    assert [entry[1:] for entry in first] == [entry[1:] for entry in second]
    assert set(Counter(video for _, _, video, _, _ in first).values()) == {2}
    assert {video.split("/")[0] for _, _, video, _, _ in first} == {"validation"}


def test_features_are_those_of_the_extractors(catalog: Path, make_job: MakeJob, tmp_path: Path) -> None:
    """By arguments, and by a job file; a loop that is not in the main process decodes all the same."""
    make_job("mine")
    with essp.Loader.of(tmp_path / "mine.yaml", "flow", limits=essp.Limits(decoders=1)) as clips:
        flow = next(iter(clips))
    clip = essp.Clip(frames=4, size=40)
    with loader(catalog, clip=clip, clips_per_epoch=12, seed=3) as clips:
        frames = next(iter(clips))
    assert flow.meta == frames.meta
    for made, source in zip(flow.frames, frames.frames, strict=True):
        assert np.array_equal(made, essp.compute_feature(source.numpy(), "flow", method="dis", length=3))


def test_a_transform_has_random_numbers_of_its_own_for_each_clip(catalog: Path) -> None:
    def crop(frames: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
        top = random.integers(9)
        return frames[:, top : top + 32, :32]

    with loader(catalog, transform=crop) as clips:
        whole = taken(clips)
        state = {**clips.state_dict(), "epoch": 0, "clip": 4}
        clips.load_state_dict(state)
        assert taken(clips) == whole[4:]

    def broken(frames: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
        raise ZeroDivisionError("in the transform")

    with loader(catalog, transform=broken) as clips, pytest.raises(ZeroDivisionError, match="in the transform"):
        next(iter(clips))


def test_torch_takes_it_for_a_data_set(catalog: Path) -> None:
    clips = loader(catalog, drop_last=True)
    assert len(clips) == 2
    wrapped = DataLoader(clips, batch_size=None)
    assert [len(batch) for batch in wrapped] == [4, 4]
    copy = pickle.loads(pickle.dumps(clips))  # noqa: S301
    assert copy.state_dict() == clips.state_dict()
    clips.close()


def test_a_video_that_cannot_be_decoded_is_replaced_or_named(
    own_set: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    damaged, catalog = own_set
    (damaged / "train" / "left" / "0.mp4").unlink()
    with loader(catalog, clips_per_epoch=24) as clips:
        shown = taken(clips)
    assert len(shown) == 24
    assert "train/left/0.mp4" not in {video for _, _, video, _, _ in shown}
    assert "vanished" in caplog.text
    assert "train/left/0.mp4" in caplog.text
    with (
        loader(catalog, clips_per_epoch=24, dead_ratio=0) as clips,
        pytest.raises(essp.EsspError, match=r"train/left/0\.mp4"),
    ):
        list(clips)
