"""An S3 server whose buckets are folders: localbucket, and what ESSP needs beyond it.

    python -m essp.servers.folder_s3 --host HOST --port PORT FOLDER [--credentials FILE]

localbucket stores objects as files and writes them atomically. This adds what makes its store one that ESSP can rely
on: metadata, which tells whose a write is whose answer was lost; `If-Match`, so that an object that changes while it is
read is noticed; a check of each body, so that a client that dies while it sends one replaces nothing; and keys. With
`--credentials`, an AWS credentials file, each request must be signed with the keys of its profile `default`, not longer
ago than `SKEW`; without it, any keys are accepted. Web pages are refused (localbucket would let each one that is open
in a browser on this machine read and write). Stored objects are neither verified nor replicated.
"""

from __future__ import annotations

import argparse
import configparser
import errno
import hashlib
import hmac
import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from localbucket import S3Error, S3Handler, etag_matches, object_etag

from essp_common.errors import ConfigError
from essp_common.runtime.listening import listening

_META = "x-amz-meta-"
_ATTRIBUTE = "user.essp.metadata"
"""The extended attribute of a file that holds the metadata of its object."""
SKEW = timedelta(minutes=15)
"""How far the time of a signature may be from now, as in S3: a request that was recorded is useless after that."""
_LENGTHS = ("Content-Length", "x-amz-decoded-content-length")
"""The headers that say how long a body is. The second one counts what is inside aws-chunked encoding."""
_NO_KEY = frozenset({errno.EEXIST, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG})
"""Errors of the file system for a key that cannot be the name of a file, by itself or because of other objects."""
_SHA256 = re.compile("[0-9a-f]{64}")
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/\d{8}/(?P<region>[^/]+)/s3/aws4_request, ?"
    r"SignedHeaders=(?P<headers>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)


class Handler(S3Handler):  # type: ignore[misc]
    """Handles one request."""

    timeout = 60
    """Seconds after which a connection is closed whose client sends nothing."""
    credentials: Credentials | None = None
    """The keys that requests must be signed with."""

    def parse_request(self) -> bool:
        """Read the request line and headers, and refuse a request from a web page or without the right signature."""
        if not super().parse_request():
            return False
        if "Origin" in self.headers:
            del self.headers["Origin"]  # which localbucket would allow in its answer
            self._send_error(S3Error(HTTPStatus.FORBIDDEN, "AccessForbidden", "Web pages have no access."))
            return False
        code = "" if self.credentials is None else _refusal(self, self.credentials)
        if code:
            self._send_error(
                S3Error(HTTPStatus.FORBIDDEN, code, "The signature of the request is missing, wrong or old.")
            )
        return not code

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: there are many requests a second."""

    def _get(self, bucket: str, key: str, include_body: bool) -> None:
        wanted = self.headers.get("If-Match")
        if wanted is not None:
            path = self._object_path(bucket, key)
            if path.is_file() and not etag_matches(wanted, object_etag(path)):
                raise self._precondition_failed_error()
        super()._get(bucket, key, include_body)

    def _put(self, bucket: str, key: str) -> None:
        with _errors_answered():
            super()._put(bucket, key)

    def _post_request(self, bucket: str, key: str) -> None:
        with _errors_answered():
            super()._post_request(bucket, key)

    def _list_entries(
        self, bucket_dir: Path, prefix: str, delimiter: str, marker: str, marker_is_prefix: bool, max_keys: int
    ) -> tuple[list[tuple[str, Path]], list[str], bool, str]:
        """Read the folder that the prefix names, where localbucket reads the whole bucket for each page."""
        parent, slash, name = prefix.rpartition("/")
        folder = parent + slash
        if (folder and not _is_folder(parent)) or (marker and not marker.startswith(folder)):
            parent, folder, name = "", "", prefix
        contents, prefixes, truncated, last = super()._list_entries(
            bucket_dir / parent, name, delimiter, marker.removeprefix(folder), marker_is_prefix, max_keys
        )
        contents = [(folder + key, path) for key, path in contents]
        kind, key = last[:2], last[2:]  # `K:` or `P:`, and a key or common prefix
        return contents, [folder + one for one in prefixes], truncated, last and kind + folder + key

    def _read_body(self) -> bytes:
        """Refuse a body that is not the one announced, which localbucket would store."""
        lengths = [self.headers[name] for name in _LENGTHS if name in self.headers]
        if not all(length.isdecimal() for length in lengths):
            raise S3Error(HTTPStatus.BAD_REQUEST, "InvalidArgument", "The length of the body is not a number.")
        body = bytes(super()._read_body())
        # localbucket itself finds the end of a chunked body.
        if lengths and "Transfer-Encoding" not in self.headers and len(body) != int(lengths[-1]):
            raise S3Error(HTTPStatus.BAD_REQUEST, "IncompleteBody", "The body is not as long as its headers say.")
        digest = self.headers.get("x-amz-content-sha256", "")
        if _SHA256.fullmatch(digest) and hashlib.sha256(body).hexdigest() != digest:
            raise S3Error(HTTPStatus.BAD_REQUEST, "XAmzContentSHA256Mismatch", "The body has another SHA-256.")
        return body

    def _send_file(self, status: HTTPStatus, file: BinaryIO, start: int, length: int, headers: Any, body: bool) -> None:
        with suppress(OSError, AttributeError):  # none is stored; this file system, or Python on this system, has none
            headers |= json.loads(os.getxattr(file.fileno(), _ATTRIBUTE))
        super()._send_file(status, file, start, length, headers, body)

    def _write_object(self, bucket: str, key: str, write: Any) -> str:
        metadata = {name: value for name, value in self.headers.items() if name.lower().startswith(_META)}

        def write_both(file: BinaryIO) -> str:
            if metadata:
                with suppress(OSError, AttributeError):
                    os.setxattr(file.fileno(), _ATTRIBUTE, json.dumps(metadata).encode())
            return str(write(file))

        return str(super()._write_object(bucket, key, write_both))


def _is_folder(path: str) -> bool:
    """Whether this part of a key is the path of a folder inside a bucket, written as the file system writes it."""
    return path == os.path.normpath(path) and not path.startswith(("/", ".")) and "\0" not in path


@contextmanager
def _errors_answered() -> Iterator[None]:
    """Answer what the file system refuses, instead of closing the connection, which clients take for an outage."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_KEY:
            why = "A part of the key is too long, or is the key of another object."
            raise S3Error(HTTPStatus.BAD_REQUEST, "InvalidArgument", why) from error
        raise S3Error(HTTPStatus.INTERNAL_SERVER_ERROR, "InternalError", str(error.strerror)) from error


def _refusal(handler: Handler, credentials: Credentials) -> str:
    """Return S3's code for a missing, wrong or old signature; empty if it is right."""
    found = _AUTHORIZATION.fullmatch(handler.headers.get("Authorization", ""))
    if found is None:
        return "AccessDenied"
    if found["key"] != credentials.access_key:
        return "InvalidAccessKeyId"
    signed_at = handler.headers.get("X-Amz-Date", "")
    try:
        age = datetime.now(UTC) - datetime.strptime(signed_at, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return "AccessDenied"
    if abs(age) > SKEW:
        return "RequestTimeTooSkewed"
    signed = {name: handler.headers.get(name, "") for name in found["headers"].split(";")}
    request = AWSRequest(handler.command, f"http://{handler.headers.get('Host', '')}{handler.path}", headers=signed)
    request.context["timestamp"] = signed_at
    auth = S3SigV4Auth(credentials, "s3", found["region"])
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return "" if hmac.compare_digest(signature, found["signature"]) else "SignatureDoesNotMatch"


def keys_in(path: Path) -> Credentials:
    """Return the keys of the profile `default` of an AWS credentials file. Raises `ConfigError`."""
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
        key, secret = (parser["default"][name] for name in ("aws_access_key_id", "aws_secret_access_key"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", field="--credentials", code="unreadable") from error
    except (configparser.Error, KeyError) as error:
        raise ConfigError(
            f"{path} is not an AWS credentials file with aws_access_key_id and aws_secret_access_key in [default]",
            field="--credentials",
            code="unreadable",
        ) from error
    if not (key and secret):
        raise ConfigError(f"{path} has an empty key in [default]; write both keys", field="--credentials", code="empty")
    return Credentials(key, secret)


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--credentials", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    Handler.data_root = options.folder
    if options.credentials is not None:
        Handler.credentials = keys_in(options.credentials)
    server = ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
    server.socket.close()
    server.socket = listening(options.host, options.port)
    server.serve_forever()


if __name__ == "__main__":
    main()
