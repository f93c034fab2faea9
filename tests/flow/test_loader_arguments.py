"""Arguments and states of `essp.Loader` that make no sense are refused, in the words in which they were given."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

import essp
from essp_common.errors import ConfigCode
from essp_common.job.position import Position
from tests.flow.conftest import MakeJob
from tests.harness.loops import ask_in_a_worker_of_torch, loader
from tests.harness.refused import refused


def test_videos_and_runs_may_lie_in_the_temporary_folder(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop writes to a folder of its own in it, and so is in nobody's way."""
    videos = Path(essp.open_catalog(catalog).rows[0].uri.removeprefix("file://")).parent
    monkeypatch.setattr(tempfile, "tempdir", str(videos))
    with loader(catalog) as clips:
        assert next(iter(clips)).labels.shape == (4,)


def test_the_folder_for_temporary_files_may_be_a_link_outside_of_all_stores(
    videos: Path, catalog: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loader was refused for an output, which it does not have."""
    monkeypatch.setenv("ESSP_STORES", f"file://{videos},file://{catalog.parent}")
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "link"))
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
    [(None, "all 3 epochs of the job had begun before this loop joined.*`set_epoch`"), (Position(3, 0), "are over")],
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
    ("options", "field", "code"),
    [
        ({"split": "trian"}, "split", "unknown"),
        ({"split": "validation", "validation_fraction": 1}, "validation_fraction", "range"),
        ({"batch_size": 0}, "batch_size", "range"),
        ({"batch_size": 11, "drop_last": True}, "drop_last", "conflict"),
        ({"memory": "1MiB", "clip": essp.Clip(64, 1, 224)}, "limits.memory", "range"),
        ({"feature": "flwo"}, "feature", "unknown"),
        ({"feature": "flow", "params": {"lenght": 3}}, "params.lenght", "unknown"),
        ({"feature": "flow", "params": {"length": 60}}, "feature", "range"),
        ({"rank": 2, "world_size": 2}, "rank", "range"),
        ({"device": "cuda"}, "device", "not_found"),
        ({"device": "gpu"}, "device", "unknown"),
        ({"device": "meta"}, "device", "unsupported"),
        ({"catalog": "nowhere.parquet"}, "catalog", "not_found"),
    ],
)
def test_wrong_arguments_are_named(
    catalog: Path, options: dict[str, Any], field: str, code: ConfigCode, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with refused(field, code):
        loader(**{"catalog": catalog, **options})


def test_errors_say_nothing_of_the_job_behind_a_loader(catalog: Path) -> None:
    for options in ({"memory": "1MiB", "clip": essp.Clip(64, 1, 224)}, {"feature": "flow", "params": {"length": 60}}):
        with pytest.raises(essp.ConfigError) as caught:
            loader(catalog, **options)
        assert not re.search(r"\b(limits\.budget|streams\.|consumers\.|data\.)", str(caught.value))


def test_a_job_file_keeps_its_own_names(make_job: MakeJob, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_job("mine", budget="16KiB")
    monkeypatch.setenv("HOME", str(tmp_path))
    with refused("stream", "unknown"):
        essp.Loader.of("~/mine.yaml", "flwo")
    with refused("stream", "missing"):
        essp.Loader.of("~/mine.yaml")
    with refused("limits.budget", "range"):
        essp.Loader.of(tmp_path / "mine.yaml", "flow")
    with refused("limits.memory", "range"):
        essp.Loader.of(tmp_path / "mine.yaml", "flow", limits=essp.Limits(memory="8KiB"))
    with refused("batch_size", "range"):
        essp.Loader.of(tmp_path / "mine.yaml", "flow", batch_size=0)


def test_states_that_are_none_are_refused(catalog: Path) -> None:
    clips = loader(catalog)
    good = clips.state_dict()
    wrong: tuple[dict[str, Any], ...] = ({}, {**good, "clip": "x"}, {**good, "clip": float("inf")})
    for state in wrong:
        with refused("state", "type"):
            clips.load_state_dict(state)
    for state in ({**good, "clip": 11 + 4}, {**good, "epoch": -1}, {**good, "epoch": 10**9}):
        with refused("state", "range"):
            clips.load_state_dict(state)
    with refused("state", "conflict"):
        loader(catalog, rank=0, world_size=2, batch_size=2).load_state_dict({**good, "clip": 3})
    for epoch in (-1, 10**9):
        with refused("epoch", "range"):
            clips.set_epoch(epoch)


def test_without_a_bound_there_is_memory_for_any_batch(catalog: Path) -> None:
    options: dict[str, Any] = {"clip": essp.Clip(32, 1, 512), "batch_size": 64, "kind": "pooled", "loops": 8}
    clips = loader(catalog, **options)
    assert len(clips) == 1
    assert repr(clips).endswith("in batches of 64; rgb, 32 frames of 512 x 512, stride 1; 2 classes>")
    with refused("limits.memory", "range"):
        loader(catalog, **options, memory="256MiB")
