"""A checkpoint is real: whatever is interrupted or damaged, none that looks valid is not."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import pytest

from essp_common import checkpoint, layout
from essp_common.checkpoint import BadCheckpoint, Best, Manifest, ModelDescription
from essp_common.errors import Unavailable
from essp_common.layout import Position
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.wiring import open_store

FILES = {"model.safetensors": b"weights" * 100, "optimizer.safetensors": b"momentum" * 50}


def manifest(step: int, best: int | None = None) -> Manifest:
    return Manifest(
        job="j",
        trainer="rgb",
        step=step,
        updates=step // 4,
        epoch=0,
        position=Position(0, step),
        spec_digest="d",
        model=ModelDescription(name="small", feature="rgb", channels=3, classes=("a", "b"), dropout=0.5, crop=64),
        best=None if best is None else Best(step=best, epoch=0, metrics={"video_top1": 0.5}),
    )


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return open_store(tmp_path.as_uri())
    return open_store(request.getfixturevalue("empty_s3_url"))


class Dying:
    """A store whose process dies after so many writes."""

    def __init__(self, store: ObjectStore, writes: int) -> None:
        self._store = store
        self._left = writes

    def _write(self) -> None:
        if self._left == 0:
            raise Unavailable("dead")
        self._left -= 1

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        self._write()
        return self._store.put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        self._write()
        self._store.delete(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def open(self, key: str) -> BinaryIO:
        return self._store.open(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_what_was_saved_is_read(store: ObjectStore) -> None:
    saved = checkpoint.save(store, manifest(8), FILES, keep=2)
    assert checkpoint.read_latest(store, "rgb") == saved
    assert saved.position == Position(0, 8)
    assert checkpoint.load_files(store, saved) == FILES
    assert checkpoint.load_files(store, saved, ["model.safetensors"]) == {
        "model.safetensors": FILES["model.safetensors"]
    }
    assert checkpoint.read_latest(store, "flow") is None


def test_a_crash_anywhere_leaves_the_last_or_the_new_one_whole(tmp_path: Path) -> None:
    seen = set()
    for writes in range(30):
        store = open_store((tmp_path / str(writes)).as_uri())
        for step in (4, 8):
            checkpoint.save(store, manifest(step), FILES, keep=1)
        new = {name: data[::-1] for name, data in FILES.items()}
        try:
            checkpoint.save(Dying(store, writes), manifest(12), new, keep=1)  # type: ignore[arg-type]
            whole = True
        except Unavailable:
            whole = False
        latest = checkpoint.read_latest(store, "rgb")
        assert latest is not None
        seen.add(latest.step)
        assert checkpoint.load_files(store, latest) == (new if latest.step == 12 else FILES)
        for step in checkpoint.steps(store, "rgb"):
            checkpoint.verify(store, checkpoint.read(store, "rgb", step))
        if whole:
            break
    assert whole
    assert seen == {8, 12}


def test_a_first_save_that_died_is_no_checkpoint(tmp_path: Path) -> None:
    for writes in range(5):
        store = open_store((tmp_path / str(writes)).as_uri())
        with pytest.raises(Unavailable):
            checkpoint.save(Dying(store, writes), manifest(4), FILES, keep=1)  # type: ignore[arg-type]
        assert checkpoint.read_latest(store, "rgb") is None


def test_the_newest_and_the_best_are_kept(store: ObjectStore) -> None:
    for step in (4, 8, 12, 16, 20):
        checkpoint.save(store, manifest(step, best=8 if step > 8 else None), FILES, keep=2)
    assert checkpoint.steps(store, "rgb") == [8, 16, 20]
    kept = {info.key.split("/")[3] for info in store.list("trainers/rgb/checkpoints/")}
    assert kept == {f"{step:010d}" for step in (8, 16, 20)}


@pytest.mark.parametrize("damage", [b"x" * 700, b"short"])
def test_damaged_data_is_found(store: ObjectStore, damage: bytes) -> None:
    saved = checkpoint.save(store, manifest(8), FILES, keep=2)
    store.put(layout.checkpoint("rgb", 8) + "model.safetensors", damage)
    with pytest.raises(BadCheckpoint, match=r"model\.safetensors.*(damaged|bytes instead).*backup"):
        checkpoint.load_files(store, saved)
    with pytest.raises(BadCheckpoint):
        checkpoint.verify(store, saved)


def test_an_incomplete_latest_falls_back_with_a_warning(store: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    for step in (4, 8):
        checkpoint.save(store, manifest(step), FILES, keep=2)
    store.delete(layout.checkpoint("rgb", 8) + "optimizer.safetensors")
    latest = checkpoint.read_latest(store, "rgb")
    assert latest is not None
    assert latest.step == 4
    assert "checkpoint 8 of trainer rgb is left out" in caplog.text


def test_no_whole_checkpoint_is_an_error_not_a_fresh_start(store: ObjectStore) -> None:
    checkpoint.save(store, manifest(8), FILES, keep=2)
    store.put(layout.checkpoint("rgb", 8) + "manifest.json", b"{}")
    with pytest.raises(BadCheckpoint, match="none is whole"):
        checkpoint.read_latest(store, "rgb")
    store.put(layout.latest("rgb"), b"?")
    with pytest.raises(BadCheckpoint, match="not a pointer"):
        checkpoint.read_latest(store, "rgb")


def test_what_an_abandoned_run_left_ahead_is_removed(store: ObjectStore) -> None:
    """A fall-back to checkpoint 4 trains 8 again; the old 12 must not outlive that."""
    for step in (4, 8, 12):
        checkpoint.save(store, manifest(step), FILES, keep=3)
    checkpoint.save(store, manifest(8), FILES, keep=3)
    assert checkpoint.steps(store, "rgb") == [4, 8]


def test_a_store_that_gives_back_other_bytes_is_not_trusted(tmp_path: Path) -> None:
    store = open_store(tmp_path.as_uri())
    first = checkpoint.save(store, manifest(4), FILES, keep=1)

    class Forgetful(Dying):
        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            return self._store.put(key, data[:-1] + b"?" if key.endswith("model.safetensors") else data)

    with pytest.raises(BadCheckpoint, match="damaged"):
        checkpoint.save(Forgetful(store, 99), manifest(8), FILES, keep=1)  # type: ignore[arg-type]
    assert checkpoint.read_latest(store, "rgb") == first
    assert os.path.exists(tmp_path / layout.checkpoint("rgb", 4))
