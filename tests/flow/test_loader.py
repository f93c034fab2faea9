"""`essp.Loader` on real videos: the very clips, once each, in the same order for everybody, from any position."""

from __future__ import annotations

import gc
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Barrier, Event
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.utils.data import DataLoader

import essp
from essp.embedded.composition import Embedded
from essp.loops.clips import JobClips
from essp.loops.feed import Feed
from essp.loops.membership import Membership
from essp.loops.running_job import OwnJob
from essp_common.planning import work_units
from essp_common.planning.position import Position
from essp_master.job.message_builder import MessageBuilder
from essp_master.ledger.instructions import IssueUnits
from tests.flow.conftest import MakeJob
from tests.harness.leaks import Holdings
from tests.harness.waiting import LONGEST_S, until

CLIP = essp.Clip(frames=4, stride=2, size=40)


def loader(catalog: Path, **options: Any) -> essp.Loader:
    return essp.Loader(catalog, **{"clip": CLIP, "batch_size": 4, "clips_per_epoch": 10, "decoders": 1, **options})


def taken(batches: Any) -> list[tuple[int, int, str, int, int]]:
    """What identifies each clip: epoch, index, video, first frame, a sum over its pixels."""
    return [
        (*values, int(frames.sum()))
        for batch in batches
        for frames, *values in zip(
            batch.frames, *(batch.meta[name] for name in ("epoch", "index", "video", "first_frame")), strict=True
        )
    ]


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
    options: dict[str, Any] = {"clip": single, "clips_per_visit": 8, "window": 64, "clips_per_epoch": 64, "decoders": 2}
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


def test_every_place_comes_once(catalog: Path) -> None:
    """Also to a loop that is left and goes on from its state."""
    options: dict[str, Any] = {"step": 5, "clips_per_visit": 2, "clips_per_epoch": None}
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
    with loader(catalog, clips_per_visit=2, window=8) as one:
        first, states = [], []
        for batch in one:
            first.append(batch)
            states.append(one.state_dict())
        second = list(one)
    with loader(catalog, clips_per_visit=2, window=8) as other:
        other.load_state_dict(states[0])
        assert taken(other) == taken(first[1:])
        assert taken(other) == taken(second)
        other.load_state_dict(states[-1])
        assert other.epoch == 1, "nothing is left of epoch 0"
        assert taken(other) == taken(second)
    for changed in ({"seed": 1}, {"clip": essp.Clip(frames=4, size=40)}, {"clips_per_visit": 4}):
        with pytest.raises(essp.ConfigError, match="it is of other clips"):
            loader(catalog, **{"clips_per_visit": 2, "window": 8, **changed}).load_state_dict(states[0])


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
    options: dict[str, Any] = {"step": 5, "clips_per_epoch": None, "validation_fraction": 0, "dead_ratio": 1.0}
    missing = 0
    for rank in range(2):
        with loader(catalog, batch_size=1, rank=rank, world_size=2, **options) as share:
            shown = taken(share)
            assert len(shown) == len(share)
            missing += len(shown) - len(set(shown))
            assert share.epoch == 1
        assert "train/left/0.mp4" not in {video for _, _, video, _, _ in shown}
    assert missing > 0


def test_a_closed_loader_holds_no_frames(catalog: Path) -> None:
    """Not even until the garbage collector comes: they are memory, and a file descriptor."""
    before = Holdings.now()
    gc.collect()
    gc.disable()
    try:
        clips = loader(catalog)
        batches = iter(clips)
        next(batches)
        held = {target for _, target in Holdings.now().without(before).files}
        clips.close()
        left = {target for _, target in Holdings.now().without(before).files}
    finally:
        gc.enable()
    assert "/memfd:essp-clips" in held - left


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
        with pytest.raises(essp.ConfigError, match=r"set_epoch\(0\) would lose the state"):
            clips.set_epoch(0)
        assert [entry[:2] for entry in taken(clips)] == [(3, 8), (3, 9)]
        clips.set_epoch(0)
        assert clips.epoch == 0


def test_an_iteration_is_over_once_the_loader_is_elsewhere(catalog: Path) -> None:
    """It said that the job is running, or went on and left a state that named the wrong epoch."""
    with loader(catalog) as clips:
        for meanwhile in (
            clips.close,
            lambda: clips.set_epoch(5),
            lambda: clips.load_state_dict(clips.state_dict()),
            lambda: next(iter(clips)),
        ):
            batches = iter(clips)
            next(batches)
            meanwhile()
            state = clips.state_dict()
            with pytest.raises(essp.ConfigError, match="this iteration is over"):
                next(batches)
            assert clips.state_dict() == state


def test_who_waits_for_a_batch_hears_of_the_end(catalog: Path) -> None:
    """A thread that had begun to wait did so for ever."""
    decoding, go_on = Event(), Event()

    def late(frames: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
        decoding.set()
        go_on.wait(60)
        return frames

    with loader(catalog, transform=late) as clips, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(next, iter(clips))
        assert decoding.wait(60)
        closing = pool.submit(clips.close)
        try:
            with pytest.raises(essp.ConfigError, match="this iteration is over"):
                waiting.result(60)
        finally:
            go_on.set()
        closing.result(60)


def test_a_loader_that_is_closed_while_it_starts_leaves_nothing(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was started then stayed until the loader was dropped."""
    clips = loader(catalog)
    start = essp.Loader._clips_from

    def closed_meanwhile(*arguments: Any) -> Any:
        started = start(*arguments)
        clips.close()
        return started

    monkeypatch.setattr(essp.Loader, "_clips_from", closed_meanwhile)
    with pytest.raises(essp.ConfigError, match="this iteration is over"):
        next(iter(clips))
    assert clips._feed is None


def test_a_loader_that_is_closed_as_it_has_started_waits_for_nothing(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that closed it saw nothing to close, and the other one waited for a batch."""
    clips = loader(catalog)

    class Started(Feed):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            clips.close()

        def next(self) -> Any:
            pytest.fail("it waits")

    monkeypatch.setattr("essp.api.loader.Feed", Started)
    with pytest.raises(essp.ConfigError, match="this iteration is over"):
        next(iter(clips))
    assert clips._feed is None


def test_batches_may_be_anything(catalog: Path) -> None:
    with loader(catalog, loops=2).map(lambda batch: batch.meta["index"]) as clips, clips.another() as other:
        for loop in (clips, other):
            given: list[Any] = list(loop)
            assert given == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
            assert loop.state_dict()["epoch"] == 1


def test_a_loop_that_breaks_leaves_nothing_and_goes_on_with_the_next_epoch(catalog: Path) -> None:
    clips = loader(catalog)
    for _ in clips:
        break
    assert clips.state_dict()["clip"] == 4

    def fail() -> None:
        for batch in clips:
            raise ValueError(f"in epoch {batch.meta['epoch'][0]}")

    with pytest.raises(ValueError, match="in epoch 1"):
        fail()
    clips.set_epoch(0)
    again = iter(clips)
    assert next(again).meta["epoch"] == [0] * 4
    again.close()  # type: ignore[attr-defined]
    clips.close()


def test_evaluation_shows_each_video_alike_in_each_epoch(catalog: Path) -> None:
    with loader(catalog, split="validation", clips_per_video=2, clips_per_epoch=None) as clips:
        first, second = taken(clips), taken(clips)
    assert [entry[1:] for entry in first] == [entry[1:] for entry in second]
    assert set(Counter(video for _, _, video, _, _ in first).values()) == {2}
    assert {video.split("/")[0] for _, _, video, _, _ in first} == {"validation"}


def test_features_are_those_of_the_extractors(catalog: Path, make_job: MakeJob, tmp_path: Path) -> None:
    """By arguments, and by a job file; a loop that is not in the main process decodes all the same."""
    make_job("mine")
    with essp.Loader.of(tmp_path / "mine.yaml", "flow", decoders=1) as clips:
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


@pytest.mark.processes
def test_workers_of_torch_are_refused(catalog: Path) -> None:
    wrapped = DataLoader(loader(catalog), batch_size=None, num_workers=1)
    with pytest.raises(essp.ConfigError, match="num_workers=0"):
        next(iter(wrapped))


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


_LOOP = """
import json, os, sys, essp

catalog, state, log, steps = sys.argv[1:]
loader = essp.Loader(catalog, clip=essp.Clip(4, 2, 40), batch_size=2, clips_per_epoch=10, decoders=1)
if os.path.exists(state):
    loader.load_state_dict(json.load(open(state)))
for batch in loader:
    with open(log, "a") as lines:
        print(*batch.meta["index"], int(batch.frames.sum()), file=lines, flush=True)
    with open(state + ".new", "w") as file:
        json.dump(loader.state_dict(), file)
    os.replace(state + ".new", state)
    steps = int(steps) - 1
    if not steps:
        os.kill(os.getpid(), 9)
"""


@pytest.mark.processes
def test_a_loop_killed_twice_has_each_clip_once(catalog: Path, tmp_path: Path) -> None:
    """A script without the guard of `__main__`, which a killed process cannot tidy up after."""
    script = tmp_path / "loop.py"
    script.write_text(_LOOP)
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ends = []
    for steps in ("2", "1", "9"):
        command = [sys.executable, str(script), str(catalog), str(tmp_path / "state"), str(tmp_path / "log"), steps]
        ends.append(subprocess.run(command, env=environment, check=False).returncode)
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0]
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [int(index) for line in lines for index in line[:-1]] == list(range(10))
    assert json.loads((tmp_path / "state").read_text())["epoch"] == 1
    with essp.Loader(catalog, clip=CLIP, batch_size=2, clips_per_epoch=10, decoders=1) as clips:
        assert [int(line[-1]) for line in lines] == [int(batch.frames.sum()) for batch in clips]


_LEAVING = """
import sys, threading, essp
from essp.loops.running_job import OwnJob

end = OwnJob._end

def told(job):
    print([thread.name for thread in threading.enumerate() if thread.name.startswith(("essp-intake", "essp-loop"))])
    end(job)

OwnJob._end = told
loader = essp.Loader(sys.argv[1], clip=essp.Clip(frames=4, stride=2, size=40), batch_size=2, decoders=1)
batches = iter(loader)
next(batches)
"""


@pytest.mark.parametrize(
    ("start", "words"),
    [(None, "all 3 epochs of the job had begun before this loop came.*`set_epoch`"), (Position(3, 0), "are over")],
)
def test_a_loop_without_an_epoch_left_is_told_why(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, start: Position | None, words: str
) -> None:
    """`start` None: it has joined a job of a cluster, without a state."""
    clips = loader(catalog, epochs=3)
    monkeypatch.setattr(clips, "_feed_at", lambda start: SimpleNamespace(next=lambda: None))
    with pytest.raises(essp.EsspError, match=words):
        list(clips._epoch_from(start))


@pytest.mark.processes
def test_a_loop_that_nobody_closes_leaves_before_its_job_ends(catalog: Path) -> None:
    """In the middle of an epoch. Else its threads would ask a bus that is closed, and say so in the log."""
    command = [sys.executable, "-c", _LEAVING, str(catalog)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "trian"}, r"^split: .*'trian'.*did you mean train"),
        ({"batch_size": 0}, r"^batch_size"),
        ({"memory": "1MiB", "clip": essp.Clip(64, 1, 224)}, r"^memory: 1.0 MiB hold .*batch_size = 4.*raise it to"),
        ({"window": 64}, "clips_per_visit"),
        ({"clips_per_visit": 8, "window": 20}, r"^window: 20 is no multiple"),
        ({"feature": "flwo"}, r"did you mean flow"),
        ({"feature": "flow", "params": {"length": 60}}, r"clip.frames is 4; set it to 61"),
        ({"rank": 2, "world_size": 2}, r"^rank: 2"),
        ({"rank": 1}, r"^rank"),
        ({"clip": essp.Clip(frames=0)}, r"clip.frames"),
        ({"decoders": -1}, r"^decoders"),
        ({"device": "cuda"}, r"^device: cuda"),
        ({"device": "gpu"}, r"^device: 'gpu' is none"),
        ({"device": "meta"}, r"^device: .*meta"),
        ({"clips_per_visit": 8, "window": 0}, r"window: has to be 1 or more"),
        ({"split": "validation", "validation_fraction": 0}, r"^validation_fraction"),
        ({"catalog": "nowhere.parquet"}, r"^catalog: .*essp catalog build"),
    ],
)
def test_wrong_arguments_are_named(
    catalog: Path, options: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(essp.ConfigError, match=words):
        loader(**{"catalog": catalog, **options})


def test_a_job_file_is_told_of_in_its_own_words(
    make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_job("mine", budget="16KiB")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(essp.ConfigError, match=r"stream: .*no stream 'flwo'"):
        essp.Loader.of("~/mine.yaml", "flwo")
    with pytest.raises(essp.ConfigError, match=r"limits\.budget: .*but batch_size = 4 need 8"):
        essp.Loader.of(tmp_path / "mine.yaml", "flow")
    with pytest.raises(essp.ConfigError, match=r"stream: .*no stream 'flwo'.*did you mean flow"):
        essp.Loader.of(tmp_path / "mine.yaml", "flwo")
    with pytest.raises(essp.ConfigError, match=r"^batch_size: has to be 1 or more"):
        essp.Loader.of(tmp_path / "mine.yaml", "flow", batch_size=0)


def test_states_that_are_none_are_refused(catalog: Path) -> None:
    clips = loader(catalog)
    good = clips.state_dict()
    for state in ({}, {**good, "clip": 11 + 4}, {**good, "epoch": -1}, {**good, "clip": "x"}):
        with pytest.raises(essp.ConfigError, match="state:"):
            clips.load_state_dict(state)  # type: ignore[arg-type]
    with pytest.raises(essp.ConfigError, match="ranks that divides it"):
        loader(catalog, rank=0, world_size=2, batch_size=2).load_state_dict({**good, "clip": 3})
    for epoch in (-1, 10**9):
        with pytest.raises(essp.ConfigError, match=r"epoch"):
            clips.set_epoch(epoch)
        with pytest.raises(essp.ConfigError, match="state:"):
            clips.load_state_dict({**good, "epoch": epoch})
    with pytest.raises(essp.ConfigError, match="state:"):
        clips.load_state_dict({**good, "clip": float("inf")})  # type: ignore[dict-item]


def run_together(loops: Sequence[essp.Loader], take: Callable[[int, essp.Loader], Any]) -> list[Any]:
    """What `take` gives for each loop, in threads that run at once."""
    with ThreadPoolExecutor(len(loops)) as pool:
        return list(pool.map(take, range(len(loops)), loops))


def in_step(barrier: Barrier, batches: essp.Loader) -> Iterator[essp.Batch]:
    """Batches of one of several loops, none of which goes ahead of the others: on a busy machine one of them might not
    run for so long that it is left behind."""
    for batch in batches:
        barrier.wait(60)
        yield batch


def test_several_loops_share_each_decode(catalog: Path) -> None:
    barrier = Barrier(3)
    with loader(catalog, loops=3, clips_per_epoch=40) as first:
        loops = [first, first.another(), first.another()]
        with pytest.raises(essp.ConfigError, match="give the first one loops=4 or more"):
            first.another()
        epochs = run_together(loops, lambda _, clips: (taken(in_step(barrier, clips)), taken(in_step(barrier, clips))))
        counts = first._source._job.status().counts  # type: ignore[attr-defined]
        for clips in loops[1:]:
            clips.close()
    assert epochs[0] == epochs[1] == epochs[2]
    assert [len(epoch) for epoch in epochs[0]] == [40, 40]
    assert counts.redecoded == 0
    with loader(catalog, clips_per_epoch=40) as alone:
        assert taken(alone) == epochs[0][0]


def test_without_a_bound_there_is_memory_for_any_batch(catalog: Path) -> None:
    clips = essp.Loader(catalog, clip=essp.Clip(32, 1, 512), batch_size=64, clips_per_visit=8, loops=8)
    assert len(clips) == 1
    with pytest.raises(essp.ConfigError, match=r"memory: 256 MiB hold .* raise it to"):
        essp.Loader(catalog, clip=essp.Clip(32, 1, 512), batch_size=64, memory="256MiB")


def test_loops_in_turn_and_late_ones_have_each_clip_once(catalog: Path) -> None:
    with loader(catalog, loops=3, clips_per_epoch=60) as first:
        whole = taken(first)
        batches = iter(first)
        begun = taken([next(batches), next(batches)])
        late = first.another()
        epoch = taken(late)  # while the first one waits
        assert begun + taken(batches) == epoch
        assert [entry[:2] for entry in epoch] == [(1, index) for index in range(60)]
        later = first.another()
        later.set_epoch(2)
        part = []
        for batch in later:
            part += taken([batch])
            if len(part) == 20:
                break
        state = later.state_dict()
        second = taken(first)
        later.load_state_dict(state)
        assert part + taken(later) == second
        assert taken(late) == second
        later.set_epoch(0)
        assert taken(later) == whole
        for clips in (late, later):
            clips.close()


def test_a_loop_that_stops_taking_holds_nobody_up(catalog: Path) -> None:
    with loader(catalog, loops=2, clips_per_epoch=100) as first:
        slow = first.another()
        batches = iter(slow)
        begun = taken([next(batches)])
        whole = taken(first)
        assert begun + taken(batches) == whole
        slow.close()
        assert len(taken(first)) == 100


def test_a_loop_that_is_dropped_gives_back_what_it_had(catalog: Path) -> None:
    with loader(catalog, loops=2, clips_per_epoch=100) as first:
        other = first.another()
        next(iter(other))
        del other
        gc.collect()
        assert len(taken(first)) == 100
        again = first.another()  # its name is free again
        assert len(taken(again)) == 100
        again.close()


THREADS = (
    "essp-control essp-deadletter essp-embedded master essp-conditions essp-cache-watch essp-heart workers decoder "
    "decoder-lane-0 essp-loop-consumer.loop essp-intake-loop essp-device-feed-loop essp-load-loop_0"
)
"""Those of a loop and its job, in the order in which they begin."""


@pytest.mark.processes
@pytest.mark.parametrize("name", THREADS.split())
def test_a_job_that_starts_half_way_leaves_nothing_behind(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The check after each test looks for threads, processes and files."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    clips = loader(catalog)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            next(iter(clips))
    assert len(taken(clips)) == 10, "it begins anew"
    clips.close()


@pytest.mark.processes
def test_a_loop_that_comes_half_way_is_none_of_the_job(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job waited for it, and went on telling it of all that changed."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "essp-loop-consumer.loop-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    with loader(catalog, loops=2, clips_per_epoch=100) as first:
        batches = iter(first)
        next(batches)
        other = first.another()
        job = first._source._job  # type: ignore[attr-defined]
        heard = list(job.control._listeners)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                next(iter(other))
        assert job.control._listeners == heard
        assert len(taken(batches)) == 96


BEGINS = [(OwnJob, "__init__"), (Membership, "__init__"), (JobClips, "__init__"), (Feed, "__init__")]
ENDS = [(Feed, "close"), (JobClips, "close"), (Membership, "leave"), (OwnJob, "close"), (Embedded, "close")]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("owner", "name"), BEGINS + ENDS, ids=[f"{owner.__name__}.{name}" for owner, name in BEGINS + ENDS]
)
def test_interrupts_while_it_begins_or_ends_leave_nothing_behind(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """As Ctrl-C in a notebook, pressed twice: the process lives on. The check after each test looks what has stayed."""
    call = getattr(owner, name)
    left = [True]

    def interrupt() -> None:
        if left:
            left.pop()
            os.kill(os.getpid(), signal.SIGINT)

    def interrupted(*arguments: Any) -> None:
        if name != "__init__":
            interrupt()
        call(*arguments)
        interrupt()

    clips = loader(catalog)
    batches = iter(clips)
    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt), clips:
        next(batches)
    assert not left
    assert len(taken(clips)) == 10, "it begins anew"
    clips.close()


def test_an_iteration_that_ends_in_a_thread_of_the_loader_leaves_nothing(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the garbage collector finds it there: that thread would have to wait for itself."""
    monkeypatch.setenv("ESSP_LOADERS", "1")
    held: list[Iterator[essp.Batch]] = []
    go_on, dropped = Event(), Event()
    numbers = count()

    def dropping(frames: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
        if next(numbers) >= 4:
            go_on.wait(60)
            held.clear()
            dropped.set()
        return frames

    clips = loader(catalog, transform=dropping)
    held.append(iter(clips))
    next(held[0])
    go_on.set()
    assert dropped.wait(60)
    until(lambda: clips._feed is None)


_RAISING = """
import sys, essp

def train():
    clips = essp.Loader(sys.argv[1], clip=essp.Clip(4, 2, 40), batch_size=4, clips_per_epoch=100, decoders=1)
    batches = iter(clips)
    for batch in batches:
        raise ZeroDivisionError

train()
"""


@pytest.mark.processes
def test_a_traceback_that_holds_an_iteration_does_not_keep_the_process(catalog: Path) -> None:
    """It is freed when the interpreter ends, where no other thread runs any more."""
    ended = subprocess.run(
        [sys.executable, "-c", _RAISING, str(catalog)], check=False, capture_output=True, text=True, timeout=LONGEST_S
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ZeroDivisionError"
