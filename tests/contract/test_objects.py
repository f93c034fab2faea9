"""Every object store passes the one suite, and what only one of them has."""

from __future__ import annotations

import errno
import os
import socket
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import unquote

import fsspec
import pytest
from fsspec.asyn import get_loop

from essp.bench.accesses import Accesses, NotedStore
from essp.bench.trace import s3_requests
from essp_common.errors import ConfigError, Conflict, EsspError, NotFound, StorageFull, Unavailable
from essp_common.objects import s3
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.patient import Patience, PatientStore
from essp_common.objects.port import ObjectStore
from essp_common.objects.s3 import S3Store
from essp_common.objects.throttled import Device, Throttle, ThrottledStore
from essp_common.wiring import Stores, open_store
from essp_decoder.config import DecoderSettings
from tests.contract.objects_suite import MIB, ListingContract, ObjectsContract, Place, ReadingContract, patterned
from tests.contract.web_server import http_server
from tests.harness.fork import beside_a_fork
from tests.harness.hub import hub
from tests.harness.refused import refused


class TestDirectoryStore(ObjectsContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_store(f"file://{tmp_path}/store")


class TestNotedStore(ObjectsContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return NotedStore(DirectoryStore(str(tmp_path / "store")), Accesses())


class TestThrottledStore(ObjectsContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return ThrottledStore(DirectoryStore(str(tmp_path / "store")), Device(Throttle(1e12)))


class TestPatientStore(ObjectsContract):
    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return PatientStore(DirectoryStore(str(tmp_path / "store")), Patience(60.0))


@pytest.mark.integration
class TestS3Store(ObjectsContract):
    @pytest.fixture
    def store(self, empty_s3_url: str) -> ObjectStore:
        return open_store(empty_s3_url)


@pytest.mark.integration
def test_requests_to_s3_are_counted(empty_s3_url: str) -> None:
    before = s3_requests()
    store = open_store(empty_s3_url)
    store.put("a", b"1")
    store.get("a")
    assert s3_requests() == before + 2
    with pytest.raises(NotFound):
        store.get("b")
    assert s3_requests() == before + 3


@pytest.mark.processes
def test_a_fork_reads_from_s3_over_connections_of_its_own(empty_s3_url: str) -> None:
    """Over one socket, parent and child would take each other's answers."""
    store = open_store(empty_s3_url)
    assert isinstance(store, S3Store)
    for number in range(8):
        store.put(str(number), b"%d" % number * 100_000)

    def right() -> bool:
        return all(store.get(str(number)) == b"%d" % number * 100_000 for number in list(range(8)) * 3)

    parents = store._client._made
    with beside_a_fork(lambda: right() and store._client._made is not parents):
        assert right()


def test_directory_write_leaves_nothing_else_behind(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    store.put("a", b"1")
    store.put("a", b"2")
    with pytest.raises(Conflict):
        store.put("a", b"3", if_absent=True)
    with pytest.raises(NotFound):
        store.put_file("a", str(tmp_path / "absent"))
    assert os.listdir(tmp_path) == ["a"]


def test_directory_does_not_list_what_a_crash_left(tmp_path: Path) -> None:
    (tmp_path / temporary(0)).write_bytes(b"half")
    assert list(DirectoryStore(str(tmp_path)).list()) == []


def temporary(number: int) -> str:
    """The name of a file that is being written."""
    return f".essp-{number:032x}.tmp"


def test_directory_removes_what_a_crash_left_once_nobody_can_be_writing_it(tmp_path: Path) -> None:
    mine = (".essp-notes.tmp", ".essp-" + "0" * 31 + ".tmp", ".essp-" + "G" * 32 + ".tmp")
    for name, age_s in ((temporary(1), 4000), (temporary(2), 10), *((name, 4000) for name in mine)):
        left_by_a_crash(tmp_path / name, age_s)
    DirectoryStore(str(tmp_path)).put("a", b"x")
    assert set(os.listdir(tmp_path)) == {temporary(2), "a", *mine}, "what only looks like one is somebody's"


def left_by_a_crash(path: Path, age_s: float) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"half")
    os.utime(path, (time.time() - age_s,) * 2)
    return path


def test_directory_removes_what_a_crash_left_in_a_folder_to_which_nobody_writes_again(tmp_path: Path) -> None:
    output = DirectoryStore(str(tmp_path)).below("output")
    output.put("1/kept", b"x")
    beside = [left_by_a_crash(tmp_path / "output" / name, 4000) for name in (f"1/{temporary(0)}", f"2/{temporary(0)}")]
    written = left_by_a_crash(tmp_path / "output/3" / temporary(0), 10)
    others = left_by_a_crash(tmp_path / "elsewhere" / temporary(0), 4000)
    (tmp_path / "output/link").symlink_to(tmp_path / "elsewhere")
    DirectoryStore(str(tmp_path)).below("output").put("4/a", b"x")  # another process
    assert not any(path.exists() for path in beside)
    assert written.exists()
    assert others.exists(), "behind a link"
    assert sorted(os.listdir(tmp_path / "output")) == ["1", "3", "4", "link"], "an empty folder goes"


def test_a_clock_that_differs_from_that_of_the_files_ends_no_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files may be on another machine."""
    clock = SimpleNamespace(time=lambda: time.time() + 7200, monotonic=time.monotonic)
    monkeypatch.setattr("essp_common.objects.directory.time", clock)
    written = left_by_a_crash(tmp_path / "1" / temporary(0), 0)
    DirectoryStore(str(tmp_path)).put("1/a", b"x")
    assert written.exists()


def test_directory_looks_again_for_what_was_too_young(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes the place of one that was killed begins within the hour, and writes for days."""
    now_s = [time.monotonic()]
    monkeypatch.setattr("essp_common.objects.directory.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    output = DirectoryStore(str(tmp_path)).below("output")
    left = [left_by_a_crash(tmp_path / "output" / name, 10) for name in (temporary(0), f"1/{temporary(0)}")]
    for number in (2, 3):
        output.put(str(number), b"x")
        output.put(f"of-{number}/a", b"x")
        assert [path.exists() for path in left] == [number == 2] * 2
        now_s[0] += 4000
        for path in left if number == 2 else ():
            left_by_a_crash(path, 4000)


def test_directory_knows_its_own_link_when_it_is_told_that_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS sends a request again whose answer was lost, and is told the second time that there is one already."""
    link = os.link

    def twice(source: str, target: str) -> None:
        link(source, target)
        link(source, target)

    monkeypatch.setattr(os, "link", twice)
    store = DirectoryStore(str(tmp_path))
    assert store.put("a", b"x", if_absent=True) == store.head("a")
    with pytest.raises(Conflict):
        store.put("a", b"x", if_absent=True)


def test_directory_reads_through_links_but_writes_only_inside(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "v.mp4").write_bytes(b"video")
    store = DirectoryStore(str(tmp_path / "store"))
    store.put("kept", b"x")
    (tmp_path / "store" / "link").symlink_to(outside)
    (tmp_path / "store" / "file").symlink_to(outside / "v.mp4")
    assert store.get("link/v.mp4") == store.get("file") == b"video"
    assert [info.key for info in store.list()] == ["file", "kept", "link/v.mp4"]
    for write in (lambda: store.put("link/new", b"x"), lambda: store.delete("link/v.mp4")):
        with pytest.raises(NotFound, match="symbolic link"):
            write()
    store.put("file", b"replaces the link")
    assert (outside / "v.mp4").read_bytes() == b"video"
    assert os.listdir(outside) == ["v.mp4"]


def test_directory_lists_circles_broken_links_and_pipes_safely(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    store.put("a/v", b"x")
    (tmp_path / "a" / "circle").symlink_to(tmp_path)
    (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe")
    assert [info.key for info in store.list()] == ["a/v"]
    with pytest.raises(NotFound, match="not a file"):
        store.open("pipe")


def test_directory_leaves_out_names_that_no_message_can_carry(tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9.avi")).write_bytes(b"x")
    (tmp_path / "new\nline").write_bytes(b"x")
    assert list(DirectoryStore(str(tmp_path)).list()) == []


def test_directory_object_and_folder_of_one_name(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    store.put("a/b", b"x")
    with pytest.raises(Conflict, match="is a folder"):
        store.put("a", b"x")
    with pytest.raises(Conflict, match="part of its path is an object"):
        store.put("a/b/c", b"x")
    assert [info.key for info in store.list()] == ["a/b"]


def test_directory_etag_sees_a_change_of_the_same_size(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))
    before = store.put("a", b"one")
    os.utime(tmp_path / "a", ns=(0, 1))
    assert store.head("a").etag != before.etag


def test_directory_is_its_own_local_path(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("a/b", b"x")
    assert store.local_path("a/b") == f"{tmp_path}/a/b"
    assert store.uri("a/b") == f"file://{tmp_path}/a/b"


@pytest.mark.parametrize("url", ["file://relative", "file:relative", "file://"])
def test_directory_url_is_checked(url: str) -> None:
    with pytest.raises(ConfigError, match="absolute path"):
        DirectoryStore.from_url(url)


def test_whole_file_system_is_a_store(tmp_path: Path) -> None:
    (tmp_path / "v.mp4").write_bytes(b"video")
    store, key = Stores(["file:///"]).resolve(f"file://{tmp_path}/v.mp4")
    assert store.get(key) == b"video"
    assert store.uri(key) == f"file://{tmp_path}/v.mp4"


@pytest.mark.parametrize("url", ["s3://", "s3:///prefix", "s3://bucket?endpont=http://host"])
def test_s3_url_is_checked(url: str) -> None:
    with pytest.raises(ConfigError, match="store URL"):
        S3Store.from_url(url)


@pytest.mark.integration
def test_s3_uri_leads_back_to_the_object(empty_s3_url: str) -> None:
    store = open_store(empty_s3_url)
    store.put("a/b", b"x")
    found, key = Stores([empty_s3_url]).resolve(store.uri("a/b"))
    assert found.get(key) == b"x"
    below = Stores([empty_s3_url]).under(store.uri("a"))
    assert [info.key for info in below.list()] == ["b"]


@pytest.mark.integration
def test_s3_folder_markers_are_no_objects(empty_s3_url: str) -> None:
    store = S3Store.from_url(empty_s3_url)
    store.put("a/b", b"x")
    store._client.put_object(Bucket=store._bucket, Key=store._prefix + "a/", Body=b"")
    assert [info.key for info in store.list()] == ["a/b"]


@pytest.mark.integration
def test_s3_list_goes_on_after_a_page(empty_s3_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_PAGE_KEYS", 3)
    store = open_store(empty_s3_url)
    keys = [f"many/{number}" for number in range(8)]
    for key in keys:
        store.put(key, b"")
    assert [info.key for info in store.list("many/")] == keys


@pytest.mark.integration
def test_s3_object_that_changes_while_it_is_read(empty_s3_url: str) -> None:
    store = open_store(empty_s3_url)
    data = patterned(4 * MIB)
    store.put("v", data)
    with store.open("v") as file:
        assert file.read(8) == data[:8]
        store.put("v", data[::-1])
        file.seek(3 * MIB)
        with pytest.raises(Conflict, match="changed"):
            file.read(8)


@pytest.mark.integration
def test_s3_bucket_that_is_not_there(s3_url: str) -> None:
    query = s3_url.partition("?")[2]
    store = S3Store.from_url(f"s3://no-such-bucket/x?{query}")
    for operation in (lambda: store.get("a"), lambda: store.put("a", b"x"), lambda: list(store.list())):
        with pytest.raises(ConfigError, match="aws s3 mb s3://no-such-bucket"):
            operation()


@pytest.mark.integration
def test_s3_gives_up_before_a_decoder_holds_the_video_to_hang() -> None:
    longest_s = s3._ATTEMPTS * (s3._CONNECT_S + s3._READ_S)
    assert longest_s < DecoderSettings().decoder_timeout_s


def test_s3_without_credentials(s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    store = S3Store.from_url(s3_url)
    with pytest.raises(ConfigError, match="AWS_ACCESS_KEY_ID"):
        store.get("a")


def test_s3_server_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    source = tmp_path / "source"
    source.write_bytes(b"x")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        store = S3Store.from_url(f"s3://bucket?endpoint=http://127.0.0.1:{unused.getsockname()[1]}")
        for operation in (lambda: store.get("a"), lambda: store.put_file("a", str(source)), lambda: list(store.list())):
            with pytest.raises(Unavailable, match="s3://bucket/"):
                operation()


def test_a_directory_says_what_speaks_against_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert DirectoryStore(str(tmp_path / "new" / "deeper")).unwritable() == ""
    assert os.listdir(tmp_path) == []
    (tmp_path / "file").write_bytes(b"x")
    assert DirectoryStore(str(tmp_path / "file")).unwritable() == f"{tmp_path}/file is a file; give a folder"
    assert "is a file" in DirectoryStore(str(tmp_path / "file" / "below")).unwritable()
    for views in ("/proc", "/sys"):  # to root they seem to be writable
        assert f"{views} belongs to the kernel" in DirectoryStore(f"{views}/run/deeper").unwritable()
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert DirectoryStore(str(tmp_path / "new")).unwritable().startswith(f"{tmp_path} cannot be written to")


def test_folders_that_a_delete_empties_go_and_the_root_stays(tmp_path: Path) -> None:
    """Else pruned checkpoints would leave a folder each."""
    store = DirectoryStore(str(tmp_path / "root"))
    for key in ("a/b/c/one", "a/b/c/two", "a/other", "top"):
        store.put(key, b"x")
    store.delete("a/b/c/one")
    assert (tmp_path / "root/a/b/c").is_dir()
    store.delete("a/b/c/two")
    assert sorted(path.name for path in (tmp_path / "root/a").iterdir()) == ["other"]
    store.delete("a/other")
    store.delete("top")
    assert list((tmp_path / "root").iterdir()) == []


def test_a_folder_of_other_people_stays_although_it_is_empty(tmp_path: Path) -> None:
    """Somebody may be in it: `mkdir new; cd new; essp catalog build ~/videos --out catalog.parquet`."""
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    store = DirectoryStore("/")
    for name in ("one", "new/two"):
        store.put(f"{theirs}/{name}".lstrip("/"), b"x")
        store.delete(f"{theirs}/{name}".lstrip("/"))
        assert list(theirs.iterdir()) == []
    (theirs / "output" / "empty").mkdir(parents=True)
    (theirs / "output" / "empty" / "old").write_bytes(b"x")
    store.below(f"{theirs}/output".lstrip("/")).delete("empty/old")
    assert list((theirs / "output").iterdir()) == [], "a job's output is its own"


def test_a_write_that_fails_leaves_no_folder_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = DirectoryStore(str(tmp_path))
    (tmp_path / "theirs").mkdir()
    (tmp_path / "source").write_bytes(b"x")
    store.put("kept/1", b"x")
    with pytest.raises(NotFound):
        store.put(f"new/deeper/{'x' * 300}/2", b"x")
    with pytest.raises(NotFound):
        store.put(f"new/deeper/{'x' * 300}", b"x")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("essp_common.objects.directory.shutil.copyfileobj", full)
    for key in ("new/deeper/3", "theirs/4", "kept/5"):
        with pytest.raises(StorageFull):
            store.put_file(key, str(tmp_path / "source"))
    assert sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*")) == [
        "kept",
        "kept/1",
        "source",
        "theirs",
    ]


def test_a_write_succeeds_while_others_empty_its_folder(tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path))

    def work(name: str) -> None:
        for _ in range(150):
            for key in (f"a/b/{name}", "a/same"):
                store.put(key, b"x")
                store.delete(key)

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(work, "xyz"))
    assert list(tmp_path.iterdir()) == []


class TestFilesystemStore(ListingContract):
    """The adapter of fsspec, over a file system in memory."""

    @pytest.fixture
    def store(self) -> Iterator[ObjectStore]:
        yield open_store("fsspec+memory://bucket/root")
        fsspec.filesystem("memory").store.clear()

    @pytest.fixture
    def place(self, store: ObjectStore) -> Place:
        files = fsspec.filesystem("memory")
        return lambda key, data: files.pipe_file(f"/bucket/root/{key}", data)


@pytest.fixture(scope="module")
def fsspec_thread() -> None:
    """fsspec has one thread for all that it does over a network, as long as the process lives."""
    get_loop()


@pytest.mark.usefixtures("fsspec_thread")
class TestWebStore(ReadingContract):
    """The same over a web server, which knows nothing of folders."""

    @pytest.fixture
    def served(self, tmp_path: Path) -> Iterator[str]:
        with http_server(tmp_path) as address:
            yield address

    @pytest.fixture
    def store(self, served: str) -> ObjectStore:
        return open_store(f"{served}/root")

    @pytest.fixture
    def place(self, tmp_path: Path) -> Place:
        def write(key: str, data: bytes) -> None:
            path = tmp_path / "root" / (unquote(key) if "%" in key else key)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        return write

    @pytest.mark.processes
    def test_a_fork_reads_as_well(self, store: ObjectStore, place: Place) -> None:
        place("a.mp4", b"0123456789")
        assert store.get("a.mp4", 2, 3) == b"234"
        with beside_a_fork(lambda: store.get("a.mp4", 2, 3) == b"234"):
            assert store.get("a.mp4", 2, 3) == b"234"

    def test_a_server_without_ranges_is_read_all_the_same(self, tmp_path: Path, place: Place) -> None:
        place("a.mp4", b"0123456789")
        with http_server(tmp_path, ranges=False) as address:
            assert open_store(f"{address}/root").get("a.mp4", 2, 3) == b"234"

    def test_what_a_server_refuses_is_told(self, tmp_path: Path) -> None:
        for status, kind in ((403, ConfigError), (500, Unavailable), (404, NotFound), (410, NotFound)):
            with http_server(tmp_path, status=status) as address, pytest.raises(kind, match=address):
                open_store(address).head("a.mp4")

    @pytest.mark.parametrize("status", [204, 301, 302, 400, 407, 416, 429, 501])
    def test_odd_answers_are_right_or_an_error_of_ours(self, tmp_path: Path, place: Place, status: int) -> None:
        place("a.mp4", b"0123456789")
        with http_server(tmp_path, status=status) as address:
            store = open_store(f"{address}/root")
            for get in (store.get, lambda key, store=store: store.open(key).read()):
                with suppress(EsspError):
                    assert get("a.mp4") == b"0123456789"

    @pytest.mark.parametrize("said", [{}, {"size": -1}, {"size": "many"}, {"size": None}, [], None, "size"])
    def test_facts_that_are_none_are_an_error_of_ours(
        self, store: ObjectStore, said: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(store._files, "info", lambda path: said)  # type: ignore[attr-defined]
        for call in (store.head, store.get, store.open):
            with pytest.raises(EsspError):
                call("a.mp4")

    @pytest.mark.parametrize("said", [b"", b"12", None, "0123456789", 7])
    def test_bytes_that_are_none_are_an_error_of_ours(
        self, store: ObjectStore, place: Place, said: object, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        place("a.mp4", b"0123456789")
        monkeypatch.setattr(store._files, "cat_file", lambda path, start, end: said)  # type: ignore[attr-defined]
        with pytest.raises(Unavailable):
            store.get("a.mp4")

    def test_a_server_that_is_not_there(self) -> None:
        with socket.socket() as unused:
            unused.bind(("127.0.0.1", 0))
            with pytest.raises(Unavailable):
                open_store(f"http://127.0.0.1:{unused.getsockname()[1]}").head("a")

    def test_a_server_cannot_be_listed(self, store: ObjectStore) -> None:
        with pytest.raises(ConfigError, match="give a CSV file with a column `path`"):
            list(store.list())


def test_a_data_set_of_the_hub_is_a_store(tmp_path: Path) -> None:
    data = patterned(MIB)
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a b.parquet").write_bytes(data)
    (tmp_path / "README.md").write_bytes(b"")
    asked: list[str] = []
    with hub(tmp_path, asked=asked) as address:
        store = open_store(f"hf://datasets/owner/name?endpoint={address}")
        assert [info.key for info in store.list()] == ["README.md", "data/a b.parquet"]
        below = store.below("data")
        assert [below.head("a b.parquet")] == list(below.list())
        assert below.uri("a b.parquet") == "hf://datasets/owner/name/data/a b.parquet"
        assert below.get("a b.parquet", 70_000, 5_000) == data[70_000:75_000]
        assert asked == ["a b.parquet 70000-74999"]  # nothing is read ahead
        with below.open("a b.parquet") as file:
            assert file.read() == data
        for key in ("data", "none", "data/none/a"):
            with pytest.raises(NotFound):
                store.head(key)


def test_what_the_hub_refuses_names_the_credentials(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x")
    with hub(tmp_path, token="t") as address:
        with refused("", "refused"):
            list(open_store(f"hf://datasets/owner/name?endpoint={address}").list())
        store = open_store(f"hf://datasets/owner/name?endpoint={address}&token=t")
        assert [info.key for info in store.list()] == ["a"]


def test_nothing_is_written_to_a_store_that_is_only_read() -> None:
    store = open_store("fsspec+memory://bucket")
    assert "only read" in store.unwritable()
    refused = pytest.raises(ConfigError, match="have ESSP write to file:// or s3://")
    with refused:
        store.put("a", b"")
    with refused:
        store.put_file("a", "b")
    with refused:
        store.delete("a")


def test_a_file_system_whose_client_is_missing_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    with pytest.raises(ConfigError, match=r"gs://bucket.*install gcsfs"):
        open_store("gs://bucket")
    with pytest.raises(ConfigError, match=r"store URL 'fsspec\+nothing://x'"):
        open_store("fsspec+nothing://x")
