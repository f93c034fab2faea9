"""What lies in the folders of checkpoints, each for itself."""

from __future__ import annotations

from pathlib import Path

from essp.checkpoints.listing import faults, listed
from essp_common.artifacts import checkpoint_writer
from essp_common.objects.directory import DirectoryStore
from tests.unit.essp_common.artifacts.small_checkpoints import DATA, manifest


def test_of_two_checkpoints_of_one_step_each_is_read_by_itself(tmp_path: Path) -> None:
    """A process that died before the first was the latest leaves it beside that of its successor."""
    store = DirectoryStore(str(tmp_path))
    first, second = (
        checkpoint_writer.write(store, manifest(8).model_copy(update={"incarnation": incarnation}), DATA)
        for incarnation in (1, 2)
    )
    for damaged in (first, second):
        key = damaged.prefix + damaged.files[0].name
        whole = store.get(key)
        store.put(key, bytes(len(whole)))
        found = {each.incarnation: faults(store, each) for each in listed(store)}
        assert [number for number, fault in found.items() if fault] == [damaged.incarnation]
        store.put(key, whole)
