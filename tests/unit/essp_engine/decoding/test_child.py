"""What a child answers when reads of its videos fail; in this process."""

from __future__ import annotations

import io
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest

from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError, Unavailable
from essp_common.objects.block_sums import head_sums
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo, StoreRefuses
from essp_common.objects.ranged import RangedFile, noting
from essp_common.pb.v1.messages_pb2 import DecodeSeed, Seek
from essp_common.runtime.shared_slots import SharedMemory
from essp_engine.decoding import child as child_module
from essp_engine.decoding.block_cache import BlockCache
from essp_engine.decoding.child import Child
from essp_engine.decoding.protocol import Request, clip_shapes, slot_bytes
from essp_engine.decoding.settings import DecodingSettings
from essp_engine.video import codec
from essp_engine.video.probe import probe
from essp_engine.video.synthetic import Encoding, write_video
from tests.harness.decode_units import unit

BLOCK_BYTES = 2**15
READS = (70, 76, 120)
"""The first frames of units, one after another."""


class Hiccups:
    """Videos that are read in ranges; one read fails."""

    def __init__(self, folder: Path, failing: int, monkeypatch: pytest.MonkeyPatch) -> None:
        """`failing`: the number of that read; 0: none."""
        self._folder = folder
        self._numbers = count(1)
        self._failing = failing
        self.failed = False
        monkeypatch.setattr(DirectoryStore, "local_path", lambda store, key: None)
        monkeypatch.setattr(DirectoryStore, "open", lambda store, key: self._open(key))

    def _open(self, key: str) -> BinaryIO:
        data = (self._folder / key).read_bytes()

        def fetch(start: int, length: int) -> bytes:
            if next(self._numbers) == self._failing:
                self.failed = True
                raise Unavailable("hiccup")
            return data[start : start + length]

        return cast(BinaryIO, io.BufferedReader(RangedFile(len(data), fetch, BLOCK_BYTES)))


def shown(child: Child, memory: SharedMemory, work: DecodeSeed) -> tuple[dict[str, Any], np.ndarray[Any, Any] | None]:
    """The answer, and the clip if there is one."""
    [shape] = clip_shapes(work)
    slot = memory.take(slot_bytes(shape, work.recipe))
    answer = child.answer(Request(memory.size, [slot], work))
    [clip] = answer.get("clips", [None])
    return answer, np.array(codec.decode(memory.view(slot, clip))) if isinstance(clip, int) else None


def units(path: Path, seekable: bool) -> list[DecodeSeed]:
    """One after another, without what was opened for the one before being read to its end."""
    facts = probe(str(path))
    made = []
    for first in READS:
        work = unit(path.parent, path.name, first)
        work.video.lookahead = facts.lookahead if seekable else 0
        work.seeds[0].last_frame = facts.frame_count - 1
        if seekable:
            at = bisect_right(facts.keyframe_frame, first) - 1
            work.seeds[0].seek.CopyFrom(Seek(frame_index=facts.keyframe_frame[at], pts=facts.keyframe_pts[at]))
        made.append(work)
    return made


def test_a_store_that_refuses_its_credentials_blames_no_video(noise: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder that is set up wrongly waits; it would fail every clip of every job."""

    def head(store: DirectoryStore, key: str) -> ObjectInfo:
        raise StoreRefuses("InvalidAccessKeyId")

    monkeypatch.setattr(child_module, "_limit", lambda *_: None)
    monkeypatch.setattr(DirectoryStore, "head", head)
    config = DecodingSettings(stores=(f"file://{noise.parent}",)).sandbox().config
    with closing(SharedMemory()) as memory:
        answer, _ = shown(Child(config, memory.fd, None), memory, unit(noise.parent, noise.name, 0))
    assert answer == {"reason": "InvalidAccessKeyId", "retry_after_s": child_module._REFUSED_RETRY_S}


@pytest.fixture(scope="module")
def noise(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """More bytes than are read to open it."""
    random = np.random.default_rng(0)
    frames = random.integers(0, 256, (150, 120, 160, 3), np.uint8)
    return write_video(tmp_path_factory.mktemp("noise") / "a.avi", frames, Encoding(codec="mpeg4"))


@pytest.mark.parametrize("seekable", [True, False])
def test_after_a_failed_read_the_frames_are_those_of_the_file(
    noise: Path, monkeypatch: pytest.MonkeyPatch, seekable: bool
) -> None:
    """Whichever read it was: FFmpeg does not know where it is in the file any more."""
    monkeypatch.setattr(child_module, "_limit", lambda *_: None)  # of a process of its own
    config = DecodingSettings(stores=(f"file://{noise.parent}",)).sandbox().config
    works = units(noise, seekable)
    expected: list[np.ndarray[Any, Any]] = []
    for failing in count(0):
        with monkeypatch.context() as patched, closing(SharedMemory()) as memory:
            hiccups = Hiccups(noise.parent, failing, patched)
            child = Child(config, memory.fd, None)
            for number, work in enumerate(works):
                answer, frames = shown(child, memory, work)
                if "retry_after_s" in answer:
                    answer, frames = shown(child, memory, work)
                assert frames is not None, answer
                expected += [] if failing else [frames]
                assert np.array_equal(frames, expected[number])
            child._drop(works[0])
            if failing and not hiccups.failed:
                break


class Odd:
    """A store that gives wrong answers before right ones, and the child that reads from it."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.heads: list[ObjectInfo | type[EsspError]] = []
        """What is said of the object before the truth."""
        self.flips: list[int] = []
        """Places in the file at which the next read of each is damaged."""
        self._data = path.read_bytes()
        self._info = ObjectInfo(path.name, len(self._data), "right")
        monkeypatch.setattr(child_module, "_limit", lambda *_: None)
        monkeypatch.setattr(DirectoryStore, "local_path", lambda store, key: None)
        monkeypatch.setattr(DirectoryStore, "head", lambda store, key: self._head())
        monkeypatch.setattr(DirectoryStore, "open", lambda store, key: self._open())
        config = DecodingSettings(stores=(f"file://{path.parent}",)).sandbox().config
        self.memory = SharedMemory()
        self.blocks = BlockCache(2**30)
        self.child = Child(config, self.memory.fd, cast(Any, self.blocks))
        [self.work] = units(path, seekable=True)[:1]
        self.work.video.size_bytes, self.work.video.etag = len(self._data), "right"
        self.sums = self._sums()
        facts = probe(str(path))
        self.begin = facts.keyframe_offset[bisect_right(facts.keyframe_frame, READS[0]) - 1]
        """Of what is decoded."""

    def shown(self) -> tuple[dict[str, Any], np.ndarray[Any, Any] | None]:
        return shown(self.child, self.memory, self.work)

    def close(self) -> None:
        self.child._drop(self.work)
        self.memory.close()

    def _sums(self) -> bytes:
        with self._open() as file:
            noted = noting(file)
            assert noted is not None
            return noted.noted().packed()

    def _head(self) -> ObjectInfo:
        if not self.heads:
            return self._info
        said = self.heads.pop(0)
        if isinstance(said, ObjectInfo):
            return said
        raise said("no")

    def _open(self) -> BinaryIO:
        return cast(BinaryIO, io.BufferedReader(RangedFile(len(self._data), self._fetch, version="file:///v right")))

    def _fetch(self, start: int, length: int) -> bytes:
        data = bytearray(self._data[start : start + length])
        for place in {place for place in self.flips if start <= place < start + length}:
            self.flips.remove(place)
            data[place - start] ^= 1
        return bytes(data)


@pytest.fixture
def odd(noise: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Odd]:
    with closing(Odd(noise, monkeypatch)) as odd:
        yield odd


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        (ObjectInfo("a.avi", 7, "right"), "changed"),
        (ObjectInfo("a.avi", 7, "wrong"), "changed"),
        (NotFound, "vanished"),
        (ConfigError, "error"),
        (PermanentError, "error"),
    ],
    ids=["size", "version", "absent", "denied", "refused"],
)
def test_one_answer_of_a_store_blames_no_video(odd: Odd, said: ObjectInfo | type[EsspError], kind: str) -> None:
    odd.heads = [said]
    answer, frames = odd.shown()
    assert frames is not None, answer
    odd.heads = [said, said]
    assert odd.shown()[0]["kind"] == kind


def test_bytes_that_came_damaged_are_read_anew_before_the_video_is_blamed(odd: Odd) -> None:
    """Without checksums; the decoder's cache has kept them meanwhile."""
    expected = cast(Any, odd.shown()[1])
    odd.child._drop(odd.work, damaged=True)
    assert odd.blocks.held_bytes == 0
    odd.flips = [0]
    answer, frames = odd.shown()
    assert frames is not None, answer
    assert np.array_equal(frames, expected)
    odd.child._drop(odd.work, damaged=True)
    odd.flips = [0] * 9
    assert "kind" in odd.shown()[0]
    assert odd.blocks.held_bytes == 0, "nothing of it is kept"


def test_damage_that_a_decoder_does_not_notice_is_found_by_the_checksums(odd: Odd) -> None:
    def same(sums: bytes, place: int) -> bool:
        odd.child._drop(odd.work, damaged=True)
        odd.work.video.sums, odd.flips = sums, [place]
        return np.array_equal(cast(Any, odd.shown()[1]), expected)

    expected = cast("np.ndarray[Any, Any]", odd.shown()[1])
    places = range(odd.begin + 1000, odd.begin + 9000, 1000)
    assert not all(same(b"", place) for place in places)
    assert all(same(odd.sums, place) for place in places)


def test_a_file_that_has_become_another_one_is_told(odd: Odd) -> None:
    odd.work.video.sums = odd.sums[:1] + bytes([odd.sums[1] ^ 1]) + odd.sums[2:]
    answer, _ = odd.shown()
    assert answer["kind"] == "changed"
    assert "bytes 0 to" in answer["reason"]


def test_checksums_that_are_none_are_told(odd: Odd) -> None:
    odd.work.video.sums = b"abc"
    assert "these are not checksums" in odd.shown()[0]["reason"]


def test_a_file_on_the_disk_is_known_by_its_beginning(noise: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Size and time are those that another one has."""
    monkeypatch.setattr(child_module, "_limit", lambda *_: None)
    config = DecodingSettings(stores=(f"file://{noise.parent}",)).sandbox().config
    [work] = units(noise, seekable=True)[:1]
    head = head_sums(str(noise))
    assert head is not None
    with closing(SharedMemory()) as memory:
        child = Child(config, memory.fd, None)
        work.video.sums = head.packed()
        assert shown(child, memory, work)[1] is not None
        child._drop(work)
        work.video.sums = head_sums(__file__).packed()  # type: ignore[union-attr]
        assert shown(child, memory, work)[0]["kind"] == "changed"
