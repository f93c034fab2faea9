"""Checks object stores: do they exist, can they be read and written, is there room, do they support conditional writes?

Fences rely on conditional writes.
"""

from __future__ import annotations

import email.utils
import http.client
import os
import shutil
import time
import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable
from urllib.parse import parse_qs, urlsplit

from essp.doctor.finding import Finding, clock, fail, ok, unreachable, warn
from essp_common.errors import ConfigError, Conflict, EsspError, NotFound
from essp_common.objects.port import ObjectStore
from essp_common.runtime.addresses import address_of, shown_address
from essp_common.wiring import checked_scheme, open_store, stores_of

S3, FILES = "s3", "files"
_DATA = b"0123456789"
_ROOM_BYTES = 2**30
"""A few checkpoints of a network of typical size."""
_ANSWER_S = 5.0


@runtime_checkable
class _Marking(Protocol):
    """A store that marks each object with the write that created it, as the S3 store does. Its client library may be
    missing."""

    def keeps_marks(self, key: str) -> bool:
        """Whether an object written with `if_absent` records which write created it."""


@dataclass(slots=True)
class Writable:
    """Whether any store is writable. Stores that hold only videos need not be."""

    found: bool = False


def examine(roots: tuple[str, ...]) -> Iterator[Finding]:
    """Check the stores in ESSP_STORES."""
    if not roots:
        what = "ESSP_STORES is empty, so jobs can neither read videos nor save results"
        yield fail(
            FILES, what, "name a store in it, as file:///data, or leave it unset for all folders of this machine"
        )
    writable = Writable()
    for root in roots:
        try:
            yield from _store(root, writable)
        except ConfigError as error:  # a problem of one store; the others are still examined
            yield fail(S3, str(error), "change the setting that the message names")
        except EsspError as error:
            yield fail(S3, f"{root.partition('?')[0]}: {error}", "check the server and its log")
    if roots and not writable.found:
        yield fail(S3, "no store is writable, so jobs cannot save results", "grant the right to write to one")


def _store(root: str, writable: Writable) -> Iterator[Finding]:
    scheme = checked_scheme("ESSP_STORES: object store", stores_of(root), root)
    check = {"s3": _s3, "file": _directory}.get(scheme, _read_only)
    yield from check(root, writable)


def _directory(root: str, writable: Writable) -> Iterator[Finding]:
    path = root.removeprefix("file://").partition("?")[0] or "/"
    if not os.path.isdir(path):
        yield fail(FILES, f"the folder {path} does not exist", "create or mount it, or remove it from ESSP_STORES")
    elif not os.access(path, os.R_OK | os.X_OK):
        yield fail(FILES, f"{path} cannot be read by user {os.getuid()}", "change its owner or mode")
    else:
        folder = _writable_folder(path)
        writable.found |= folder is not None
        yield ok(FILES, f"{path} is read-only") if folder is None else _room(path, folder)


def _writable_folder(root: str) -> str | None:
    """A writable folder in a root: the root itself, or the current folder or the home folder below it. If no root is
    configured, the root is `/`, where users cannot write."""
    here = [os.getcwd()] if os.path.exists(".") else []
    below = [folder for folder in (*here, os.path.expanduser("~")) if Path(folder).is_relative_to(root)]
    return next((folder for folder in (root, *below) if os.access(folder, os.W_OK)), None)


def _room(root: str, folder: str) -> Finding:
    """Whether a writable folder has room for what jobs save: checkpoints, scores and models."""
    free = shutil.disk_usage(folder).free
    where = root if folder == root else f"{folder} in {root}"
    what = f"{where} is writable and has {free >> 20:,} MiB free"
    if free < _ROOM_BYTES:
        return warn(FILES, what, "remove what is no longer needed there, or have jobs write to another store")
    return ok(FILES, what)


def _read_only(root: str, writable: Writable) -> Iterator[Finding]:
    """Whether the store answers. The requested object does not exist, but "not found" is an answer."""
    bare = shown_address(root.partition("?")[0])
    try:
        with suppress(NotFound):
            open_store(root).head(".essp-doctor")
    except EsspError as error:
        yield fail(FILES, f"{bare}: {error}", "see that the address and the rights are right")
    else:
        yield ok(FILES, f"{bare} answers, and is read-only")


def _s3(root: str, writable: Writable) -> Iterator[Finding]:
    query = root.partition("?")[2]
    bare = shown_address(root.partition("?")[0])
    endpoint = parse_qs(query).get("endpoint", [""])[0]
    if endpoint:
        try:
            address = address_of(endpoint)
        except ValueError as error:
            yield fail(S3, f"{bare}: its endpoint {error}", "correct the endpoint in ESSP_STORES")
            return
        port = 443 if address.scheme == "https" else 80
        deaf = unreachable(S3, address.netloc, port, "the endpoint in ESSP_STORES")
        if deaf is not None:
            yield deaf
            return
        yield from _date(endpoint)
    try:
        store = open_store(root)
        next(store.list(".essp-doctor/"), None)
    except EsspError as error:
        yield fail(S3, f"{bare}: {error}", "if the bucket is missing, essp setup --buckets creates it")
        return
    key = f".essp-doctor/{uuid.uuid4().hex}"
    try:
        yield from _round_trip(store, key, bare)
        writable.found = True
    except ConfigError as error:
        yield warn(S3, f"{bare} is read-only ({error})", "enough for videos; jobs need another store")
    finally:
        _remove(store, key)


def _round_trip(store: ObjectStore, key: str, where: str) -> Iterator[Finding]:
    """Write, read and delete an object, through the adapter that services use."""
    began = time.monotonic()
    store.put(key, _DATA, if_absent=True)
    try:
        store.put(key, _DATA, if_absent=True)
    except Conflict:
        pass
    else:
        yield fail(
            S3,
            f"{where}: it accepted two writes that both require the object to be absent (If-None-Match: *)",
            "use a server with conditional writes, or two masters could lead at once",
        )
    if isinstance(store, _Marking) and not store.keeps_marks(key):
        yield warn(
            S3,
            f"{where}: it keeps no metadata of objects, so after a write whose answer is lost it is unknown whose "
            "object is there, and what waits for it keeps waiting",
            "let gateways and proxies pass the x-amz-meta- headers",
        )
    if store.get(key, 2, 3) != _DATA[2:5]:
        yield fail(S3, f"{where}: a range read returned other bytes", "remove proxies that ignore the Range header")
    store.delete(key)
    try:
        store.head(key)
    except NotFound:
        took = time.monotonic() - began
        yield ok(S3, f"{where}: written once, read in part, deleted in {1000 * took:.0f} ms")
    else:
        yield fail(S3, f"{where}: a deleted object still exists", "use a store with strong consistency")


def _remove(store: ObjectStore, key: str) -> None:
    with suppress(EsspError):  # the write failed, too, or a finding already reports it
        store.delete(key)


def _date(endpoint: str) -> Iterator[Finding]:
    """Compare the clocks by the Date header, which is in every answer, even without credentials."""
    parts = urlsplit(endpoint)
    host, port = parts.hostname or "", parts.port
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = kind(host, port, timeout=_ANSWER_S)
    asked = time.time()
    try:
        connection.request("HEAD", "/")
        date = connection.getresponse().getheader("Date")
        theirs = None if date is None else email.utils.parsedate_to_datetime(date).timestamp()
    except (OSError, http.client.HTTPException, ValueError) as error:
        yield warn(
            "clock",
            f"{shown_address(endpoint)} does not report the time ({error})",
            "check scheme and port of the endpoint",
        )
        return
    finally:
        connection.close()
    if theirs is not None:
        # The header is truncated to whole seconds, half a second on average.
        yield clock("S3", theirs + 0.5, asked)
