"""A finished training goes on for more epochs: from its newest whole checkpoint that is no end."""

from __future__ import annotations

import pytest

from essp_common.artifacts import checkpoint, checkpoint_writer, layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.checkpoint_writer import CheckpointWriter
from essp_common.errors import Fenced
from essp_common.objects.directory import DirectoryStore
from tests.unit.essp_common.artifacts.small_checkpoints import DATA, begin, latest, manifest, objects, without_latest


def finish_two_epochs(store: DirectoryStore) -> CheckpointWriter:
    """By a process of the run with fence 1; it leaves three checkpoints, the final one ahead of those that follow."""
    writer = begin(store)
    writer.save(manifest(8, epochs=2, fence=1), DATA, 1)
    writer.save(manifest(18, best=8, epochs=2, fence=1), DATA, 1)
    writer.save(manifest(30, best=8, final=True, epochs=2, fence=1), DATA, 1)
    return writer


def test_a_later_run_with_more_epochs_goes_on_and_no_process_of_the_earlier_one_does(store: DirectoryStore) -> None:
    finished = finish_two_epochs(store)
    end = objects(store)
    laggard = begin(store)
    longer = checkpoint_writer.claim(store, "rgb", fence=2, epochs=4)
    assert longer.found.manifest is not None
    assert (longer.found.manifest.step, longer.found.manifest.final) == (18, False)
    assert latest(store) == 30, "until the longer training has saved something"
    for step in (25, 36, 48):
        longer.save(manifest(step, best=8, epochs=4, fence=2), DATA, 1)
        assert end.items() >= {k: v for k, v in objects(store).items() if "0000000030-" in k}.items() != set()
        for process in (finished, laggard):
            with pytest.raises(Fenced):
                process.save(manifest(step + 1, epochs=2, fence=1), DATA, 1)
        with pytest.raises(Fenced, match="later run"):
            begin(store)
        assert latest(store) == step
    longer.save(manifest(60, best=48, final=True, epochs=4, fence=2), DATA, 1)
    assert latest(store) == 60
    assert checkpoint.steps(store, "rgb") == [48, 60]
    assert begin(store, fence=3).incarnation == 0, "finished"


def test_beside_the_end_of_more_epochs_stays_the_last_one_from_which_they_go_on(store: DirectoryStore) -> None:
    """Not the end of fewer epochs, though that has a higher step."""
    finish_two_epochs(store)
    longer = checkpoint_writer.claim(store, "rgb", fence=2, epochs=4)
    longer.save(manifest(25, epochs=4, fence=2), DATA, 1)
    longer.save(manifest(60, final=True, epochs=4, fence=2), DATA, 1)
    assert checkpoint.steps(store, "rgb") == [25, 60]


@pytest.mark.parametrize(("fence", "epochs"), [(1, 4), (2, 2), (2, 1), (2, 0)])
def test_neither_the_same_run_nor_one_without_more_epochs_goes_on(
    store: DirectoryStore, fence: int, epochs: int
) -> None:
    finish_two_epochs(store)
    before = objects(store)
    writer = checkpoint_writer.claim(store, "rgb", fence=fence, epochs=epochs)
    with pytest.raises(Fenced, match="finished: its final checkpoint stays"):
        writer.save(manifest(31, epochs=epochs, fence=fence), DATA, 1)
    assert objects(store) == before


@pytest.mark.parametrize("lost", ["the pointer", "the newest", "data of the newest", "all but the final one"])
def test_more_epochs_begin_at_the_newest_whole_checkpoint_that_is_no_end(store: DirectoryStore, lost: str) -> None:
    finish_two_epochs(store)
    if lost == "the pointer":
        without_latest(store)
    if lost.startswith("data"):
        store.put(layout.checkpoint("rgb", 18, 1) + "model.safetensors", b"damaged")
    for info in list(store.list(layout.checkpoints("rgb"))):
        if (lost == "the newest" and "0000000018-" in info.key) or (lost.startswith("all") and "30-" not in info.key):
            store.put(info.key, b"damaged")
    if lost.startswith("all"):
        with pytest.raises(BadCheckpoint, match="ended after 2 epochs, and no whole checkpoint is left"):
            checkpoint_writer.claim(store, "rgb", fence=2, epochs=4)
        return
    found = checkpoint_writer.claim(store, "rgb", fence=2, epochs=4).found.manifest
    assert found is not None
    assert found.step == (18 if lost == "the pointer" else 8)
    assert checkpoint.read_latest(store, "rgb", epochs=4) == found


def test_a_damaged_checkpoint_of_more_epochs_leads_to_the_one_before(store: DirectoryStore) -> None:
    """The end of fewer epochs, from which nobody goes on, is none of those that are kept; and it is known which clips
    are lost."""
    finish_two_epochs(store)
    longer = checkpoint_writer.claim(store, "rgb", fence=2, epochs=4)
    for step in (25, 36):
        saved = longer.save(manifest(step, best=8, epochs=4, fence=2), DATA, 2)
    store.put(saved.prefix + "model.safetensors", b"damaged")
    found = checkpoint_writer.claim(store, "rgb", fence=2, epochs=4).found
    assert found.manifest is not None
    assert (found.manifest.step, found.lost_until) == (25, 36)
