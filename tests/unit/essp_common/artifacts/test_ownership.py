"""One process owns a training: of two, the later one; and what is finished, or ahead, nobody takes away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from essp_common.artifacts import checkpoint, checkpoint_writer, layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint, StoredFile, in_memory
from essp_common.artifacts.checkpoint_writer import CheckpointWriter
from essp_common.artifacts.manifest import Best, Manifest
from essp_common.artifacts.sealed import sealed
from essp_common.errors import Fenced, PermanentError, Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.planning.position import Position
from tests.harness.model_manifest import SMALL

DATA = in_memory({"model.safetensors": b"weights"})


def manifest(step: int, best: int | None = None, final: bool = False, epochs: int = 0, fence: int = 0) -> Manifest:
    return Manifest(
        job="j",
        trainer="rgb",
        step=step,
        updates=step,
        epoch=0,
        epochs=epochs,
        fence=fence,
        position=Position(0, step),
        spec_digest="d",
        model=SMALL,
        best=None if best is None else Best(step=best, epoch=0, metrics={}),
        final=final,
    )


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(str(tmp_path))


def begin(store: Any, fence: int = 1) -> CheckpointWriter:
    return checkpoint_writer.claim(store, "rgb", fence, "w")


def latest(store: DirectoryStore) -> int:
    found = checkpoint.read_latest(store, "rgb")
    assert found is not None
    return found.step


def objects(store: DirectoryStore) -> dict[str, bytes]:
    return {info.key: store.get(info.key) for info in store.list()}


def without_latest(store: DirectoryStore) -> None:
    for info in list(store.list(layout.latest("rgb"))):
        store.delete(info.key)


def test_the_earlier_of_two_processes_leaves_and_changes_nothing(store: DirectoryStore) -> None:
    """A process was frozen, another took its place and finished, and the first goes on."""
    frozen = begin(store)
    frozen.save(manifest(1080), DATA, 2)
    other = begin(store)
    for step in (1680, 2280):
        other.save(manifest(step), DATA, 2)
    other.save(manifest(2281, best=1680, final=True), DATA, 2)
    before = objects(store)
    with pytest.raises(Fenced, match=r"taken trainer rgb over from this one \(incarnation 1\)"):
        frozen.save(manifest(1424), DATA, 1)
    with pytest.raises(Fenced):
        frozen.check()
    assert objects(store) == before
    assert latest(store) == 2281


def test_a_finished_training_is_not_taken_and_stays_as_it_is(store: DirectoryStore) -> None:
    first = begin(store)
    first.save(manifest(8), DATA, 1)
    first.save(manifest(9, best=8, final=True), DATA, 1)
    before = objects(store)
    again = begin(store, fence=9)
    assert again.found.manifest is not None
    assert again.found.manifest.final
    for writer in (first, again):
        for step in (4, 9, 10):
            with pytest.raises(Fenced, match="finished: its final checkpoint stays"):
                writer.save(manifest(step), DATA, 1)
    assert objects(store) == before


@pytest.mark.parametrize("writes", range(4))
def test_who_saves_while_another_takes_over_does_not_become_the_latest(tmp_path: Path, writes: int) -> None:
    """Before each write of the one (its entry, data, manifest, the latest) the other begins, saves and finishes."""
    folder = DirectoryStore(str(tmp_path))
    left = [writes]

    class Overtaken(DirectoryStore):
        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            if left[0] == 0:
                other = begin(folder)
                other.save(manifest(12), DATA, 1)
                other.save(manifest(13, final=True), DATA, 1)
            left[0] -= 1
            return super().put(key, data, if_absent=if_absent)

    writer = begin(Overtaken(str(tmp_path)))
    with pytest.raises(Fenced):
        writer.save(manifest(8), DATA, 1)
    assert left[0] < 0
    assert latest(folder) == 13
    assert checkpoint.steps(folder, "rgb") == [12, 13]


def test_a_checkpoint_that_was_the_latest_for_a_moment_stays(tmp_path: Path) -> None:
    """Another process begins as soon as it is, and resumes from it, before its writer looks again."""
    folder = DirectoryStore(str(tmp_path))
    left = [3]

    class Overtaken(DirectoryStore):
        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            written = super().put(key, data, if_absent=if_absent)
            if left[0] == 0:
                found = begin(folder).found.manifest
                assert found is not None
                assert found.step == 8
            left[0] -= 1
            return written

    writer = begin(Overtaken(str(tmp_path)))
    with pytest.raises(Fenced):
        writer.save(manifest(8), DATA, 1)
    assert latest(folder) == 8
    assert checkpoint.steps(folder, "rgb") == [8]


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


def test_the_latest_never_goes_back(store: DirectoryStore) -> None:
    writer = begin(store)
    saved = writer.save(manifest(8), DATA, 2)
    with pytest.raises(PermanentError, match="8, is ahead of it"):
        writer.save(manifest(4), DATA, 2)
    assert writer.save(manifest(8), DATA, 2) == saved
    assert latest(store) == 8


def test_of_the_log_only_the_last_entries_stay(store: DirectoryStore) -> None:
    writer = begin(store)
    for step in range(4, 44, 4):
        writer.save(manifest(step), DATA, 1)
    assert NumberedLog(store, layout.latest("rgb")).numbers() == [8, 9, 10, 11]


def test_what_lies_ahead_is_left_alone(store: DirectoryStore) -> None:
    """Checkpoint 8 is damaged, so training goes on from 4. What it has not come to yet it does not remove."""
    first = begin(store)
    for step in (4, 8):
        saved = first.save(manifest(step), DATA, 3)
    store.put(saved.prefix + "model.safetensors", b"damaged")
    begin(store)
    second = begin(store)
    assert second.found.manifest is not None
    assert (second.found.manifest.step, second.found.lost_until) == (4, 8), "though another one began there before"
    second.save(manifest(6), DATA, 2)
    assert latest(store) == 6
    assert checkpoint.steps(store, "rgb") == [4, 6, 8], "it is none of those that are kept, either"
    assert store.get(saved.prefix + "model.safetensors") == b"damaged"
    second.save(manifest(8), DATA, 1)
    assert [info.key for info in store.list(layout.checkpoints("rgb"))] == [
        layout.checkpoint("rgb", 8, second.incarnation) + name for name in ("manifest.json", "model.safetensors")
    ]


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


def test_a_process_of_an_earlier_run_does_not_begin(store: DirectoryStore) -> None:
    begin(store, fence=5)
    with pytest.raises(Fenced, match=r"later run of the job \(fence 5, this one has 4\), in w"):
        begin(store, fence=4)
    assert begin(store, fence=5).incarnation == 2


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


def test_a_process_of_a_job_that_was_begun_anew_does_not_go_on(store: DirectoryStore) -> None:
    writer = begin(store)
    writer.save(manifest(4), DATA, 3)
    for info in list(store.list("trainers/")):
        store.delete(info.key)
    with pytest.raises(Fenced):
        writer.save(manifest(8), DATA, 3)
    assert objects(store) == {}


@pytest.mark.parametrize(("earlier", "later"), [(0, 0), (0, 1), (1, 0), (1, 1), (2, 1)])
def test_the_process_of_what_was_removed_leaves_whatever_number_the_new_one_has(
    store: DirectoryStore, earlier: int, later: int
) -> None:
    """Both are incarnation 1, and have saved so many checkpoints."""
    before = begin(store)
    for step in range(earlier):
        before.save(manifest(4 + step), DATA, 3)
    for info in list(store.list("trainers/")):
        store.delete(info.key)
    after = begin(store, fence=2)
    for step in range(later):
        after.save(manifest(4 + step, fence=2), DATA, 3)
    left = objects(store)
    with pytest.raises(Fenced, match="fence 2"):
        before.check()
    with pytest.raises(Fenced):
        before.save(manifest(8), DATA, 3)
    assert objects(store) == left
    after.check()
    after.save(manifest(12, fence=2), DATA, 3)
    assert latest(store) == 12


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


class Stop(Exception):
    """A process is frozen for good."""


class Stepwise(DirectoryStore):
    """A store in which every access waits for its turn in an interleaving."""

    def __init__(self, root: str, turns: Iterator[bool], other: Any) -> None:
        super().__init__(root)
        self._turns = turns
        self._other = other

    def _turn(self) -> None:
        if next(self._turns, False):
            self._other()

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        self._turn()
        return super().put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        self._turn()
        super().delete(key)

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        self._turn()
        return super().list(prefix)


@settings(deadline=None, max_examples=60)
@given(turns=st.lists(st.booleans(), max_size=60))
def test_however_two_processes_interleave_the_latest_is_whole_and_only_grows(turns: list[bool]) -> None:
    """At any access of the one, the other may begin or take its next step."""
    with TemporaryDirectory() as folder:
        plain = DirectoryStore(folder)
        seen = [0]

        def step_of_other() -> Iterator[None]:
            writer = begin(plain)
            yield
            for step in (5, 9, 13, 17):
                try:
                    writer.save(manifest(step, final=step == 17), DATA, 1)
                except Fenced:
                    return
                look()
                yield

        def look() -> None:
            found = checkpoint.read_latest(plain, "rgb")
            if found is not None:
                assert found.step >= seen[-1]
                seen.append(found.step)

        other = step_of_other()
        store = Stepwise(folder, iter(turns), lambda: next(other, None))
        try:
            writer = begin(store)
            found = writer.found.manifest
            for step in range(4 if found is None else found.step + 3, 18, 3):
                writer.save(manifest(step, final=step >= 15), DATA, 1)
                look()
        except Fenced:
            pass
        for _ in other:
            look()
        assert latest(plain) >= 15
