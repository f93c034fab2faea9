"""A save of which a part, or the last answer, is missing: it is repeated, and nothing looks whole that is not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from essp_common.artifacts import checkpoint, checkpoint_writer, layout
from essp_common.artifacts.checkpoint_files import StoredFile
from essp_common.artifacts.checkpoint_writer import CheckpointWriter
from essp_common.errors import Fenced, Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectInfo, ObjectStore
from tests.unit.essp_common.artifacts.small_checkpoints import DATA, begin, latest, manifest


class Mute(DirectoryStore):
    """Takes no entry of the log any more: what is written is whole, and nobody says that it is complete."""

    muted = False

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        if self.muted and key.startswith(layout.latest("rgb")):
            raise Unavailable("no answer")
        return super().put(key, data, if_absent=if_absent)


def unsaid(writer: CheckpointWriter, store: Mute, step: int) -> None:
    """A checkpoint that its process had no time to make the latest."""
    store.muted = True
    with pytest.raises(Unavailable):
        writer.save(manifest(step), DATA, 3)
    store.muted = False


@pytest.mark.parametrize("whole", [True, False])
def test_what_nobody_said_to_be_complete_is_no_checkpoint(tmp_path: Path, whole: bool) -> None:
    store = Mute(str(tmp_path))
    unsaid(begin(store), store, 8)
    if not whole:
        store.put(layout.checkpoint("rgb", 8, 1) + "model.safetensors", b"damaged")
    assert begin(store).found == (None, 0)


def test_what_nobody_said_to_be_complete_is_not_taken_for_a_damaged_one(tmp_path: Path) -> None:
    store = Mute(str(tmp_path))
    writer = begin(store)
    for step in (4, 8):
        saved = writer.save(manifest(step), DATA, 3)
    unsaid(writer, store, 12)
    store.put(saved.prefix + "model.safetensors", b"damaged")
    assert latest(store) == 4


def test_a_save_that_is_repeated_and_dies_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    store = Mute(str(tmp_path))
    writer = begin(store)
    unsaid(writer, store, 8)

    def dies(store: ObjectStore, prefix: str) -> tuple[StoredFile, ...]:
        store.put(prefix + "model.safetensors", b"other weights")
        raise Stop

    with pytest.raises(Stop):
        writer.save(manifest(8), dies, 3)
    assert checkpoint.steps(store, "rgb") == []


def test_of_two_checkpoints_of_one_step_the_newer_counts_while_it_is_whole(tmp_path: Path) -> None:
    store = Mute(str(tmp_path))
    first = begin(store)
    first.save(manifest(4), DATA, 3)
    unsaid(first, store, 8)
    second = begin(store)
    saved = second.save(manifest(8), DATA, 3)
    assert saved.checkpoint == (8, second.incarnation)
    assert checkpoint.read(store, "rgb", 8) == saved
    assert checkpoint.read_latest(store, "rgb") == saved
    store.put(saved.prefix + "model.safetensors", b"damaged")
    older = checkpoint.read_latest(store, "rgb")
    assert older is not None
    assert older.checkpoint == (8, 1)


def test_a_checkpoint_that_is_removed_while_it_is_read_leads_to_the_newer_one(tmp_path: Path) -> None:
    writer = begin(DirectoryStore(str(tmp_path)))
    for step in (4, 8):
        writer.save(manifest(step), DATA, 3)

    class Overtaken(DirectoryStore):
        def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
            if key == layout.checkpoint("rgb", 8, 1) + "manifest.json":
                writer.save(manifest(12), DATA, 1)
            return super().get(key, start, length)

    assert latest(Overtaken(str(tmp_path))) == 12


@pytest.mark.parametrize("final", [False, True])
@pytest.mark.parametrize("lost", ["before", "after"])
def test_a_save_whose_last_answer_was_lost_is_repeated(tmp_path: Path, lost: str, final: bool) -> None:
    written = []

    class Lossy(DirectoryStore):
        failing = False

        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            written.append(key)
            if self.failing and key.startswith(layout.latest("rgb")):
                self.failing = False
                if lost == "after":
                    super().put(key, data, if_absent=if_absent)
                raise Unavailable("no answer")
            return super().put(key, data, if_absent=if_absent)

    store = Lossy(str(tmp_path))
    writer = begin(store)
    store.failing = True
    with pytest.raises(Unavailable):
        writer.save(manifest(4, final=final), DATA, 2)
    written.clear()
    saved = writer.save(manifest(4, final=final), DATA, 2)
    assert bool(written) == (lost == "before"), "what is the latest already is not touched"
    assert checkpoint.read_latest(store, "rgb") == saved
    if final:
        with pytest.raises(Fenced, match="finished"):
            writer.save(manifest(8), DATA, 2)
        return
    assert writer.save(manifest(8), DATA, 2) == checkpoint.read_latest(store, "rgb")


def test_an_entry_that_is_listed_late_is_not_taken_for_that_of_another_checkpoint(tmp_path: Path) -> None:
    """The answer to that of checkpoint 8 was lost, and it shows when the entry of 12 is refused."""
    late = NumberedLog(DirectoryStore(str(tmp_path)), layout.latest("rgb")).key(3)

    class Late(DirectoryStore):
        hidden = False

        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            if key != late:
                return super().put(key, data, if_absent=if_absent)
            self.hidden = not self.hidden
            super().put(key, data, if_absent=if_absent)
            raise Unavailable("no answer")

        def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
            return (info for info in super().list(prefix) if not (self.hidden and info.key == late))

    store = Late(str(tmp_path))
    writer = begin(store)
    writer.save(manifest(4), DATA, 1)
    for step in (8, 12):
        with pytest.raises(Unavailable):
            writer.save(manifest(step), DATA, 1)
    assert latest(store) == 8
    writer.save(manifest(12), DATA, 1)
    assert latest(store) == 12


class Stop(Exception):
    """A process is frozen for good."""


def test_a_checkpoint_goes_without_what_others_have_put_beside_it(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    prefix = layout.checkpoint("rgb", 4, 1)
    for name in ("manifest.json", "model.tensors", "plot.png", "model.tensors.bak"):
        store.put(prefix + name, b"x")
    checkpoint_writer.remove(store, prefix)
    assert {info.key for info in store.list()} == {f"{prefix}plot.png", f"{prefix}model.tensors.bak"}
