"""What every object store must do. A test module subclasses `ObjectsContract` and gives it a store.

class TestMyStore(ObjectsContract):
    @pytest.fixture
    def store(self) -> ObjectStore: ...   # with nothing in it

A store that is only read passes `ReadingContract`, and `ListingContract` if it can be listed; its test module says how
objects get there (`place`).
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from essp_common.errors import Conflict, NotFound
from essp_common.objects.port import ObjectStore

MIB = 2**20
BAD_KEYS = ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/./b", "./a", "a/..", "a\0b", "a\nb"]

UNUSUAL_KEYS = [
    *("with space", "ümlaut/日本", "a+b&c=d%20e", "..a", "a..b", "#1", "v_[x]*", "a~b", "a\u00a0\u200bb"),
]


def patterned(size: int) -> bytes:
    """Bytes of which no two far apart are alike, so that a wrong range shows."""
    return np.arange((size + 7) // 8, dtype="<u8").tobytes()[:size]


Place = Callable[[str, bytes], object]
"""Puts an object into the store."""


class ReadingContract:
    """Behaviour that whoever reads relies on."""

    @pytest.fixture
    def place(self, store: ObjectStore) -> Place:
        return store.put

    @pytest.mark.parametrize("data", [b"", b"x", patterned(3 * MIB)], ids=["empty", "small", "large"])
    def test_object_can_be_read(self, store: ObjectStore, place: Place, data: bytes) -> None:
        place("videos/a.mp4", data)
        info = store.head("videos/a.mp4")
        assert (info.key, info.size_bytes) == ("videos/a.mp4", len(data))
        assert store.get("videos/a.mp4") == data
        assert store.head("videos/a.mp4") == info
        with store.open("videos/a.mp4") as file:
            assert file.read() == data

    def test_a_folder_is_a_store(self, store: ObjectStore, place: Place) -> None:
        place("a/b c/d.mp4", b"content")
        below = store.below("a").below("b c")
        assert below.get("d.mp4") == b"content"
        assert below.uri("d.mp4") == store.uri("a/b c/d.mp4")
        with pytest.raises(NotFound):
            below.head("a/b c/d.mp4")

    def test_etag_tells_another_content(self, store: ObjectStore, place: Place) -> None:
        place("a", b"one")
        first = store.head("a").etag
        place("a", b"two!")
        assert store.head("a").etag != first
        assert store.get("a") == b"two!"

    @pytest.mark.parametrize(
        ("start", "length", "expected"),
        [
            (0, 3, b"012"), (4, 2, b"45"), (7, None, b"789"), (8, 99, b"89"),
            (10, 5, b""), (99, 5, b""), (99, None, b""), (3, 0, b""),
        ],
    )  # fmt: skip
    def test_range(self, store: ObjectStore, place: Place, start: int, length: int | None, expected: bytes) -> None:
        place("digits", b"0123456789")
        assert store.get("digits", start, length) == expected

    def test_range_of_an_empty_object(self, store: ObjectStore, place: Place) -> None:
        place("empty", b"")
        assert store.get("empty", 0, 10) == b""

    def test_missing_object(self, store: ObjectStore, place: Place) -> None:
        place("a/b", b"x")
        for key in ("nothing", "a", "a/b/c", "a/nothing"):
            for read in (store.get, store.head, store.open, lambda key: store.get(key, 5, 0)):
                with pytest.raises(NotFound, match=key):
                    read(key)
            assert store.local_path(key) is None

    def test_open_file_seeks(self, store: ObjectStore, place: Place) -> None:
        data = patterned(3 * MIB + 17)
        place("v", data)
        with store.open("v") as file:
            assert file.seekable()
            assert file.read(10) == data[:10]
            assert file.seek(-20, io.SEEK_END) == len(data) - 20
            assert file.read() == data[-20:]
            assert file.read(5) == b""
            file.seek(MIB - 3)
            assert file.read(MIB + 7) == data[MIB - 3 : 2 * MIB + 4]
            assert file.tell() == 2 * MIB + 4
            file.seek(len(data) + 100)
            assert file.read(5) == b""

    def test_local_path_holds_the_object(self, store: ObjectStore, place: Place) -> None:
        place("a/b", b"content")
        path = store.local_path("a/b")
        assert path is None or (os.path.isabs(path) and Path(path).read_bytes() == b"content")

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_key_that_is_read_cannot_leave_the_store(self, store: ObjectStore, key: str) -> None:
        for operation in (store.get, store.head, store.open, store.local_path, store.uri):
            with pytest.raises(NotFound, match="cannot be the key"):
                operation(key)

    @pytest.mark.parametrize("key", UNUSUAL_KEYS)
    def test_unusual_keys_are_read(self, store: ObjectStore, place: Place, key: str) -> None:
        place(key, b"x")
        assert store.get(key) == b"x"

    def test_uri_ends_with_the_key(self, store: ObjectStore) -> None:
        assert store.uri("a/b c.mp4").endswith("/a/b c.mp4")
        assert store.uri("a").partition("://")[0] in ("file", "s3", "fsspec+memory", "http", "hf")


class ListingContract(ReadingContract):
    """Behaviour that whoever looks for objects relies on."""

    def test_list_by_prefix_in_key_order(self, store: ObjectStore, place: Place) -> None:
        keys = ["a.b", "a/b", "a/b.c", "a/b/c", "a0", "ab/ü", "b/a", "trainers/rgb/1", "trainers/rgb2/1"]
        keys.remove("a/b")  # a file system has either "a/b" or "a/b/c"
        for key in reversed(keys):
            place(key, key.encode())
        found = list(store.list())
        assert [info.key for info in found] == sorted(keys, key=str.encode)
        assert [info.size_bytes for info in found] == [len(key.encode()) for key in sorted(keys, key=str.encode)]
        assert found[0] == store.head(found[0].key)
        for prefix in ("a", "a/", "a/b", "a/b/", "trainers/rgb", "trainers/rgb/", "b/a", "x", "a/x/", "../", "/"):
            assert [i.key for i in store.list(prefix)] == [
                k for k in sorted(keys, key=str.encode) if k.startswith(prefix)
            ]

    def test_list_of_an_empty_store(self, store: ObjectStore, place: Place) -> None:
        assert list(store.list()) == []

    @pytest.mark.parametrize("key", UNUSUAL_KEYS)
    def test_unusual_keys(self, store: ObjectStore, place: Place, key: str) -> None:
        place(key, b"x")
        assert [info.key for info in store.list(key[:3])] == [key]


class ObjectsContract(ListingContract):
    """Behaviour that services rely on."""

    @pytest.mark.parametrize("data", [b"", b"x", patterned(3 * MIB)], ids=["empty", "small", "large"])
    def test_object_comes_back(self, store: ObjectStore, data: bytes) -> None:
        info = store.put("videos/a.mp4", data)
        assert store.get("videos/a.mp4") == data
        assert store.head("videos/a.mp4") == info
        assert (info.key, info.size_bytes) == ("videos/a.mp4", len(data))
        with store.open("videos/a.mp4") as file:
            assert file.read() == data

    def test_object_larger_than_a_part(self, store: ObjectStore) -> None:
        data = patterned(17 * MIB)
        assert store.put("large", data).size_bytes == len(data)
        assert store.get("large", 16 * MIB - 5, 10) == data[16 * MIB - 5 : 16 * MIB + 5]
        assert store.get("large") == data

    def test_etag_changes_with_the_content(self, store: ObjectStore) -> None:
        first = store.put("a", b"one")
        assert store.head("a").etag == first.etag
        assert store.put("a", b"two!").etag != first.etag
        assert store.get("a") == b"two!"

    def test_put_if_absent(self, store: ObjectStore) -> None:
        store.put("lock", b"first", if_absent=True)
        with pytest.raises(Conflict):
            store.put("lock", b"second", if_absent=True)
        assert store.get("lock") == b"first"
        store.delete("lock")
        store.put("lock", b"third", if_absent=True)
        assert store.get("lock") == b"third"

    def test_one_of_many_writers_is_first(self, store: ObjectStore) -> None:
        def write(number: int) -> int:
            try:
                store.put("lock", b"%d" % number, if_absent=True)
            except Conflict:
                return 0
            return number

        with ThreadPoolExecutor(8) as pool:
            won = [number for number in pool.map(write, range(1, 25)) if number]
        assert len(won) == 1
        assert store.get("lock") == b"%d" % won[0]

    def test_put_file(self, store: ObjectStore, tmp_path: Path) -> None:
        data = patterned(17 * MIB)
        (tmp_path / "source").write_bytes(data)
        info = store.put_file("weights", str(tmp_path / "source"))
        assert (info.key, info.size_bytes) == ("weights", len(data))
        assert store.head("weights") == info
        assert store.get("weights") == data
        with pytest.raises(NotFound, match="absent"):
            store.put_file("weights", str(tmp_path / "absent"))
        assert store.get("weights", 0, 8) == data[:8]

    def test_delete(self, store: ObjectStore) -> None:
        store.put("a/b", b"x")
        store.delete("a/b")
        store.delete("a/b")
        store.delete("never/was")
        with pytest.raises(NotFound):
            store.head("a/b")
        assert list(store.list()) == []

    @pytest.mark.parametrize("key", BAD_KEYS)
    def test_key_cannot_leave_the_store(self, store: ObjectStore, key: str, tmp_path: Path) -> None:
        source = tmp_path / "source"
        source.write_bytes(b"x")
        for operation in (
            lambda: store.get(key),
            lambda: store.put(key, b"x"),
            lambda: store.put_file(key, str(source)),
            lambda: store.head(key),
            lambda: store.delete(key),
            lambda: store.open(key),
            lambda: store.local_path(key),
            lambda: store.uri(key),
        ):
            with pytest.raises(NotFound, match="cannot be the key"):
                operation()
