"""Credentials of S3 that are changed while a process runs, and a bucket that is gone: told of, waited for, and taken up
again, and no object is blamed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from essp.servers.servers import S3Server
from essp_common.errors import ConfigError, NotFound, Unavailable
from essp_common.objects.port import NoBucket, ObjectStore, StoreRefuses
from essp_common.objects.s3 import S3Store
from essp_common.wiring import open_store
from tests.conftest import BUCKET
from tests.faults.s3_front import S3Front

pytestmark = pytest.mark.integration

CALLS: tuple[Callable[[ObjectStore], object], ...] = (
    lambda store: store.put("a", b"1"),
    lambda store: store.put("b", b"1", if_absent=True),
    lambda store: store.get("a"),
    lambda store: store.head("a"),
    lambda store: store.open("a"),
    lambda store: list(store.list()),
    lambda store: store.delete("b"),
)


def test_new_keys_in_the_shared_file_are_taken_up(
    s3_server: S3Server, unique: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys in environment variables would be those of the start for ever."""
    file = tmp_path / "credentials"
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))

    def keys(name: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {name}\naws_secret_access_key = s3cret\n")

    keys("one")
    with S3Front(s3_server.port) as front:
        url = f"s3://{BUCKET}/{unique}?endpoint=http://127.0.0.1:{front.port}"
        store = open_store(url)
        for call in CALLS:
            call(store)
        front.known_key = "two"
        for call in CALLS:
            with pytest.raises(Unavailable, match=r"InvalidAccessKeyId; check AWS_ACCESS_KEY_ID.*read again"):
                call(store.below("folder"))
        with pytest.raises(StoreRefuses, match="InvalidAccessKeyId"):  # whoever starts with them is told
            open_store(url).head("a")
        keys("two")
        with pytest.raises(Unavailable):
            store.head("a")
        for call in CALLS:
            call(store)
            call(store.below("folder"))


def test_a_bucket_that_vanishes_is_not_taken_for_missing_objects(s3_server: S3Server, unique: str) -> None:
    bucket = unique.replace(".", "-")
    s3_server.create_bucket(bucket)
    store = open_store(s3_server.store(bucket))
    assert isinstance(store, S3Store)
    store.put("a", b"1")
    store.delete("a")
    with pytest.raises(NotFound):
        store.head("a")
    store._client.delete_bucket(Bucket=bucket)
    for call in CALLS:
        with pytest.raises(Unavailable, match=f"there is no bucket {bucket}; create it: aws s3 mb"):
            call(store)
    with pytest.raises(NoBucket, match=f"there is no bucket {bucket}; create it"):
        open_store(s3_server.store(bucket)).head("a")
    assert store.create_bucket()
    for call in CALLS:
        call(store)
    store.delete("a")
    store._client.delete_bucket(Bucket=bucket)


@pytest.mark.parametrize("code", ["AccessDenied", "SlowDown", "ExpiredToken"])
def test_what_a_read_of_the_size_alone_does_not_say_is_asked_for(s3_server: S3Server, unique: str, code: str) -> None:
    with S3Front(s3_server.port, about=unique) as front:
        store = open_store(f"s3://{BUCKET}/{unique}?endpoint=http://127.0.0.1:{front.port}")
        front.status({"AccessDenied": 403, "SlowDown": 503, "ExpiredToken": 400}[code], 20, code)
        kind = ConfigError if code == "AccessDenied" else Unavailable
        said = {"AccessDenied": "let these credentials list, read and write", "ExpiredToken": "renew the credentials"}
        with pytest.raises(kind, match=said.get(code, "503")) as caught:
            store.head("a")
        assert not isinstance(caught.value, StoreRefuses), "it may be about this one"
