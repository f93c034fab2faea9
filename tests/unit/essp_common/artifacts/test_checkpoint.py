"""A checkpoint is real: whatever is interrupted or damaged, none that looks valid is not."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest

from essp_common.artifacts import checkpoint, checkpoint_writer, layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint, StoredBase, StoredFile, in_memory
from essp_common.artifacts.manifest import MODEL_FILE, Best, Manifest
from essp_common.errors import Unavailable
from essp_common.job.position import Position
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.tensors.packed import EXACT, Base, pack
from essp_common.wiring import open_store
from tests.harness.model_manifest import SMALL
from tests.harness.refused import refused
from tests.lanes import often

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
        model=SMALL,
        best=None if best is None else Best(step=best, epoch=0, metrics={"video_top1": 0.5}),
    )


def save(store: Any, manifest: Manifest, files: Mapping[str, bytes], keep: int) -> Manifest:
    """What a process does that begins, saves once, and ends."""
    return checkpoint_writer.claim(store, manifest.trainer, manifest.fence).save(manifest, in_memory(files), keep)


@pytest.fixture(params=["directory", pytest.param("s3", marks=pytest.mark.processes)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return open_store(tmp_path.as_uri())
    return open_store(request.getfixturevalue("empty_s3_url"))


@pytest.fixture
def folder(tmp_path: Path) -> ObjectStore:
    return open_store(tmp_path.as_uri())


class Died(BaseException):
    """The process is gone: nothing of it cleans up."""


class Dying:
    """A store whose process dies in the middle of a write: after some of its bytes, or of a removal."""

    def __init__(self, store: ObjectStore, writes: int, part: float | None = None) -> None:
        """`writes` go well; of the next, this part of the bytes is written (None: it does not begin)."""
        self._store = store
        self._left = writes
        self._part = part

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if self._left == 0:
            if self._part is not None:
                self._store.put(key, data[: int(len(data) * self._part)])
            raise Died
        self._left -= 1
        return self._store.put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        if self._left == 0:
            if self._part == 1.0:
                self._store.delete(key)
            raise Died
        self._left -= 1
        self._store.delete(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        return self._store.list(prefix)

    def open(self, key: str) -> BinaryIO:
        return self._store.open(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Full(Dying):
    """A store that has room for so many bytes more; what is removed makes none."""

    def __init__(self, store: ObjectStore, room: int) -> None:
        super().__init__(store, writes=1_000)
        self.room = room

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if len(data) > self.room:
            raise Unavailable(f"{key}: No space left on device")
        self.room -= len(data)
        return self._store.put(key, data, if_absent=if_absent)


def test_what_was_saved_is_read(store: ObjectStore) -> None:
    saved = save(store, manifest(8), FILES, keep=2)
    assert checkpoint.read_latest(store, "rgb") == saved
    assert saved.position == Position(0, 8)
    assert checkpoint.load_files(store, saved) == FILES
    assert checkpoint.load_files(store, saved, ["model.safetensors"]) == {
        "model.safetensors": FILES["model.safetensors"]
    }
    assert checkpoint.read_latest(store, "flow") is None


@pytest.mark.parametrize("keep", often([1, 2], 1))
def test_a_crash_at_any_byte_that_matters_leaves_the_last_or_the_new_one_whole(folder: ObjectStore, keep: int) -> None:
    die_at_every_write(folder, keep, [None, 0.0, 0.5, 0.999, 1.0])


@pytest.mark.lane("long")
def test_so_does_a_crash_between_any_two_writes_to_s3(empty_s3_url: str) -> None:
    die_at_every_write(open_store(empty_s3_url), 1, [1.0])


def die_at_every_write(store: ObjectStore, keep: int, parts: list[float | None]) -> None:
    """One run after another dies a write later than the one before, and the next goes on from what it left.

    `parts`: how much of the last write is there. Real stores write whole objects or none; this one does not.
    """
    step, seen = 4, {"old": 0, "new": 0}
    save(store, manifest(step), content(step), keep)
    for part in parts:
        for writes in range(30):
            try:
                save(Dying(store, writes, part), manifest(step + 4), content(step + 4), keep)
                whole = True
            except Died:
                whole = False
            latest = checkpoint.read_latest(store, "rgb")
            assert latest is not None
            assert latest.step in (step, step + 4)
            assert checkpoint.load_files(store, latest) == content(latest.step)
            assert_none_only_looks_valid(store)
            seen["new" if latest.step > step else "old"] += 1
            step = latest.step
            if whole:
                break
        assert whole
        assert set(steps_on(store)) == set(checkpoint.steps(store, "rgb"))  # the last one has tidied up
    assert seen["old"] > len(parts)
    assert seen["new"] > len(parts)


def content(step: int) -> dict[str, bytes]:
    """Other bytes at each step."""
    return {name: data + bytes([step % 251]) for name, data in FILES.items()}


def steps_on(store: ObjectStore) -> list[int]:
    """Steps of which anything at all is there."""
    return [int(info.key.split("/")[3].split("-")[0]) for info in store.list("trainers/rgb/checkpoints/")]


def assert_none_only_looks_valid(store: ObjectStore) -> None:
    """What can be read as a manifest is that of a whole checkpoint."""
    for step in checkpoint.steps(store, "rgb"):
        try:
            found = checkpoint.read(store, "rgb", step)
        except BadCheckpoint:
            continue
        checkpoint.verify(store, found)
        assert checkpoint.load_files(store, found) == content(step)


def test_a_first_save_that_died_is_no_checkpoint(tmp_path: Path) -> None:
    for writes in range(5):
        store = open_store((tmp_path / str(writes)).as_uri())
        with pytest.raises(Died):
            save(Dying(store, writes), manifest(4), FILES, keep=1)
        assert checkpoint.read_latest(store, "rgb") is None


@pytest.mark.parametrize("room", [0, 699, 700, 1100, 1500])
def test_without_room_the_last_one_stays_and_nothing_is_left_behind(folder: ObjectStore, room: int) -> None:
    first = save(folder, manifest(4), FILES, keep=1)
    with pytest.raises(Unavailable, match="No space left"):
        save(Full(folder, room), manifest(8), FILES, keep=1)
    assert checkpoint.read_latest(folder, "rgb") == first
    assert set(steps_on(folder)) == {4}
    save(folder, manifest(12), FILES, keep=1)
    assert set(steps_on(folder)) == {12}


def test_a_full_disk_is_an_answer_to_which_a_save_can_be_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path.as_uri())

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        with pytest.raises(Unavailable, match="No space left"):
            save(store, manifest(4), FILES, keep=1)
    assert checkpoint.read_latest(store, "rgb") is None
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert save(store, manifest(4), FILES, keep=1) == checkpoint.read_latest(store, "rgb")


def test_old_ones_that_cannot_be_removed_are_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Sticky(Dying):
        def delete(self, key: str) -> None:
            if "0000000004" in key:
                raise Unavailable("busy")
            self._store.delete(key)

    store = open_store(tmp_path.as_uri())
    save(store, manifest(4), FILES, keep=1)
    saved = save(Sticky(store, 99), manifest(8), FILES, keep=1)
    assert "could not be removed: busy" in caplog.text
    assert checkpoint.read_latest(store, "rgb") == saved


def test_a_damaged_one_among_those_that_are_kept_does_not_keep_older_ones(folder: ObjectStore) -> None:
    for step in (4, 8, 12):
        save(folder, manifest(step), FILES, keep=2)
        if step == 8:
            folder.put(checkpoint.read(folder, "rgb", 8).key, b"damaged")
    assert checkpoint.steps(folder, "rgb") == [8, 12]


def test_the_newest_and_the_best_are_kept(folder: ObjectStore) -> None:
    for step in (4, 8, 12, 16, 20):
        save(folder, manifest(step, best=8 if step > 8 else None), FILES, keep=2)
    assert checkpoint.steps(folder, "rgb") == [8, 16, 20]
    assert set(steps_on(folder)) == {8, 16, 20}


@pytest.mark.parametrize(
    ("damage", "what"), [(b"x" * 700, "is damaged: its SHA-256"), (b"short", "has 5 bytes instead of 700")]
)
def test_damaged_data_is_found(folder: ObjectStore, damage: bytes, what: str) -> None:
    saved = save(folder, manifest(8), FILES, keep=2)
    folder.put(saved.prefix + "model.safetensors", damage)
    for reads in (checkpoint.load_files, checkpoint.verify):
        with pytest.raises(BadCheckpoint, match=rf"model\.safetensors {what}.*backup"):
            reads(folder, saved)


@pytest.mark.parametrize("place", [(-1, 0), (0, -1), (2**31, 0), (0, 2**63)])
def test_a_position_that_no_plan_has_is_refused(place: tuple[int, int]) -> None:
    """No message could tell of it. The last that there may be is taken."""
    last = Position(2**31 - 1, 2**63 - 1)
    document = manifest(8).model_copy(update={"position": last}).model_dump(mode="json")
    assert Position.of(Manifest.model_validate(document).position.message()) == last
    with refused("position"):
        Manifest.model_validate(document | {"position": Position(*place)._asdict()})


def test_an_incomplete_latest_falls_back_with_a_warning(folder: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    for step in (4, 8):
        saved = save(folder, manifest(step), FILES, keep=2)
    folder.delete(saved.prefix + "optimizer.safetensors")
    latest = checkpoint.read_latest(folder, "rgb")
    assert latest is not None
    assert latest.step == 4
    assert "checkpoint 8 of trainer rgb is left out" in caplog.text


def test_flipped_bits_of_the_latest_lead_to_the_one_before(
    folder: ObjectStore, caplog: pytest.LogCaptureFixture
) -> None:
    for step in (4, 8):
        saved = save(folder, manifest(step), FILES, keep=2)
    data = FILES["model.safetensors"]
    folder.put(saved.prefix + "model.safetensors", data[:-1] + b"?")
    latest = checkpoint.read_latest(folder, "rgb")
    assert latest is not None
    assert latest.step == 4
    assert "checkpoint 8 of trainer rgb is left out" in caplog.text
    assert "SHA-256" in caplog.text


def test_a_damaged_pointer_leads_to_the_newest_whole_one(folder: ObjectStore, caplog: pytest.LogCaptureFixture) -> None:
    for step in (4, 8):
        saved = save(folder, manifest(step), FILES, keep=2)
    folder.put(NumberedLog(folder, layout.latest("rgb")).key(4), b'{"step": 8')
    assert checkpoint.read_latest(folder, "rgb") == saved
    assert "latest is damaged" in caplog.text


@pytest.mark.parametrize("gone", [False, True])
def test_no_whole_checkpoint_is_an_error_not_a_fresh_start(folder: ObjectStore, gone: bool) -> None:
    saved = save(folder, manifest(8), FILES, keep=2)
    folder.put(saved.key, b"{}")
    for info in list(folder.list(layout.checkpoints("rgb"))) if gone else ():
        folder.delete(info.key)
    with pytest.raises(BadCheckpoint, match="none is whole"):
        checkpoint.read_latest(folder, "rgb")


@pytest.mark.parametrize(
    ("file", "what"), [("model.safetensors", "damaged"), (layout.CHECKPOINT_MANIFEST, "is not a manifest")]
)
def test_a_store_that_gives_back_other_bytes_is_not_trusted(tmp_path: Path, file: str, what: str) -> None:
    store = open_store(tmp_path.as_uri())
    first = save(store, manifest(4), FILES, keep=1)

    class Forgetful(Dying):
        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            return self._store.put(key, data[:-1] + b"?" if key.endswith(file) else data)

    with pytest.raises(BadCheckpoint, match=what):
        save(Forgetful(store, 99), manifest(8), FILES, keep=1)
    assert checkpoint.read_latest(store, "rgb") == first
    assert os.path.exists(tmp_path / first.prefix)


class Chain:
    """Saves of one process, some as differences to an earlier one."""

    def __init__(self, store: ObjectStore) -> None:
        self._writer = checkpoint_writer.claim(store, "rgb")
        self.weights = {4: np.arange(100, dtype=np.float32)}

    def save(self, step: int, base: Manifest | None = None, keep: int = 1, best: int | None = None) -> Manifest:
        self.weights[step] = self.weights[4] + np.float32(step)
        arrays, to, needed = {"w": self.weights[step]}, None, None
        if base is not None:
            [file] = base.files
            needed = StoredBase(
                step=base.step, incarnation=base.incarnation, size_bytes=file.size_bytes, sha256=file.sha256
            )
            to = Base(needed.name, {"w": self.weights[base.step]})
        packed = pack(arrays, EXACT, to)

        def data(store: ObjectStore, prefix: str) -> tuple[StoredFile, ...]:
            [file] = in_memory({MODEL_FILE: packed})(store, prefix)
            return (file.model_copy(update={"base": needed}),)

        return self._writer.save(manifest(step, best), data, keep)


def test_what_others_are_differences_to_stays_until_they_go(tmp_path: Path) -> None:
    folder = open_store(tmp_path.as_uri())
    chain = Chain(folder)
    base = chain.save(8)
    chain.save(12, base)
    chain.save(16, base)
    assert checkpoint.steps(folder, "rgb") == [8, 16]
    alone = chain.save(20, best=16)
    assert checkpoint.steps(folder, "rgb") == [8, 16, 20], "the best needs its base"
    chain.save(24, alone)
    assert checkpoint.steps(folder, "rgb") == [20, 24]
    latest = checkpoint.read_latest(folder, "rgb")
    assert latest is not None
    found = checkpoint.load_arrays(folder, latest)[MODEL_FILE]["w"]
    assert found.tobytes() == chain.weights[24].tobytes()


def test_none_is_removed_after_what_it_needs(tmp_path: Path) -> None:
    """Whoever reads checkpoints meanwhile, and whatever a crash leaves of them, finds none without its base."""
    plain = DirectoryStore(str(tmp_path))

    class Watched(DirectoryStore):
        def delete(self, key: str) -> None:
            super().delete(key)
            for step in checkpoint.steps(plain, "rgb"):
                checkpoint.verify(plain, checkpoint.read(plain, "rgb", step))

    chain = Chain(Watched(str(tmp_path)))
    base = chain.save(8, keep=9)
    for step in (12, 16):
        chain.save(step, base, keep=9)
    chain.save(20)
    assert checkpoint.steps(plain, "rgb") == [20]


def test_none_looks_whole_while_it_is_removed(tmp_path: Path) -> None:
    plain = DirectoryStore(str(tmp_path))

    class Watched(DirectoryStore):
        def delete(self, key: str) -> None:
            super().delete(key)
            for name in checkpoint.complete(plain, "rgb"):
                checkpoint.verify(plain, checkpoint.read_named(plain, "rgb", name))

    for step in (4, 8):
        save(Watched(str(tmp_path)), manifest(step), {"a.tensors": b"before the manifest", "z.tensors": b"after"}, 1)
    assert checkpoint.steps(plain, "rgb") == [8]


@pytest.mark.parametrize("damage", ["other bytes", "gone", "another length"])
def test_a_checkpoint_with_a_damaged_base_is_not_whole(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The next older one that is whole is taken; it needs nothing of what is damaged."""
    folder = open_store(tmp_path.as_uri())
    chain = Chain(folder)
    chain.save(8, keep=9)
    base = chain.save(12, keep=9)
    last = chain.save(16, base, keep=9)
    key = base.prefix + MODEL_FILE
    data = folder.get(key)
    folder.delete(key)
    if damage != "gone":
        folder.put(key, data[:-1] + (b"?" if damage == "other bytes" else b""))
    with pytest.raises(BadCheckpoint, match=r"0000000012-.*/model\.tensors"):
        checkpoint.verify(folder, last)
    with pytest.raises(BadCheckpoint, match=r"0000000012-.*/model\.tensors"):
        checkpoint.load_arrays(folder, last)
    found = checkpoint.find(folder, "rgb")
    assert found.manifest is not None
    assert (found.manifest.step, found.lost_until) == (8, 16)
    assert "checkpoint 16 of trainer rgb is left out" in caplog.text


def test_arrays_of_more_bytes_than_there_can_be_are_not_made(folder: ObjectStore) -> None:
    saved = save(folder, manifest(4), {MODEL_FILE: pack({"w": np.zeros(2**16)})}, keep=3)
    found = checkpoint.load_arrays(folder, saved, [MODEL_FILE], 2**19)
    assert found[MODEL_FILE]["w"].nbytes == 2**19
    with pytest.raises(BadCheckpoint, match="524,288 bytes, and 524,287 are the most"):
        checkpoint.load_arrays(folder, saved, [MODEL_FILE], 2**19 - 1)


def test_nor_are_those_of_a_base(tmp_path: Path) -> None:
    folder = open_store(tmp_path.as_uri())
    chain = Chain(folder)
    base = chain.save(8)
    last = chain.save(12, base)
    key, large = base.prefix + MODEL_FILE, pack({"w": chain.weights[8], "x": np.zeros(2**16)})
    folder.put(key, large)
    [file] = last.files
    assert file.base is not None
    needed = file.base.model_copy(update={"size_bytes": len(large), "sha256": hashlib.sha256(large).hexdigest()})
    forged = last.model_copy(update={"files": (file.model_copy(update={"base": needed}),)})
    assert checkpoint.load_arrays(folder, forged)[MODEL_FILE]["w"].tobytes() == chain.weights[12].tobytes()
    with pytest.raises(BadCheckpoint, match="524,688 bytes, and 1,000 are the most"):
        checkpoint.load_arrays(folder, forged, [MODEL_FILE], 1000)


def test_a_file_that_is_not_what_its_manifest_says_it_needs_is_named(tmp_path: Path) -> None:
    folder = open_store(tmp_path.as_uri())
    chain = Chain(folder)
    saved = chain.save(12, chain.save(8))
    [file] = saved.files
    alone = saved.model_copy(update={"files": (file.model_copy(update={"base": None}),)})
    with pytest.raises(BadCheckpoint, match="its arrays are differences to 8-1, which was not given"):
        checkpoint.load_arrays(folder, alone)
