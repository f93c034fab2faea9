"""One process owns a training: of two, the later one; and what is finished, or ahead, nobody takes away."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.artifacts import checkpoint, layout
from essp_common.errors import Fenced, PermanentError
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import NumberedLog
from essp_common.objects.port import ObjectInfo
from tests.unit.essp_common.artifacts.small_checkpoints import DATA, begin, latest, manifest, objects


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


def test_a_process_of_an_earlier_run_does_not_begin(store: DirectoryStore) -> None:
    begin(store, fence=5)
    with pytest.raises(Fenced, match=r"later run of the job \(fence 5, this one has 4\), in w"):
        begin(store, fence=4)
    assert begin(store, fence=5).incarnation == 2


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
