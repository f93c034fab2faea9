"""What the S3 server on a folder takes, and what it refuses: one request on a pair of sockets, without a server."""

from __future__ import annotations

import errno
import hashlib
import os
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as some
from localbucket import S3Handler

from essp.servers.folder_s3 import SKEW, Handler, keys_in
from tests.harness.refused import refused

KEYS = Credentials("essp", "right")
OTHER = hashlib.sha256(b"other").hexdigest()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bucket").mkdir()
    return tmp_path


def answer(folder: Path, head: str, body: bytes = b"", keys: Credentials | None = None) -> tuple[int, str]:
    """The status and the text of the answer to a request, after which the client says no more."""
    handler: Any = type("Here", (Handler,), {"data_root": folder, "credentials": keys})
    client, server = socket.socketpair()
    with client, server:
        client.sendall(head.encode() + b"\r\n" + body)
        client.shutdown(socket.SHUT_WR)
        handler(server, ("client", 0), None)
        server.shutdown(socket.SHUT_WR)
        with client.makefile("rb") as file:
            text = file.read().decode()
    return int(text.split()[1]), text


@pytest.mark.parametrize(
    ("headers", "body", "code"),
    [
        ("Content-Length: 9\r\n", b"half", "IncompleteBody"),
        ("Content-Length: 9\r\nContent-Encoding: aws-chunked\r\n", b"4\r\nhalf", "IncompleteBody"),
        (
            "Content-Length: 14\r\nContent-Encoding: aws-chunked\r\nx-amz-decoded-content-length: 9\r\n",
            b"4\r\nhalf\r\n0\r\n\r\n",
            "IncompleteBody",
        ),
        (f"Content-Length: 4\r\nx-amz-content-sha256: {OTHER}\r\n", b"half", "XAmzContentSHA256Mismatch"),
        ("Content-Length: -1\r\n", b"half", "InvalidArgument"),
        ("Content-Length: many\r\n", b"half", "InvalidArgument"),
    ],
)
def test_body_that_is_not_the_announced_one_replaces_nothing(
    folder: Path, headers: str, body: bytes, code: str
) -> None:
    (folder / "bucket" / "key").write_bytes(b"whole")
    status, text = answer(folder, f"PUT /bucket/key HTTP/1.1\r\n{headers}", body)
    assert (status, code in text) == (400, True), text
    assert (folder / "bucket" / "key").read_bytes() == b"whole"


@pytest.mark.parametrize("method", ["OPTIONS", "GET", "PUT"])
def test_web_page_has_no_access(folder: Path, method: str) -> None:
    (folder / "bucket" / "key").write_bytes(b"mine")
    status, text = answer(
        folder, f"{method} /bucket/key HTTP/1.1\r\nOrigin: http://evil\r\nContent-Length: 3\r\n", b"new"
    )
    assert (status, "Access-Control" in text) == (403, False), text
    assert (folder / "bucket" / "key").read_bytes() == b"mine"


def test_connection_of_a_silent_client_is_closed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Handler, "timeout", 0.01)
    handler: Any = type("Here", (Handler,), {"data_root": folder})
    client, server = socket.socketpair()
    with client, server:
        client.sendall(b"GET /bucket/key HTTP/1.1\r\n")
        handler(server, ("client", 0), None)  # returns


@pytest.mark.parametrize(
    ("headers", "body"),
    [
        ("Content-Length: 3\r\n", b"new"),
        (
            "Content-Length: 13\r\nContent-Encoding: aws-chunked\r\nx-amz-decoded-content-length: 3\r\n",
            b"3\r\nnew\r\n0\r\n\r\n",
        ),
        ("Transfer-Encoding: chunked\r\n", b"3\r\nnew\r\n0\r\n\r\n"),
    ],
)
def test_whole_body_is_stored(folder: Path, headers: str, body: bytes) -> None:
    assert answer(folder, f"PUT /bucket/key HTTP/1.1\r\n{headers}", body)[0] == 200
    assert (folder / "bucket" / "key").read_bytes() == b"new"


def test_objects_are_kept_where_files_have_no_attributes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("getxattr", "setxattr"):  # as on macOS
        monkeypatch.delattr(f"os.{name}")
    head = "PUT /bucket/key HTTP/1.1\r\nContent-Length: 3\r\nx-amz-meta-mark: 1\r\n"
    assert answer(folder, head, b"new")[0] == answer(folder, "GET /bucket/key HTTP/1.1\r\n")[0] == 200


@pytest.mark.parametrize("key", ["key/below", "n" * 300])
def test_key_that_is_no_name_of_a_file_is_refused(folder: Path, key: str) -> None:
    (folder / "bucket" / "key").write_bytes(b"whole")
    status, text = answer(folder, f"PUT /bucket/{key} HTTP/1.1\r\nContent-Length: 3\r\n", b"new")
    assert (status, "InvalidArgument" in text) == (400, True), text


@pytest.mark.parametrize(("request_line", "body"), [("PUT /bucket/key", b"new"), ("POST /bucket/key?uploads", b"")])
def test_full_disk_is_answered(folder: Path, monkeypatch: pytest.MonkeyPatch, request_line: str, body: bytes) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    for name in ("os.replace", "os.mkdir"):
        monkeypatch.setattr(name, full)
    status, text = answer(folder, f"{request_line} HTTP/1.1\r\nContent-Length: {len(body)}\r\n", body)
    assert (status, "No space left on device" in text) == (500, True), text
    assert not list((folder / "bucket").iterdir())


@pytest.mark.parametrize(("wanted", "status"), [("*", 200), ('"0", "{}"', 200), ('"0"', 412)])
def test_object_is_read_if_it_is_the_wanted_one(folder: Path, wanted: str, status: int) -> None:
    (folder / "bucket" / "key").write_bytes(b"other")
    etag = hashlib.md5(b"other").hexdigest()
    assert answer(folder, f"GET /bucket/key HTTP/1.1\r\nIf-Match: {wanted.format(etag)}\r\n")[0] == status


@pytest.mark.parametrize(
    ("age", "code"),
    [
        (timedelta(), ""),
        (SKEW - timedelta(minutes=1), ""),
        (SKEW + timedelta(minutes=1), "RequestTimeTooSkewed"),
        (-SKEW - timedelta(minutes=1), "RequestTimeTooSkewed"),
    ],
)
def test_signature_is_taken_only_while_it_is_new(
    folder: Path, monkeypatch: pytest.MonkeyPatch, age: timedelta, code: str
) -> None:
    (folder / "bucket" / "key").write_bytes(b"secret")
    signed_at = datetime.now(UTC) - age
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_: signed_at)
    request = AWSRequest("GET", "http://here/bucket/key", headers={"Host": "here"})
    S3SigV4Auth(KEYS, "s3", "us-east-1").add_auth(request)
    head = "".join(f"{name}: {value}\r\n" for name, value in request.headers.items())
    status, text = answer(folder, f"GET /bucket/key HTTP/1.1\r\n{head}", keys=KEYS)
    assert (status, code in text) == (403 if code else 200, True), text


@pytest.mark.parametrize("authorization", ["", "Authorization: AWS4-HMAC-SHA256 nonsense\r\n"])
def test_request_without_a_signature_is_refused(folder: Path, authorization: str) -> None:
    assert answer(folder, f"GET / HTTP/1.1\r\n{authorization}", keys=KEYS)[0] == 403


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("[default]\naws_access_key_id = essp\naws_secret_access_key =\n", "empty"),
        ("[default]\naws_access_key_id = essp\n", "unreadable"),
        ("[other]\n", "unreadable"),
        ("no section", "unreadable"),
    ],
)
def test_file_without_both_keys_is_refused(tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "credentials").write_text(text)
    with refused("--credentials", code):
        keys_in(tmp_path / "credentials")


PATHS = some.lists(some.sampled_from(["a", "b", "a b"]), min_size=1, max_size=4).map("/".join)


def listed(handler: Any, bucket: Path, prefix: str, delimiter: str, page: int) -> list[tuple[list[str], list[str]]]:
    """The keys and common prefixes of each page."""
    pages, marker = [], ""
    while True:
        asked = bucket, prefix, delimiter, marker[2:], marker.startswith("P:"), page
        contents, prefixes, truncated, marker = handler._list_entries(handler.__new__(handler), *asked)
        assert all(path == bucket / key for key, path in contents)
        pages.append(([key for key, _ in contents], prefixes))
        if not truncated:
            return pages


@given(
    some.lists(PATHS, max_size=8),
    PATHS | some.sampled_from(["", "a/", "a/a/", "/", "a//", "../", "bucket/", "./", "./a/", "a\0/"]),
    some.sampled_from(["", "/", "b/"]),
    some.integers(1, 4),
)
def test_pages_are_those_of_a_walk_over_the_whole_bucket(
    tmp_path_factory: pytest.TempPathFactory, keys: list[str], prefix: str, delimiter: str, page: int
) -> None:
    bucket = tmp_path_factory.mktemp("store") / "bucket"
    bucket.mkdir()
    (bucket.parent / "secret").write_bytes(b"")
    for key in keys:
        (bucket / key).mkdir(parents=True, exist_ok=True)
        (bucket / key / "file").write_bytes(b"")
    assert listed(Handler, bucket, prefix, delimiter, page) == listed(S3Handler, bucket, prefix, delimiter, page)


def test_a_listing_reads_only_the_folder_that_its_prefix_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in ("runs/one/spec.json", "runs/two/spec.json", "videos/a.mp4"):
        (folder / "bucket" / key).parent.mkdir(parents=True, exist_ok=True)
        (folder / "bucket" / key).write_bytes(b"")
    walk, read = os.walk, set[str]()

    def noted(top: Path) -> Iterator[tuple[str, list[str], list[str]]]:
        for found in walk(top):
            read.add(found[0])
            yield found

    monkeypatch.setattr(os, "walk", noted)
    status, text = answer(folder, "GET /bucket?list-type=2&prefix=runs/o HTTP/1.1\r\nHost: here\r\n")
    assert (status, text.count("<Key>"), "runs/one/spec.json" in text) == (200, 1, True)
    assert {str(folder / "bucket" / name) for name in ("runs", "runs/one", "runs/two")} == read
