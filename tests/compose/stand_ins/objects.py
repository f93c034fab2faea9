"""An object store for the log of the broker: as much of S3 as the broker asks for, in memory and on the disk.

moto, which stands in for the S3 server, is too slow for it: clients gave up waiting for the broker. Objects are written
to a folder before they are acknowledged, and are there again after a restart.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
from bisect import bisect_left, insort
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, quote, unquote
from xml.sax.saxutils import escape

import uvicorn

_GROUP = re.compile(r"/groups/consumers/[^/]+\.json$")

Answer = tuple[int, dict[str, str], bytes]


class Object(NamedTuple):
    """One of them."""

    data: bytes
    etag: str

    @classmethod
    def of(cls, data: bytes) -> Object:
        return cls(data, f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"')


class Objects:
    """The objects of one bucket. An ASGI application; a request is served in one step, so none sees half of another."""

    def __init__(self, bucket: str, folder: Path) -> None:
        self._path = f"/{bucket}"
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        files = [path for path in folder.iterdir() if path.suffix != ".part"]
        self._objects = {unquote(path.name): Object.of(path.read_bytes()) for path in files}
        self._keys = sorted(self._objects)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        body = b""
        while (event := await receive())["type"] == "http.request":
            body += event["body"]
            if not event["more_body"]:
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = {name: values[0] for name, values in parse_qs(scope["query_string"].decode(), True).items()}
        status, fields, data = self._answer(scope["method"], scope["path"], query, headers, body)
        fields["content-length"] = fields.get("content-length", str(len(data)))
        told = [(name.encode(), value.encode()) for name, value in fields.items()]
        await send({"type": "http.response.start", "status": status, "headers": told})
        await send({"type": "http.response.body", "body": data})

    def _answer(self, method: str, path: str, query: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
        bucket, _, key = path.removeprefix("/").partition("/")
        if f"/{bucket}" != self._path:
            return 404, {}, b"<Error><Code>NoSuchBucket</Code></Error>"
        if not key:
            return self._list(query) if method == "GET" else (501, {}, b"")
        match method:
            case "PUT":
                return self._put(key, headers, body)
            case "GET" | "HEAD":
                return self._get(key, headers, method == "HEAD")
            case "DELETE":
                if self._objects.pop(key, None) is not None:
                    del self._keys[bisect_left(self._keys, key)]
                    self._file(key).unlink()
                return 204, {}, b""
        return 501, {}, b""

    def _put(self, key: str, headers: dict[str, str], body: bytes) -> Answer:
        present = self._objects.get(key)
        if "if-none-match" in headers and present is not None:
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if "if-match" in headers and (present is None or headers["if-match"] != present.etag):
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        if (led := _led(key, body)) is not None:
            self._write(key, led)
            return 412, {}, b"<Error><Code>PreconditionFailed</Code></Error>"
        self._write(key, body)
        return 200, {"etag": self._objects[key].etag}, b""

    def _write(self, key: str, body: bytes) -> None:
        part = self._file(key).with_suffix(".part")
        part.write_bytes(body)
        part.replace(self._file(key))
        if key not in self._objects:
            insort(self._keys, key)
        self._objects[key] = Object.of(body)

    def _get(self, key: str, headers: dict[str, str], head: bool) -> Answer:
        found = self._objects.get(key)
        if found is None:
            return 404, {}, b"<Error><Code>NoSuchKey</Code></Error>"
        data = found.data
        fields = {"etag": found.etag, "last-modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
        if headers.get("if-none-match") == fields["etag"]:
            return 304, fields, b""
        if "range" in headers:
            return 501, {}, b""
        return (200, fields | {"content-length": str(len(data))}, b"") if head else (200, fields, data)

    def _list(self, query: dict[str, str]) -> Answer:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        first = bisect_left(self._keys, max(prefix, query.get("start-after", "") + "\0"))
        found, folders = [], set()
        for key in takewhile(lambda key: key.startswith(prefix), self._keys[first:]):
            end = key.find(delimiter, len(prefix)) if delimiter else -1
            if end >= 0:
                folders.add(key[: end + len(delimiter)])
            else:
                data, etag = self._objects[key]
                found.append(
                    f"<Contents><Key>{escape(key)}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>"
                    f"<ETag>{escape(etag)}</ETag><Size>{len(data)}</Size></Contents>"
                )
        found += [f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(folders)]
        count = f"<KeyCount>{len(found)}</KeyCount><IsTruncated>false</IsTruncated>"
        return 200, {}, f"<ListBucketResult>{count}{''.join(found)}</ListBucketResult>".encode()

    def _file(self, key: str) -> Path:
        return self._folder / quote(key, safe="")


def _led(key: str, body: bytes) -> bytes | None:
    """The state of a consumer group with another leader, if the one that it waits for has left.

    Tansu 0.6 waits for ever, while Kafka has the members choose again. The broker reads the state once more after 412.
    """
    if not _GROUP.search(key):
        return None
    group = json.loads(body)
    forming = group["state"].get("Forming")
    if not forming or not group["members"] or forming["leader"] in (None, *group["members"]):
        return None
    forming["leader"] = next(iter(group["members"]))
    return json.dumps(group).encode()


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--bucket", required=True)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args()
    uvicorn.run(Objects(options.bucket, options.folder), host="127.0.0.1", port=options.port, log_level="warning")


if __name__ == "__main__":
    main()
