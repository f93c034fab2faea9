"""Records, files and stores that fail under `essp.Records`: what can be read comes as it would have come."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import essp
from essp.records.images import jpeg
from essp_common.errors import PermanentError
from essp_common.objects.directory import DirectoryStore
from essp_common.records.chunk import Record
from essp_common.records.reader import RecordReader
from essp_common.records.versions import DataSet
from tests.unit.essp.api.numbered_records import MEMORIES, RECORDS, SIDE, build, damage, image, taken


@pytest.mark.parametrize("memory", MEMORIES)
def test_damaged_records_are_left_out_named_and_counted(
    tmp_path: Path, memory: Any, caplog: pytest.LogCaptureFixture
) -> None:
    path = build(tmp_path, [Record.of_image(image(i), i % 2) for i in range(RECORDS)])
    damage(path, [3, 40])
    with essp.Records(path, batch_size=8, memory=memory) as loader:
        for _ in range(2):
            assert sorted(taken(loader)) == [i for i in range(RECORDS) if i not in (3, 40)]
        assert sorted(name.partition(" in ")[0] for name in loader.damaged) == ["record 3", "record 40"]
    assert len([one for one in caplog.messages if "left out" in one]) == 2
    shares = [taken(essp.Records(path, batch_size=8, rank=rank, world_size=2, memory=memory)) for rank in range(2)]
    assert [len(share) for share in shares] == [25, 25], "ranks take as many steps each"
    assert set(shares[0] + shares[1]) <= set(range(RECORDS)) - {3, 40}


def test_a_line_of_pixels_is_left_out_and_takes_no_gigabytes(tmp_path: Path) -> None:
    """To be covered, a square was cut from an image of 7.5 GB."""
    line = np.zeros((1, 50_000, 3), np.uint8)
    path = build(tmp_path, [Record.of_image(image(0), 0), Record(jpeg(line, 95), 1)])
    with essp.Records(path, size=224, batch_size=2) as loader:
        assert [batch.meta["record"] for batch in loader] == [[0]]
        [why] = loader.damaged.values()
    assert why == "it is too narrow: to cover 224x224, it would be scaled to 224x11200000"


@pytest.mark.parametrize("memory", MEMORIES)
def test_without_one_of_its_files_a_set_comes_in_the_same_order(tmp_path: Path, memory: Any) -> None:
    """It had another order then, which a state of the whole set was taken for, and ranks had different ones."""
    path = build(tmp_path, [Record.of_image(image(i), i % 2) for i in range(RECORDS)])
    options: dict[str, Any] = {"batch_size": 4, "memory": memory}
    with essp.Records(path, **options) as loader:
        epochs = [taken(loader) for _ in range(2)]
        loader.set_epoch(1)
        next(iter(loader))
        state = loader.state_dict()
    with essp.Records(path, rank=0, world_size=2, **options) as loader:
        share = taken(loader)
    file = DataSet(DirectoryStore.from_url(path.as_uri())).version()[1].files[1]
    (path / file.key).unlink()
    gone = range(file.first_key, file.first_key + file.records)
    with essp.Records(path, **options) as loader:
        assert list(loader.damaged) == [file.key]
        assert [taken(loader) for _ in range(2)] == [[one for one in epoch if one not in gone] for epoch in epochs]
        loader.load_state_dict(state)
        assert taken(loader) == [one for one in epochs[1][4:] if one not in gone]
    with essp.Records(path, rank=0, world_size=2, **options) as loader:
        pairs = list(zip(taken(loader), share, strict=True))
    assert all(shown == written for shown, written in pairs if written not in gone)
    assert not {shown for shown, _ in pairs} & set(gone)


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", ["raw", "files"])
def test_ranks_take_as_many_steps_where_nothing_of_a_batch_can_be_read(tmp_path: Path, kind: str, memory: Any) -> None:
    """They ended, or had fewer batches."""
    shares: list[list[int]] = []
    options: dict[str, Any] = {"batch_size": 2, "size": SIDE, "memory": memory, "world_size": 2}
    for bad in (range(0), [0, 1, 2, 7, 8, 9, 10, 11, 22, 23, 24]):
        broken = {shares[0][place] for place in bad}
        path = tmp_path / str(len(shares))
        if kind == "raw":
            build(path, [Record.of_image(image(i), i % 2) for i in range(RECORDS)])
            damage(path, sorted(broken))
        else:
            build(path, [Record(b"no image" if i in broken else jpeg(image(i, 8), 95), i % 2) for i in range(RECORDS)])
        with essp.Records(path, rank=0, **options) as loader:
            batches = list(loader)
            assert len(batches) == len(loader) == 13
            state = loader.state_dict() | {"epoch": 0, "clip": 2 * 22}
            shares.append(taken(iter(batches)))
    assert set(shares[1]) == set(shares[0]) - broken
    with essp.Records(path, rank=0, **options) as loader:
        loader.load_state_dict(state)
        with pytest.raises(PermanentError, match="rank 0 can decode nothing of epoch 0 from clip 44 on"):
            list(loader)


@pytest.mark.parametrize("drop_last", [False, True])
def test_an_image_that_cannot_be_decoded_is_left_out(tmp_path: Path, drop_last: bool) -> None:
    """And the others of its batch are not."""
    records = [Record(jpeg(image(i, 8), 95) if i != 5 else b"no image", i % 2) for i in range(12)]
    path = build(tmp_path, records)
    with essp.Records(path, batch_size=4, size=SIDE, drop_last=drop_last) as loader:
        assert sorted(taken(loader)) == [i for i in range(12) if i != 5]
        assert list(loader.damaged.values()) == ["it is not an image, or a damaged one"]


def test_nothing_but_damage_is_an_error(tmp_path: Path) -> None:
    path = build(tmp_path, [Record(b"no image", 0) for _ in range(4)])
    with essp.Records(path, size=SIDE) as loader, pytest.raises(PermanentError, match="no record of"):
        list(loader)


def test_an_error_of_the_store_is_one_of_the_loop(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with essp.Records(raw) as loader:

        def fails(*_: object) -> None:
            raise OSError("the disk is gone")

        monkeypatch.setattr(RecordReader, "read_into", fails)
        with pytest.raises(OSError, match="the disk is gone"):
            list(loader)
