"""Arguments and states of `essp.Loader` that make no sense are refused, in the words in which they were given."""

from __future__ import annotations

import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import essp
from essp_common.job.position import Position
from tests.flow.conftest import MakeJob
from tests.harness.loops import ask_in_a_worker_of_torch, loader


def test_videos_and_runs_may_lie_in_the_temporary_folder(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop writes to a folder of its own in it, and so is in nobody's way."""
    videos = Path(essp.open_catalog(catalog).rows[0].uri.removeprefix("file://")).parent
    monkeypatch.setattr(tempfile, "tempdir", str(videos))
    with loader(catalog) as clips:
        assert next(iter(clips)).labels.shape == (4,)


@pytest.mark.processes
def test_workers_of_torch_are_refused(catalog: Path) -> None:
    with pytest.raises(essp.ConfigError, match="num_workers=0"):
        ask_in_a_worker_of_torch(loader(catalog))


@pytest.mark.parametrize("options", [{}, {"batch_size": 8}])
def test_batches_are_not_batched_again(catalog: Path, options: dict[str, Any]) -> None:
    with loader(catalog) as clips, pytest.raises(essp.ConfigError, match="batch_size=None"):
        next(iter(DataLoader(clips, **options)))


def test_a_batch_is_told_in_a_line(catalog: Path) -> None:
    """A notebook shows what stands last in a cell; the tensors themselves are hundreds of lines."""
    with loader(catalog) as clips:
        told = repr(next(iter(clips)))
    assert told.startswith(
        "<Batch of 4; frames: (4, 4, 40, 40, 3) torch.uint8 on cpu; labels: (4,) torch.int64 on cpu; meta: video, uri, "
    )
    assert "\n" not in told


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


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"split": "trian"}, r"^split: .*'trian'.*did you mean train"),
        ({"batch_size": 0}, r"^batch_size"),
        ({"batch_size": 11, "drop_last": True}, r"^drop_last: an epoch has 10 clips, .* no whole batch of 11"),
        ({"memory": "1MiB", "clip": essp.Clip(64, 1, 224)}, r"^memory: 1.0 MiB hold .*batch_size = 4.*raise it to"),
        ({"window": 64}, "clips_per_visit"),
        ({"clips_per_visit": 8, "window": 20}, r"^window: 20 is not a multiple"),
        ({"feature": "flwo"}, r"did you mean flow"),
        ({"feature": "flow", "params": {"length": 60}}, r"clip.frames is 4; set it to 61"),
        ({"rank": 2, "world_size": 2}, r"^rank: 2"),
        ({"rank": 1}, r"^rank"),
        ({"decoders": -1}, r"^decoders"),
        ({"device": "cuda"}, r"^device: cuda"),
        ({"device": "gpu"}, r"^device: 'gpu' is none"),
        ({"device": "meta"}, r"^device: .*meta"),
        ({"clips_per_visit": 8, "window": 0}, r"window: must be 1 or more"),
        ({"split": "validation", "validation_fraction": 1}, r"^validation_fraction"),
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
    with pytest.raises(essp.ConfigError, match=r"^batch_size: must be 1 or more"):
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


def test_without_a_bound_there_is_memory_for_any_batch(catalog: Path) -> None:
    clips = essp.Loader(catalog, clip=essp.Clip(32, 1, 512), batch_size=64, clips_per_visit=8, loops=8)
    assert len(clips) == 1
    assert repr(clips).endswith("in batches of 64; rgb, 32 frames of 512 x 512, stride 1; 2 classes>")
    with pytest.raises(essp.ConfigError, match=r"memory: 256 MiB hold .* raise it to"):
        essp.Loader(catalog, clip=essp.Clip(32, 1, 512), batch_size=64, memory="256MiB")
