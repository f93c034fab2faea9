"""A staged checkpoint becomes durable or comes to nothing; whoever goes on has the newest that is his to go on from."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.artifacts import checkpoint, checkpoint_writer, layout, staging
from essp_common.artifacts.checkpoint_files import BadCheckpoint, in_memory
from essp_common.artifacts.checkpoint_writer import CheckpointWriter
from essp_common.artifacts.manifest import MODEL_FILE, Manifest
from essp_common.artifacts.ownership import LatestLog
from essp_common.artifacts.staging import Burst, Staging, parse_burst
from essp_common.errors import ConfigError, Conflict, EsspError, Fenced, StorageFull, Unavailable
from essp_common.objects.bounded import BoundedDirectory
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from tests.unit.essp_common.artifacts.small_checkpoints import manifest

ROOM = 10**6
OPEN: list[Staging] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Processes end with the test."""
    yield
    while OPEN:
        OPEN.pop().close()


class Node:
    """A machine with a fast disk, and the process of the trainer that runs there."""

    def __init__(self, folder: Path, store: Any, limit_bytes: int = ROOM, digest: str = "d") -> None:
        self.store = store
        self.staging = Staging(Burst(str(folder), limit_bytes), "file:///output", "rgb", digest)
        OPEN.append(self.staging)
        self.place = DirectoryStore(str(next(path for path in folder.iterdir() if path.is_dir())))

    def claim(self, fence: int = 1) -> CheckpointWriter:
        self.writer = checkpoint_writer.claim(self.store, "rgb", fence, "w", staged=self.staging)
        self.staging.begin(self.writer.process)
        return self.writer

    def stage(self, step: int, content: bytes = b"weights", **options: Any) -> Manifest:
        return self.staging.stage(self.writer.named(manifest(step, **options)), in_memory({MODEL_FILE: content}))

    def copy(self, staged: Manifest) -> Manifest | None:
        return self.staging.copy(staged, lambda one, data: self.writer.save(one, data, 2))

    @property
    def staged(self) -> list[int]:
        return checkpoint.steps(self.place, "rgb")


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(str(tmp_path / "store"))


@pytest.fixture
def node(tmp_path: Path, store: DirectoryStore) -> Node:
    node = Node(tmp_path / "nvme", store)
    node.claim()
    return node


def restarted(node: Node, folder: Path, **options: Any) -> Node:
    """A new process on the node, after the last one was killed."""
    node.staging.close()
    return Node(folder, node.store, **options)


def latest(store: DirectoryStore) -> int:
    found = checkpoint.read_latest(store, "rgb")
    return 0 if found is None else found.step


def found_step(writer: CheckpointWriter) -> int:
    return 0 if writer.found.manifest is None else writer.found.manifest.step


def test_a_copied_checkpoint_is_the_latest_and_gone_from_the_buffer(node: Node, store: DirectoryStore) -> None:
    staged = node.stage(4, b"four")
    assert (node.staged, latest(store)) == ([4], 0)
    saved = node.copy(staged)
    assert saved is not None
    assert checkpoint.read_latest(store, "rgb") == saved
    assert checkpoint.load_files(store, saved) == {MODEL_FILE: b"four"}
    assert [info.key for info in node.place.list()] == ["lock", "owner"]


def test_of_those_that_wait_only_the_newest_is_copied(node: Node, store: DirectoryStore) -> None:
    first, second, third = (node.stage(step) for step in (4, 8, 12))
    assert node.staged == [12]
    assert (node.copy(first), node.copy(second)) == (None, None)
    assert node.copy(third) is not None
    assert checkpoint.steps(store, "rgb") == [12]


def test_the_one_that_is_being_copied_stays_until_it_is(node: Node, store: DirectoryStore) -> None:
    def meanwhile(one: Manifest, data: Any) -> Manifest:
        node.stage(8)
        node.stage(12)
        assert node.staged == [4, 12]
        return node.writer.save(one, data, 2)

    node.staging.copy(node.stage(4), meanwhile)
    assert (node.staged, latest(store)) == ([12], 4)


def test_the_same_node_goes_on_from_the_newest_whole_one_that_is_staged(
    node: Node, store: DirectoryStore, tmp_path: Path
) -> None:
    node.copy(node.stage(4))
    node.stage(8, b"eight")
    again = restarted(node, tmp_path / "nvme")
    writer = again.claim()
    assert (found_step(writer), latest(store), again.staged) == (8, 8, [])
    assert writer.found.manifest is not None
    assert checkpoint.load_files(store, writer.found.manifest) == {MODEL_FILE: b"eight"}
    again.copy(again.stage(12))
    assert latest(store) == 12


def test_another_node_goes_on_from_the_store_and_what_the_first_has_staged_is_stale(
    node: Node, store: DirectoryStore, tmp_path: Path
) -> None:
    node.copy(node.stage(4))
    node.stage(8)
    other = Node(tmp_path / "other", store)
    assert found_step(other.claim()) == 4
    back = restarted(node, tmp_path / "nvme")
    assert found_step(back.claim()) == 4, "the other one owned the training in between"
    assert back.staged == []


def test_what_is_stale_and_could_not_be_removed_is_nobodys(
    node: Node, store: DirectoryStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node.copy(node.stage(4))
    node.stage(8)
    Node(tmp_path / "other", store).claim()
    with monkeypatch.context() as disk:
        disk.setattr(Staging, "clear", lambda staging: None)
        back = restarted(node, tmp_path / "nvme")
        back.claim()
    assert back.staged == [8]
    assert found_step(restarted(back, tmp_path / "nvme").claim()) == 4


@pytest.mark.parametrize("change", ["settings", "begun again", "damaged", "lost log", "no manifest"])
def test_what_is_staged_and_not_to_be_trusted_is_left_out(
    node: Node, store: DirectoryStore, tmp_path: Path, change: str
) -> None:
    node.copy(node.stage(4))
    staged = node.stage(8)
    if change == "damaged":
        node.place.put(staged.prefix + MODEL_FILE, b"weighty")
    if change == "no manifest":
        node.place.delete(staged.key)
    if change in ("begun again", "lost log"):
        for info in list(store.list("" if change == "begun again" else layout.latest("rgb"))):
            store.delete(info.key)
    if change == "begun again":
        checkpoint_writer.claim(store, "rgb", 1, "w")  # of the same number as the one that has staged
    again = restarted(node, tmp_path / "nvme", digest="other" if change == "settings" else "d")
    assert found_step(again.claim()) == (0 if change == "begun again" else 4)
    assert again.staged == []


def test_a_latest_that_is_damaged_in_the_store_is_made_good_from_what_is_staged(
    node: Node, store: DirectoryStore, tmp_path: Path
) -> None:
    node.copy(node.stage(4))
    staged = node.stage(8)
    saved = node.writer.save(staged, node.staging.data(staged), 2)  # killed before it was removed from the buffer
    store.put(saved.prefix + MODEL_FILE, b"weighty")
    writer = restarted(node, tmp_path / "nvme").claim()
    assert writer.found.lost_until == 0
    assert (found_step(writer), latest(store)) == (8, 8)


def test_of_those_that_are_staged_a_damaged_one_leads_to_the_one_before(
    node: Node, store: DirectoryStore, tmp_path: Path
) -> None:
    def killed(*_: Any) -> Manifest:
        newest = node.stage(8)
        node.place.put(newest.prefix + MODEL_FILE, b"weighty")
        raise Unavailable("killed")

    with suppress(Unavailable):
        node.staging.copy(node.stage(4), killed)
    assert node.staged == [4, 8]
    assert found_step(restarted(node, tmp_path / "nvme").claim()) == latest(store) == 4


def test_of_two_whole_ones_that_are_staged_the_newer_is_taken_up(
    node: Node, store: DirectoryStore, tmp_path: Path
) -> None:
    """The process was killed while it copied the older one."""

    def killed(*_: Any) -> Manifest:
        node.stage(8)
        raise Unavailable("killed")

    with suppress(Unavailable):
        node.staging.copy(node.stage(4), killed)
    assert node.staged == [4, 8]
    assert found_step(restarted(node, tmp_path / "nvme").claim()) == latest(store) == 8


def test_clips_of_a_damaged_latest_are_known_where_an_older_one_is_staged(
    node: Node, store: DirectoryStore, tmp_path: Path
) -> None:
    """The latest had no room in the buffer, and its process died before it removed what lay there."""
    node.copy(node.stage(4))
    node.stage(8)
    saved = node.writer.save(manifest(12), in_memory({MODEL_FILE: b"twelve"}), 2)
    store.put(saved.prefix + MODEL_FILE, b"damaged")
    writer = restarted(node, tmp_path / "nvme").claim()
    assert (found_step(writer), writer.found.lost_until) == (8, 12)


def test_a_checkpoint_without_room_leaves_nothing_of_itself(node: Node, tmp_path: Path) -> None:
    node.stage(4)
    before = [info.key for info in node.place.list()]
    with pytest.raises(StorageFull, match="over 977 KiB"):
        node.stage(8, bytes(ROOM - 1000))
    assert [info.key for info in node.place.list()] == before
    node.stage(12, bytes(ROOM // 2))
    assert node.staged == [12]


def test_one_process_at_a_time_has_a_place(node: Node, store: DirectoryStore, tmp_path: Path) -> None:
    with pytest.raises(Conflict, match="used by another process of trainer rgb"):
        Node(tmp_path / "nvme", store)
    burst = Burst(str(tmp_path / "nvme"), ROOM)
    for output, trainer in (("file:///output", "flow"), ("file:///output2", "rgb")):
        Staging(burst, output, trainer, "d").close()
    restarted(node, tmp_path / "nvme").staging.close()


def test_a_folder_that_cannot_be_used_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="use a folder that this process may write to"):
        Staging(Burst(str(tmp_path / "file"), ROOM), "file:///output", "rgb", "d")


class Refusing(DirectoryStore):
    """Refuses to be copied to while it has an error; that comes late, as of a file that is the last of several."""

    error: EsspError | None = None

    def put_file(self, key: str, path: str) -> ObjectInfo:
        written = super().put_file(key, path)
        if self.error is not None:
            raise self.error
        return written


def test_what_could_not_be_copied_stays_until_a_newer_one_is_whole(tmp_path: Path) -> None:
    store = Refusing(str(tmp_path / "store"))
    node = Node(tmp_path / "nvme", store)
    node.claim()
    store.error = Unavailable("no answer")
    with pytest.raises(Unavailable):
        node.copy(node.stage(4))
    assert (node.staged, latest(store)) == ([4], 0)
    again = restarted(node, tmp_path / "nvme")
    store.error = None
    assert found_step(again.claim()) == 4
    store.error = Unavailable("no answer")
    with pytest.raises(Unavailable):
        again.copy(again.stage(8))
    again.stage(12)
    assert again.staged == [12]


def test_a_store_that_holds_other_bytes_than_were_copied_to_it_is_not_trusted(tmp_path: Path) -> None:
    class Forgetful(DirectoryStore):
        def put_file(self, key: str, path: str) -> ObjectInfo:
            return self.put(key, b"weighty")

    store = Forgetful(str(tmp_path / "store"))
    node = Node(tmp_path / "nvme", store)
    node.claim()
    with pytest.raises(BadCheckpoint, match="damaged"):
        node.copy(node.stage(4, b"weights"))
    assert (node.staged, latest(store)) == ([4], 0)


def test_a_file_that_somebody_removes_from_the_buffer_is_a_copy_that_failed(node: Node, store: DirectoryStore) -> None:
    staged = node.stage(4)
    node.place.delete(staged.prefix + MODEL_FILE)
    with pytest.raises(BadCheckpoint, match="is gone; let only ESSP remove what is there"):
        node.copy(staged)
    assert latest(store) == 0
    assert node.copy(node.stage(8)) is not None


def test_a_disk_that_lets_nothing_be_removed_costs_no_checkpoint(
    node: Node, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = BoundedDirectory.list

    def busy(place: BoundedDirectory, prefix: str = "") -> Iterator[ObjectInfo]:
        if prefix:
            raise Unavailable("busy")
        return listed(place, prefix)

    monkeypatch.setattr(BoundedDirectory, "list", busy)
    node.stage(4)
    assert node.copy(node.stage(8)) is not None
    assert latest(store) == 8


def test_a_store_that_is_full_at_the_start_costs_what_was_staged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Refusing(str(tmp_path / "store"))
    node = Node(tmp_path / "nvme", store)
    node.claim()
    node.copy(node.stage(4))
    node.stage(8)
    store.error = StorageFull("no room")
    again = restarted(node, tmp_path / "nvme")
    assert found_step(again.claim()) == 4
    assert "staged checkpoint 8 of trainer rgb is left out: no room" in caplog.text
    assert (again.staged, {name.step for name, _ in checkpoint.objects_of(store, "rgb")}) == ([], {4})


def test_a_store_that_does_not_answer_at_the_start_costs_nothing(tmp_path: Path) -> None:
    store = Refusing(str(tmp_path / "store"))
    node = Node(tmp_path / "nvme", store)
    node.claim()
    node.copy(node.stage(4))
    node.stage(8)
    store.error = Unavailable("503 Slow Down")
    again = restarted(node, tmp_path / "nvme")
    with pytest.raises(Unavailable, match="503"):
        again.claim()
    store.error = None
    assert found_step(again.claim()) == 8


@pytest.mark.parametrize("saves", [False, True])
def test_who_is_overtaken_while_it_takes_up_what_is_staged_changes_nothing(
    node: Node, store: DirectoryStore, tmp_path: Path, saves: bool
) -> None:
    node.copy(node.stage(4))
    node.stage(8)
    other: list[CheckpointWriter] = []

    class Overtaken(DirectoryStore):
        def put_file(self, key: str, path: str) -> ObjectInfo:
            if not other:
                other.append(checkpoint_writer.claim(store, "rgb", 1, "other"))
                if saves:
                    other[0].save(manifest(6), in_memory({MODEL_FILE: b"six"}), 2)
            return super().put_file(key, path)

    node.staging.close()
    again = Node(tmp_path / "nvme", Overtaken(str(tmp_path / "store")))
    writer = again.claim()
    assert found_step(writer) == latest(store) == (6 if saves else 4)
    assert 8 not in checkpoint.steps(store, "rgb")
    with pytest.raises(Fenced):
        other[0].check()


@pytest.mark.parametrize("saves", [False, True])
def test_who_is_overtaken_as_soon_as_it_owns_the_training_leaves_what_the_other_resumed_from(
    node: Node, store: DirectoryStore, tmp_path: Path, saves: bool
) -> None:
    node.copy(node.stage(4))
    node.stage(8, b"eight")
    other: list[CheckpointWriter] = []

    class Overtaken(DirectoryStore):
        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            written = super().put(key, data, if_absent=if_absent)
            if if_absent and not other:
                other.append(checkpoint_writer.claim(store, "rgb", 1, "other"))
                if saves:
                    other[0].save(manifest(12), in_memory({MODEL_FILE: b"twelve"}), 2)
            return written

    node.staging.close()
    writer = Node(tmp_path / "nvme", Overtaken(str(tmp_path / "store"))).claim()
    assert found_step(other[0]) == 8
    assert checkpoint.load_files(store, checkpoint.read(store, "rgb", 8)) == {MODEL_FILE: b"eight"}
    assert found_step(writer) == latest(store) == (12 if saves else 8)
    with pytest.raises(Fenced):
        other[0].check()


def test_what_the_store_has_already_is_not_written_again(node: Node, store: DirectoryStore, tmp_path: Path) -> None:
    """The process died before it removed what it had copied."""
    staged = node.stage(8)
    saved = node.writer.save(staged, node.staging.data(staged), 2)
    os.utime(tmp_path / "store" / saved.key, (0, 0))
    again = restarted(node, tmp_path / "nvme").claim()
    assert again.found.manifest == saved
    assert os.stat(tmp_path / "store" / saved.key).st_mtime == 0


def test_a_process_of_an_earlier_run_takes_nothing_up(node: Node, store: DirectoryStore, tmp_path: Path) -> None:
    later = restarted(node, tmp_path / "nvme")
    later.claim(fence=5)
    later.stage(8)
    before = [info.key for info in store.list()]
    with pytest.raises(Fenced):
        restarted(later, tmp_path / "nvme").claim(fence=4)
    assert [info.key for info in store.list()] == before


def test_a_finished_training_takes_nothing_up(node: Node, store: DirectoryStore, tmp_path: Path) -> None:
    node.stage(4)
    node.writer.save(manifest(9, final=True), in_memory({MODEL_FILE: b"end"}), 2)
    assert found_step(checkpoint_writer.claim(store, "rgb", 1, "w", staged=node.staging)) == 9
    with pytest.raises(Fenced, match="finished"):
        node.writer.named(manifest(12))


def test_a_later_run_with_more_epochs_takes_up_what_it_has_staged(
    node: Node, store: DirectoryStore, tmp_path: Path
) -> None:
    """The final checkpoint of fewer epochs has a higher step than what follows it."""
    for step in (8, 20):
        node.writer.save(manifest(step, epochs=2, final=step == 20), in_memory({MODEL_FILE: b"two"}), 2)
    node.writer = checkpoint_writer.claim(store, "rgb", 2, "w", 4, node.staging)
    node.staging.begin(node.writer.process)
    node.stage(12, epochs=4, fence=2)
    node.staging.close()
    again = Node(tmp_path / "nvme", store)
    assert found_step(checkpoint_writer.claim(store, "rgb", 2, "w", 4, again.staging)) == latest(store) == 12


@pytest.mark.parametrize("url", ["file:///nvme", "s3://a/b?bytes=2GB", "/nvme?bytes=2GB", "file:///a?bytes=0&x=1"])
def test_a_burst_buffer_is_a_folder_and_a_size(url: str) -> None:
    assert parse_burst("file:///nvme/essp?bytes=2GiB") == Burst("/nvme/essp", 2 * 2**30)
    with pytest.raises(ConfigError, match=r"write a folder of this machine and a size"):
        parse_burst(url)


class Died(BaseException):
    """The process is gone: nothing of it cleans up."""


class Mortal:
    """Mixed into a directory: the process dies before one of its writes, wherever that goes."""

    left: Callable[[], bool]

    def _write(self, *arguments: Any, **options: Any) -> ObjectInfo:
        if not Mortal.left():
            raise Died
        result: ObjectInfo = super()._write(*arguments, **options)  # type: ignore[misc]
        return result

    def delete(self, key: str) -> None:
        if not Mortal.left():
            raise Died
        super().delete(key)  # type: ignore[misc]


class MortalDirectory(Mortal, DirectoryStore):
    """The job's store."""


class MortalBounded(Mortal, BoundedDirectory):
    """The buffer."""


LIVES = st.lists(
    st.tuples(
        st.integers(0, 1), st.integers(0, 40), st.lists(st.sampled_from(["stage", "copy", "direct"]), max_size=9)
    ),
    min_size=2,
    max_size=6,
)


@given(lives=LIVES)
def test_wherever_processes_die_on_two_nodes_the_next_goes_on_from_the_newest_that_is_its_own(
    tmp_path_factory: pytest.TempPathFactory, lives: list[tuple[int, int, list[str]]]
) -> None:
    """The content of a checkpoint is the story of all that was trained for it; what was durable stays part of it."""
    folder = tmp_path_factory.mktemp("nodes")
    plain, slow = DirectoryStore(str(folder / "store")), MortalDirectory(str(folder / "store"))
    stagers: dict[str, int] = {}
    """Where the process of that name has staged."""
    durable = ""

    def story(where: DirectoryStore, found: Manifest | None) -> str:
        return "" if found is None else checkpoint.load_files(where, found)[MODEL_FILE].decode()

    def expected(number: int) -> str:
        """What the next process of this node has to go on from."""
        entry = LatestLog(plain, "rgb").last().entry
        at = checkpoint.read_latest(plain, "rgb")
        if entry is not None and stagers.get(entry.process) == number:
            place = DirectoryStore(str(next(path for path in (folder / str(number)).iterdir())))
            for step in reversed(checkpoint.steps(place, "rgb")):
                if at is None or step > at.step:
                    return story(place, checkpoint.read(place, "rgb", step))
        return story(plain, at)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(staging, "BoundedDirectory", MortalBounded)
        patched.setattr(os, "fsync", lambda descriptor: None)  # a process that dies takes nothing from the kernel
        for life, (number, writes, actions) in enumerate([*lives, (0, 10**6, []), (1, 10**6, [])]):
            wanted = expected(number)
            budget = itertools.count(writes, -1)
            Mortal.left = staticmethod(lambda budget=budget: next(budget) > 0)
            Path(folder / str(number)).mkdir(exist_ok=True)
            node = Node(folder / str(number), slow)
            with suppress(Died):
                writer = node.claim()
                stagers[writer.process] = number
                told, step = story(plain, writer.found.manifest), found_step(writer)
                waiting: list[Manifest] = []
                assert told == wanted
                for action in actions:
                    if action == "copy":
                        saved = node.copy(waiting.pop(0)) if waiting else None
                    else:
                        step, told = step + 1, f"{told} {life}:{step + 1}"
                        data = in_memory({MODEL_FILE: told.encode()})
                        if action == "stage":
                            waiting.append(node.staging.stage(writer.named(manifest(step)), data))
                            continue
                        waiting.clear()  # as if their copies had failed
                        saved = writer.save(manifest(step), data, 1)
                    durable = durable if saved is None else story(plain, saved)
            node.staging.close()
            now = story(plain, checkpoint.read_latest(plain, "rgb"))
            assert now.startswith(durable)
            durable = now


def test_what_others_have_put_there_stays(node: Node, tmp_path: Path) -> None:
    staged = node.stage(4)
    temporary = f"{staged.prefix}.essp-{'0' * 32}.tmp"
    others = (f"{staged.prefix}notes.txt", "trainers/plot.png", f"{staged.prefix}.essp-mine.tmp")
    for name in (temporary, *others):
        node.place.put(name, b"mine")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "model.tensors").write_bytes(b"mine")
    folder = Path(node.place.uri("trainers/rgb/checkpoints").removeprefix("file://"))
    (folder / "0000000009-0000000001").symlink_to(tmp_path / "mine")
    node.staging.clear()
    assert node.staged == []
    assert {info.key for info in node.place.list("trainers/")} >= set(others)
    assert node.place.local_path(temporary) is None
    assert node.place.local_path(f"{staged.prefix}{MODEL_FILE}") is None
    assert (tmp_path / "mine" / "model.tensors").exists(), "behind a link"
