"""A source is copied into other stores, slowed down, evicted, read raw, and nothing stays behind."""

from __future__ import annotations

import errno
import os
import shutil
import tarfile
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.bench.bound import REQUEST_BYTES, bound, merged, raw_requests
from essp.bench.page_cache import evict
from essp.bench.pipeline import Plan
from essp.bench.places import Extent, Place
from essp.bench.sources import Shape, Source, open_source
from essp.bench.storages import storages
from essp_common.errors import StorageFull, Unavailable
from essp_common.objects.archive import member_key
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.throttled import Throttle
from essp_common.wiring import Stores

STORES = Stores(("file:///",))
FAST = Throttle(1e15)
NAMES = ("images", "images.csv", "catalog.parquet", "records")


def opened(root: Path, name: str) -> Source:
    return open_source(f"file://{root}/{name}", STORES, Shape(16, frames=2))


def left(folder: Path) -> list[Path]:
    """Files, and folders but for those that were named."""
    return [path for path in folder.rglob("*") if path.is_file() or path.name not in ("a", "b")]


@pytest.mark.parametrize("name", NAMES)
def test_a_copy_is_read_in_the_other_store_and_removed(root: Path, tmp_path: Path, name: str) -> None:
    source = opened(root, name)
    uris = [f"file://{tmp_path}/a", f"file://{tmp_path}/b"]
    with storages(source, STORES, uris, [("fast", FAST), ("slow", Throttle(1e14))]) as found:
        assert [one.name for one in found] == [f"{uri} at {name}" for uri in uris for name in ("fast", "slow")]
        for one in found:
            assert not one.network
            assert len(one.files) == len(source.objects())
            assert all(Path(path).is_relative_to(tmp_path / one.name[-len("a at slow") :][0]) for path in one.files)
            for mine, its in zip(one.source.tasks(np.arange(3), 0), source.tasks(np.arange(3), 0), strict=True):
                assert mine.read().bytes == its.read().bytes
    assert left(tmp_path) == []


def test_a_source_in_place_is_not_copied(root: Path) -> None:
    source = opened(root, "images")
    with storages(source, STORES, [], []) as found:
        assert [(one.name, one.source, one.throttle) for one in found] == [("source", source, None)]
    with storages(source, STORES, [], [("fast", FAST)]) as found:
        assert [(one.name, one.throttle) for one in found] == [("fast", FAST)]


@pytest.mark.parametrize("error", [Unavailable("full"), KeyboardInterrupt()])
def test_nothing_stays_behind_when_copying_ends_early(root: Path, tmp_path: Path, error: BaseException) -> None:
    def copied(done: int, total: int) -> None:
        if done == 5:
            assert left(tmp_path)
            raise error

    with pytest.raises(type(error)), storages(opened(root, "images"), STORES, [f"file://{tmp_path}"], [], copied):
        pass
    assert left(tmp_path) == []


@pytest.mark.parametrize("name", ["images", "records"])
def test_nothing_stays_behind_of_a_copy_that_the_store_has_no_room_for(
    root: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Mock(side_effect=OSError(errno.ENOSPC, "No space left on device"))
    with monkeypatch.context() as patched:
        patched.setattr(shutil, "copyfileobj", full)
        with pytest.raises(StorageFull), storages(opened(root, name), STORES, [f"file://{tmp_path}"], []):
            pass
    assert full.called
    assert left(tmp_path) == []


def test_of_members_their_archive_is_evicted(root: Path, tmp_path: Path) -> None:
    lines = ["path"]
    with tarfile.open(tmp_path / "shard.tar", "w:") as shard:
        for number in range(3):
            shard.add(root / "images" / "one" / f"{number}.jpg", f"{number}.jpg")
        lines += [member_key("shard.tar", m.offset_data, m.size, m.name) for m in shard.getmembers()]
    (tmp_path / "list.csv").write_text("\n".join(lines))
    with storages(opened(tmp_path, "list.csv"), STORES, [], []) as (storage,):
        assert len(storage.source) == 3
        assert storage.files == (f"{tmp_path}/shard.tar",)


def test_evicted_files_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(os.urandom(2**16))
    still = evict([str(path), str(tmp_path / "absent")])
    assert still in (0, 1)  # 1 where the folder is in memory
    assert len(path.read_bytes()) == 2**16


spans = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 3 * REQUEST_BYTES), st.integers(1, REQUEST_BYTES)), max_size=8
)


@given(spans)
def test_raw_requests_are_the_same_bytes_once_each(wanted: list[tuple[int, int, int]]) -> None:
    store = DirectoryStore("/")
    extents = [Extent(Place(store, f"{key}"), start, length) for key, start, length in wanted]
    requests = list(merged(extents))
    step = 2**12
    covered = {(key, byte // step) for key, start, length in wanted for byte in range(start, start + length, step)}
    at: dict[str, int] = {}
    got = set()
    for request in requests:
        assert request.length is not None
        assert 0 < request.length <= REQUEST_BYTES
        key = request.place.key
        assert request.start >= at.get(key, 0)
        at[key] = request.start + request.length
        got |= {(int(key), byte // step) for byte in range(request.start, request.start + request.length, step)}
        got.add((int(key), (request.start + request.length - 1) // step))
    assert covered <= got
    assert sum(request.length or 0 for request in requests) <= sum(length for _, _, length in wanted)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("throttled", [False, True])
def test_the_bound_reads_the_bytes_of_the_pipeline(root: Path, name: str, throttled: bool) -> None:
    source = opened(root, name)
    plan = Plan("read", batch=2, batches=len(source) // 2, threads=3)
    with storages(source, STORES, [], [("fast", FAST)] if throttled else []) as (storage,):
        took = bound(storage.source, plan, lambda: False)
    tasks = source.tasks(np.arange(len(source)), 0)
    assert took.samples == len(source)
    if name == "catalog.parquet":  # where clips begin is random
        assert 0 < took.bytes <= sum(Path(path).stat().st_size for path in storage.files)
    else:
        assert took.bytes == sum(task.read().bytes for task in tasks)
    assert took.whole


def test_the_bound_leaves_out_what_is_gone(tmp_path: Path) -> None:
    (tmp_path / "here.jpg").write_bytes(b"12345")
    (tmp_path / "list.csv").write_text("path\nnowhere.jpg\nhere.jpg\n")
    source = opened(tmp_path, "list.csv")
    assert bound(source, Plan("read", 2, 1), lambda: False).bytes == 5
    stopped = bound(source, Plan("read", 2, 1), lambda: True)
    assert (stopped.bytes, stopped.whole) == (0, False)


def test_several_epochs_are_read_raw_several_times(root: Path) -> None:
    source = opened(root, "images")
    assert len(list(raw_requests(source, Plan("read", batch=10, batches=3)))) == 30
