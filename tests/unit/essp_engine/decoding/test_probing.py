"""What the child that reads videos answers for a file whose system fails."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from essp_common.errors import BadVideo
from essp_common.objects.block_sums import HEAD_BYTES, SMALLEST_BLOCK, BlockSums, checksum
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.ranged import RangedFile
from essp_common.wiring import Stores
from essp_engine.decoding import probing
from essp_engine.decoding.probing import ProbeOptions, Prober, _facts


@dataclass(frozen=True)
class Facts:
    frames: int = 7


def failing(times: int, number: int) -> Callable[[str], Facts]:
    """Reads a video after so many errors of the system, as FFmpeg tells of them."""
    left = [number] * times

    def probe(path: str) -> Facts:
        if left:
            raise BadVideo("the file cannot be read to its end") from OSError(left.pop(), os.strerror(number))
        return Facts()

    return probe


@pytest.fixture
def video(tmp_path: Path) -> str:
    (tmp_path / "a.mp4").write_bytes(b"video")
    return f"file://{tmp_path}/a.mp4"


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE])
def test_an_error_that_passes_is_none_of_the_video(video: str, number: int) -> None:
    stores = Stores(("file:///",))
    assert _facts(video, stores, failing(1, number)) == {"facts": {"frames": 7}, "error": None}
    # FFmpeg says the same of a file that ends early.
    assert _facts(video, stores, failing(9, number))["error"] == "damaged: the file cannot be read to its end"
    assert _facts(video, stores, failing(1, errno.EINVAL))["error"] == "damaged: the file cannot be read to its end"


def test_one_that_stays_is_that_of_the_store(video: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_unreadable", lambda path: f"{path}: Stale file handle")
    answer = _facts(video, Stores(("file:///",)), failing(9, errno.ESTALE))
    assert answer == {"unavailable": f"{video.removeprefix('file://')}: Stale file handle"}


def test_what_a_store_gave_once_makes_no_file_unusable(video: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have been damaged on its way."""
    monkeypatch.setattr(DirectoryStore, "local_path", lambda store, key: None)
    stores = Stores(("file:///",))
    assert _facts(video, stores, failing(1, errno.EINVAL)) == {"facts": {"frames": 7}, "error": None}
    assert _facts(video, stores, failing(2, errno.EINVAL))["error"] == "damaged: the file cannot be read to its end"


def test_facts_hold_checksums_of_what_was_read(video: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stores, known = Stores(("file:///",)), [checksum(b"video")]
    assert _facts(video, stores, failing(0, 0), sums=True)["facts"]["sums"] == BlockSums.of(HEAD_BYTES, known).packed()
    ranged = io.BufferedReader(RangedFile(5, lambda start, length: b"video"[start : start + length]))
    monkeypatch.setattr(DirectoryStore, "local_path", lambda store, key: None)
    monkeypatch.setattr(DirectoryStore, "open", lambda store, key: ranged)
    found = _facts(video, stores, failing(0, 0), sums=True)["facts"]["sums"]
    assert found == BlockSums.of(SMALLEST_BLOCK, known).packed()


@pytest.mark.processes
@pytest.mark.usefixtures("started_children")
def test_children_end_with_the_interpreter_too(tmp_path: Path) -> None:
    """It may have freed the connection before what holds it is left."""
    file = f"file://{tmp_path / 'none.mp4'}"
    with Prober(("file:///",), ProbeOptions()) as prober:
        next(prober.read([file, file]))
        [child] = prober._children
        child.channel.close()
    assert child.process.returncode is not None
