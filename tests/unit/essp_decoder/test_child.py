"""What a child answers when reads of its videos fail; in this process."""

from __future__ import annotations

import io
from bisect import bisect_right
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import pytest

from essp_common.errors import Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo, StoreRefuses
from essp_common.objects.ranged import RangedFile
from essp_common.pb.v1.messages_pb2 import DecodeSeed, Seek
from essp_common.runtime.shared_slots import SharedMemory
from essp_common.video import codec
from essp_common.video.probe import probe
from essp_common.video.synthetic import Encoding, write_video
from essp_decoder import child as child_module
from essp_decoder.child import Child
from essp_decoder.config import DecoderSettings
from essp_decoder.protocol import Request, clip_shapes, slot_bytes
from essp_decoder.service import sandbox_options
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
    slot = memory.take(slot_bytes(shape, work.recipe.codec))
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
    config = sandbox_options(DecoderSettings(stores=(f"file://{noise.parent}",))).config
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
    config = sandbox_options(DecoderSettings(stores=(f"file://{noise.parent}",))).config
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
            child._drop(works[0].video)
            if failing and not hiccups.failed:
                break
