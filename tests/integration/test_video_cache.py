"""A decoder that keeps compressed video: it is read from the store once, whichever child reads, and never once it has
changed."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from prometheus_client import REGISTRY

from essp_common.pb.v1.messages_pb2 import DecodeSeed
from essp_common.wiring import open_store
from essp_engine.decoding.block_cache import BlockCache
from essp_engine.decoding.sandbox import Sandbox
from essp_engine.decoding.settings import DecodingSettings
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.decode_units import FRAMES, kinds, numbers, unit

pytestmark = pytest.mark.integration

_FILE_BYTES = 300_000


class Counts:
    """Bytes that were read since the last time.

    A child tells of what it read from the store without waiting: all of it is counted when its sandbox is closed.
    """

    def __init__(self) -> None:
        self._known = self._now()

    def taken(self) -> tuple[float, float]:
        """From what is kept, and from the store."""
        before, self._known = self._known, self._now()
        return self._known[0] - before[0], self._known[1] - before[1]

    def _now(self) -> tuple[float, float]:
        hit, miss = (
            REGISTRY.get_sample_value("essp_video_cache_bytes_total", {"what": what}) or 0.0 for what in ("hit", "miss")
        )
        return hit, miss


def asked(folder: Path, uri: str, etag: str) -> DecodeSeed:
    """Clips of the video, as the catalog of that version describes it."""
    work = unit(folder, "a.mp4", 0, 20)
    work.video.uri, work.video.etag, work.video.size_bytes = uri, etag, 0
    return work


def padded(path: Path) -> Path:
    """The same video in a file of a size that all have: a box at its end says that it is free."""
    missing = _FILE_BYTES - path.stat().st_size
    with path.open("ab") as file:
        file.write(missing.to_bytes(4, "big") + b"free" + bytes(missing - 8))
    return path


def test_a_video_is_read_from_its_store_once(empty_s3_url: str, tmp_path: Path) -> None:
    pictures = list(numbered(FRAMES))
    path = padded(write_video(tmp_path / "a.mp4", pictures, Encoding()))
    store = open_store(empty_s3_url)
    etag = store.put_file("a.mp4", str(path)).etag
    options = DecodingSettings(stores=(empty_s3_url,)).sandbox()
    work, counts, kept = asked(tmp_path, store.uri("a.mp4"), etag), Counts(), BlockCache(2**24)
    expected = [[0, 1, 2, 3, 4], [20, 21, 22, 23, 24]]
    with closing(Sandbox(options, kept)) as first:
        assert [numbers(outcome) for outcome in first.decode(work)] == expected
    kept_before, read = counts.taken()
    assert (kept_before, read > 0) == (0, True)
    with closing(Sandbox(options, kept)) as other:
        assert [numbers(outcome) for outcome in other.decode(work)] == expected
        assert counts.taken() == (read, 0), "another child asks the store for nothing but the ETag"

        padded(write_video(path, pictures[::-1], Encoding()))
        changed = store.put_file("a.mp4", str(path)).etag
        assert kinds(other.decode(work)) == ["changed", "changed"]
        outcomes = other.decode(asked(tmp_path, store.uri("a.mp4"), changed))
        assert [numbers(outcome) for outcome in outcomes] == [[39 - number for number in clip] for clip in expected]
    assert counts.taken() == (0, read)


def test_a_small_cache_keeps_what_fits(empty_s3_url: str, tmp_path: Path) -> None:
    path = write_video(tmp_path / "a.mp4", numbered(FRAMES), Encoding())
    store = open_store(empty_s3_url)
    etag = store.put_file("a.mp4", str(path)).etag
    options = DecodingSettings(stores=(empty_s3_url,)).sandbox()
    work, counts = asked(tmp_path, store.uri("a.mp4"), etag), Counts()
    for _ in range(2):
        with closing(Sandbox(options, BlockCache(10))) as sandbox:
            assert kinds(sandbox.decode(work)) == ["clip", "clip"]
        assert counts.taken() == (0, path.stat().st_size)
