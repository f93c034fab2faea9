"""A store that is full, or does not answer, is known by what became of its writes."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from essp_common.errors import Conflict, StorageFull, Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.s3 import S3Store
from essp_common.objects.writes import Writes
from essp_common.runtime.troubles import LASTS_S, Kind
from tests.harness.fleet import Clock


def fail(writes: Writes, error: Exception) -> None:
    with pytest.raises(type(error)), writes.one():
        raise error


def test_full_is_told_at_once_and_until_a_write_works() -> None:
    clock = Clock()
    writes = Writes(clock)
    fail(writes, StorageFull("/data: No space left on device"))
    assert "No space left on device; free some" in writes.troubles()[Kind.STORAGE_FULL]
    with writes.one():
        pass
    assert not writes.troubles()


def test_what_nobody_has_met_for_minutes_may_be_over() -> None:
    clock = Clock()
    writes = Writes(clock)
    fail(writes, StorageFull("full"))
    clock.now_s += 3600
    assert not writes.troubles()


def test_a_store_that_fails_for_a_while_is_told_of() -> None:
    clock = Clock()
    writes = Writes(clock)
    fail(writes, Unavailable("connection refused"))
    assert not writes.troubles(), "once is not a condition"
    clock.now_s += LASTS_S
    fail(writes, Unavailable("connection refused"))
    assert "connection refused" in writes.troubles()[Kind.STORAGE_SILENT]
    fail(writes, Conflict("there is one"))
    assert not writes.troubles(), "that was an answer"


def test_a_small_write_that_does_not_end_is_told_of() -> None:
    clock = Clock()
    writes = Writes(clock)
    with writes.one(small=False):
        clock.now_s += 3600
        assert not writes.troubles(), "a large one takes its time"
    with writes.one():
        clock.now_s += LASTS_S
        assert Kind.STORAGE_SILENT in writes.troubles()
    assert not writes.troubles()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_known_in_every_folder_of_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    store = DirectoryStore(str(tmp_path))

    def no_room(descriptor: int) -> None:
        raise OSError(code, os.strerror(code))

    with monkeypatch.context() as broken:
        broken.setattr(os, "fsync", no_room)
        with pytest.raises(StorageFull, match=os.strerror(code)):
            store.below("jobs/one").put("weights", b"123")
    assert Kind.STORAGE_FULL in store.troubles()
    store.put("other", b"1")
    assert not store.below("jobs/one").troubles()


def test_a_full_bucket_is_told_from_a_server_that_fails() -> None:
    from botocore.exceptions import ClientError

    class Full:
        def put_object(self, **request: object) -> None:
            answer: Any = {"Error": {"Code": "XMinioStorageFull"}, "ResponseMetadata": {"HTTPStatusCode": 507}}
            raise ClientError(answer, "PutObject")

    store = S3Store(Full(), "bucket")
    with pytest.raises(StorageFull):
        store.put("key", b"1")
    assert Kind.STORAGE_FULL in store.below("folder").troubles()
