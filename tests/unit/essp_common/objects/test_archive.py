"""Members of archives: read at their place, never beyond it, never written."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from essp_common.errors import NotFound
from essp_common.objects.archive import Archive, is_member, member_key
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Stores
from tests.harness.refused import refused


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """Name -> key of the members of `shards/a.tar`."""
    (tmp_path / "shards").mkdir()
    path = tmp_path / "shards" / "a.tar"
    with tarfile.open(path, "w") as archive:
        for name in ("one.mp4", "b/two.mp4"):
            info = tarfile.TarInfo(name)
            info.size = len(name)
            archive.addfile(info, io.BytesIO(name.encode()))
    with tarfile.open(path) as archive:
        return {m.name: member_key("shards/a.tar", m.offset_data, m.size, m.name) for m in archive}


def test_members_are_read_at_their_place(tmp_path: Path, places: dict[str, str]) -> None:
    store = Archive(DirectoryStore(str(tmp_path)))
    for name, key in places.items():
        assert is_member(key)
        assert store.get(key) == name.encode()
        assert store.get(key, 2, 3) == name.encode()[2:5]
        assert store.get(key, 90) == b""
        assert store.head(key).size_bytes == len(name)
        with store.open(key) as file:
            assert (file.read(3), file.tell(), file.seek(-2, io.SEEK_END)) == (name.encode()[:3], 3, len(name) - 2)
            assert file.read() == name.encode()[-2:]
            file.seek(100)
            assert file.read() == b""


def test_the_stores_of_a_process_lead_to_members(tmp_path: Path, places: dict[str, str]) -> None:
    stores = Stores([f"file://{tmp_path}"])
    store, key = stores.resolve(f"file://{tmp_path}/{places['b/two.mp4']}", video=True)
    assert store.get(key) == b"b/two.mp4"
    assert store.uri(key) == f"file://{tmp_path}/{places['b/two.mp4']}"
    assert store.local_path(key) is None
    below = Archive(DirectoryStore(str(tmp_path))).below("shards")
    assert below.get(places["one.mp4"].removeprefix("shards/")) == b"one.mp4"


def test_an_archive_that_changed_is_told(tmp_path: Path, places: dict[str, str]) -> None:
    store = Archive(DirectoryStore(str(tmp_path)))
    before = store.head(places["one.mp4"]).etag
    assert before != store.head(places["b/two.mp4"]).etag
    (tmp_path / "shards" / "a.tar").write_bytes(b"short")
    with pytest.raises(NotFound, match="the archive ends before; build the catalog again"):
        store.head(places["one.mp4"])
    with pytest.raises(NotFound, match="not a member of an archive"):
        store.get("shards/a.tar")


def test_nothing_is_written_in_archives(tmp_path: Path, places: dict[str, str]) -> None:
    store = Archive(DirectoryStore(str(tmp_path)))
    key = places["one.mp4"]
    writes: list[Callable[[], object]] = [
        lambda: store.put(key, b"x"),
        lambda: store.put_file(key, "x"),
        lambda: store.delete(key),
    ]
    for write in writes:
        with refused("", "unsupported"):
            write()
    assert store.unwritable()
    assert list(store.list()) == []
