"""An S3 server whose buckets are folders: localbucket, and what ESSP needs beyond it.

    python -m essp.servers.folder_s3 --host HOST --port PORT FOLDER [--credentials FILE]

localbucket stores objects as files and writes them atomically. This adds what makes its store one that ESSP can rely
on: metadata, which tells whose a write is whose answer was lost; `If-Match`, so that an object that changes while it is
read is noticed; and keys. With `--credentials`, an AWS credentials file, each request must be signed with the keys of
its profile `default`; without it, any keys are accepted. Objects are neither checked nor replicated.
"""

from __future__ import annotations

import argparse
import hmac
import json
import os
import re
from configparser import ConfigParser
from contextlib import suppress
from http import HTTPStatus
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any, BinaryIO

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from localbucket import S3Error, S3Handler, object_etag

from essp_common.errors import ConfigError
from essp_common.runtime.listening import listening

_META = "x-amz-meta-"
_ATTRIBUTE = "user.essp.metadata"
"""The extended attribute of a file that holds the metadata of its object."""
_AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=(?P<key>[^/]+)/\d{8}/(?P<region>[^/]+)/s3/aws4_request, ?"
    r"SignedHeaders=(?P<headers>[^,]+), ?Signature=(?P<signature>[0-9a-f]{64})"
)


class Handler(S3Handler):  # type: ignore[misc]
    """Handles one request."""

    credentials: Credentials | None = None
    """The keys that requests must be signed with."""

    def parse_request(self) -> bool:
        """Read the request line and headers, and refuse a request without the right signature."""
        if not super().parse_request():
            return False
        code = "" if self.credentials is None else _refusal(self, self.credentials)
        if code:
            self._send_error(S3Error(HTTPStatus.FORBIDDEN, code, "The request is not signed with this server's keys."))
        return not code

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing: there are many requests a second."""

    def _get(self, bucket: str, key: str, include_body: bool) -> None:
        wanted = self.headers.get("If-Match")
        if wanted is not None:
            path = self._object_path(bucket, key)
            if path.is_file() and wanted.strip('"') != object_etag(path):
                raise self._precondition_failed_error()
        super()._get(bucket, key, include_body)

    def _send_file(self, status: HTTPStatus, file: BinaryIO, start: int, length: int, headers: Any, body: bool) -> None:
        with suppress(OSError):  # none is stored, or this file system stores none
            headers |= json.loads(os.getxattr(file.fileno(), _ATTRIBUTE))
        super()._send_file(status, file, start, length, headers, body)

    def _write_object(self, bucket: str, key: str, write: Any) -> str:
        metadata = {name: value for name, value in self.headers.items() if name.lower().startswith(_META)}

        def write_both(file: BinaryIO) -> str:
            if metadata:
                with suppress(OSError):
                    os.setxattr(file.fileno(), _ATTRIBUTE, json.dumps(metadata).encode())
            return str(write(file))

        return str(super()._write_object(bucket, key, write_both))


def _refusal(handler: Handler, credentials: Credentials) -> str:
    """Return S3's code for a missing or wrong signature; empty if it is right."""
    found = _AUTHORIZATION.fullmatch(handler.headers.get("Authorization", ""))
    if found is None:
        return "AccessDenied"
    if found["key"] != credentials.access_key:
        return "InvalidAccessKeyId"
    signed = {name: handler.headers.get(name, "") for name in found["headers"].split(";")}
    request = AWSRequest(handler.command, f"http://{handler.headers.get('Host', '')}{handler.path}", headers=signed)
    request.context["timestamp"] = handler.headers.get("X-Amz-Date", "")
    auth = S3SigV4Auth(credentials, "s3", found["region"])
    signature = auth.signature(auth.string_to_sign(request, auth.canonical_request(request)), request)
    return "" if hmac.compare_digest(signature, found["signature"]) else "SignatureDoesNotMatch"


def keys_in(path: Path) -> Credentials:
    """Return the keys of the profile `default` of an AWS credentials file. Raises `ConfigError`."""
    parser = ConfigParser(interpolation=None)
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
        profile = parser["default"]
        return Credentials(profile["aws_access_key_id"], profile["aws_secret_access_key"])
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", field="--credentials", code="unreadable") from error
    except Exception as error:  # configparser has many
        raise ConfigError(
            f"{path} is not an AWS credentials file with aws_access_key_id and aws_secret_access_key in [default]",
            field="--credentials",
            code="unreadable",
        ) from error


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
