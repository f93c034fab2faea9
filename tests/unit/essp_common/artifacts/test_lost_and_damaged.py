"""Entries, manifests and pointers that are lost, damaged or of other people lead to the newest whole checkpoint."""

from __future__ import annotations

import pytest

from essp_common.artifacts import checkpoint, checkpoint_writer, layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.sealed import sealed
from essp_common.errors import Fenced
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from tests.unit.essp_common.artifacts.small_checkpoints import DATA, begin, latest, manifest, without_latest


@pytest.mark.parametrize("final", [False, True])
def test_a_lost_pointer_is_recovered_from_the_newest_whole_checkpoint(
    store: DirectoryStore, caplog: pytest.LogCaptureFixture, final: bool
) -> None:
    writer = begin(store)
    writer.save(manifest(4), DATA, 3)
    saved = writer.save(manifest(8, final=final), DATA, 3)
    without_latest(store)
    assert latest(store) == 8
    assert "latest is lost; looking for the newest whole checkpoint" in caplog.text
    if final:
        with pytest.raises(Fenced, match="finished"):
            begin(store).save(manifest(12), DATA, 1)
        return
    again = begin(store)
    assert again.found.manifest == saved
    again.save(manifest(12), DATA, 3)
    assert checkpoint.steps(store, "rgb") == [4, 8, 12]
    with pytest.raises(Fenced):
        writer.save(manifest(16), DATA, 3)


def test_a_lost_pointer_and_no_whole_checkpoint_is_an_error_not_a_fresh_start(store: DirectoryStore) -> None:
    saved = begin(store).save(manifest(4), DATA, 3)
    without_latest(store)
    store.put(saved.prefix + "model.safetensors", b"damaged")
    with pytest.raises(BadCheckpoint, match="none is whole"):
        begin(store)


def test_clips_of_a_damaged_checkpoint_are_known_though_the_pointer_is_lost(store: DirectoryStore) -> None:
    writer = begin(store)
    writer.save(manifest(4), DATA, 3)
    saved = writer.save(manifest(8), DATA, 3)
    store.delete(saved.key)
    without_latest(store)
    found = checkpoint.find(store, "rgb")
    assert found.manifest is not None
    assert (found.manifest.step, found.lost_until) == (4, 8)


def test_an_owner_whose_entry_was_deleted_goes_on(store: DirectoryStore, caplog: pytest.LogCaptureFixture) -> None:
    writer = begin(store)
    writer.save(manifest(4), DATA, 3)
    without_latest(store)
    writer.save(manifest(8), DATA, 3)
    assert latest(store) == 8
    assert "latest was lost; it is written again" in caplog.text


def test_an_owner_whose_last_entry_was_deleted_goes_on_from_the_one_before(store: DirectoryStore) -> None:
    """Or whose store does not list it yet."""
    writer = begin(store)
    writer.save(manifest(4), DATA, 3)
    NumberedLog(store, layout.latest("rgb")).delete(2)
    writer.check()
    writer.save(manifest(8), DATA, 3)
    assert latest(store) == 8


def test_an_owner_whose_entry_is_damaged_goes_on(store: DirectoryStore) -> None:
    writer = begin(store)
    writer.save(manifest(4), DATA, 3)
    store.put(NumberedLog(store, layout.latest("rgb")).key(2), b"damaged")
    writer.save(manifest(8), DATA, 3)
    assert latest(store) == 8


DEEP = b"[" * 100_000
ODD = [
    b"",
    b"\xff\x00",
    b"null",
    b'{"step": 1e400}',
    b'{"owner": 1, "step": 1e400}',
    b'{"owner": -1}',
    b'{"owner": 1, "stdp": 8}',
    DEEP,
]


@pytest.mark.parametrize("content", ODD)
def test_an_entry_that_makes_no_sense_costs_nothing(store: DirectoryStore, content: bytes) -> None:
    writer = begin(store)
    for step in (4, 8):
        saved = writer.save(manifest(step), DATA, 3)
    store.put(NumberedLog(store, layout.latest("rgb")).key(3), content)
    assert checkpoint.read_latest(store, "rgb") == saved
    assert checkpoint.latest_name(store, "rgb") is None
    assert begin(store).found.manifest == saved


@pytest.mark.parametrize(
    "content", [*ODD, b'{"step": 1e400}', b'{"job": "j", "trainer": "rgb", "step": 8, "position": [-1, 0]}']
)
def test_a_manifest_that_makes_no_sense_leads_to_the_one_before(store: DirectoryStore, content: bytes) -> None:
    writer = begin(store)
    for step in (4, 8):
        saved = writer.save(manifest(step), DATA, 3)
    store.put(saved.key, content)
    assert latest(store) == 4


def test_the_manifest_of_another_checkpoint_leads_to_the_one_before(store: DirectoryStore) -> None:
    writer = begin(store)
    first, second = [writer.save(manifest(step), DATA, 3) for step in (4, 8)]
    store.put(second.key, store.get(first.key))
    found = checkpoint.find(store, "rgb")
    assert (found.manifest, found.lost_until) == (first, 8)
    of_other = second.model_copy(update={"trainer": "flow"})
    checkpoint_writer.claim(store, "flow").save(of_other, DATA, 3)
    store.put(second.key, sealed(of_other))
    assert latest(store) == 4
    outside = second.model_dump_json().replace('"model.safetensors"', '"../../x"')
    store.put(second.key, outside.encode())
    assert latest(store) == 4


STRAYS = (
    *("trainers/rgb/latest/zzz", "trainers/rgb/latest/99999999999999999999999", "trainers/rgb/latest/\u00b2"),
    *("trainers/rgb/checkpoints/.DS_Store", "trainers/rgb/checkpoints/\u00b2/manifest.json"),
    *("trainers/rgb/checkpoints/0000000099/manifest.json", "trainers/rgb/checkpoints/0000000004-0000000001/x/y"),
    *("trainers/rgb/checkpoints/0000000099-0000000009/notes.txt", "trainers/rgb/checkpoints/9" + "9" * 30 + "-1/a"),
)


@pytest.mark.parametrize("stray", STRAYS)
def test_what_people_leave_beside_checkpoints_does_not_matter(store: DirectoryStore, stray: str) -> None:
    writer = begin(store)
    writer.save(manifest(4), DATA, 3)
    store.put(stray, b"x")
    writer.save(manifest(8), DATA, 3)
    assert latest(store) == 8
    begin(store).save(manifest(12), DATA, 3)
    assert latest(store) == 12
    assert checkpoint.steps(store, "rgb") == [4, 8, 12]
