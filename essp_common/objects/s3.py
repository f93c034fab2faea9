"""Objects in S3 or any compatible server: `s3://bucket/prefix?endpoint=http://host:port&region=eu-west-1`.

Credentials come from the usual AWS sources: environment, profile, or the role of the machine. With an `endpoint`, the
bucket is part of the path, and newer checksums are not sent, since older servers do not know them; those that a server
sends with whole objects are verified. Large objects are written in parts, and appear only with the last part.

Requests are tried four times. `if_absent` is a conditional write, and of several writers one succeeds. If the answer to
a writer is lost, its second request finds an object; the writer recognises its own object by a unique id that each such
write stores in the object's metadata. If a gateway drops metadata, the result is unknown: `Unavailable`.

    NotFound     no such object                 Unavailable   no answer, 5xx, throttling, expired credentials
    Conflict     it exists, or it changed       StoreRefuses  bucket, region or credentials, with a remedy
    ConfigError  a permission is missing

Not every response comes from S3: a proxy may send a page with status 200, and a connection that is out of step delivers
the answer to another request. A response that does not fit the request is not an answer: the request is repeated, and
then `Unavailable`.

If a bucket disappears, or credentials are refused, after the store has worked, that is `Unavailable`: they were removed
or revoked, perhaps by mistake. Refused credentials are read again: a shared credentials file may have been updated.
"""

from __future__ import annotations

import io
import os
import re
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, BinaryIO, TypeVar
from urllib.parse import parse_qsl

import boto3
import botocore.session
from boto3.exceptions import S3UploadFailedError
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.credentials import Credentials
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    CredentialRetrievalError,
    NoCredentialsError,
    ParamValidationError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.loaders import Loader
from botocore.parsers import ResponseParserError

from essp_common.errors import ConfigError, Conflict, EsspError, NotFound, PermanentError, StorageFull, Unavailable
from essp_common.objects.keys import checked, is_key
from essp_common.objects.port import NoBucket, ObjectInfo, StoreRefuses
from essp_common.objects.ranged import RangedFile
from essp_common.objects.writes import Writes
from essp_common.runtime.addresses import shown_address, without_secrets
from essp_common.runtime.certificates import advised
from essp_common.runtime.failpoints import failpoint
from essp_common.runtime.forks import Remade
from essp_common.runtime.metrics import STORE_REQUESTS
from essp_common.runtime.troubles import Troubles

_PART_BYTES = 16 * 2**20
_TRANSFER = TransferConfig(multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=4)
_SMALL_BYTES = 2**20
"""Objects up to this size are written within a moment."""
_PAGE_KEYS = 1000
_CONNECT_S = 5
_READ_S = 20
_ATTEMPTS = 4
"""A silent server is `Unavailable` after at most `_ATTEMPTS * _READ_S`: before a decoder's child that reads from it
counts as hanging (`decoder_timeout_s`), with its video as the suspected cause."""
_ODD_ANSWERS = 3
"""After this many invalid answers, the server counts as unavailable."""
_HTML = "text/html"
_OPTIONS = frozenset({"endpoint", "region"})
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")
_MARK = "essp-write"
"""User metadata of objects written with `if_absent`: a unique id of the write."""

_GONE = frozenset({"NoSuchKey", "NotFound", "404"})
_TAKEN = frozenset({"PreconditionFailed", "ConditionalRequestConflict", "412", "409"})
_ELSEWHERE = frozenset(
    {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException", "301"}
)
_DENIED = frozenset({"AccessDenied", "Forbidden", "403"})
_UNKNOWN = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken"})
"""These credentials do not exist."""
_FULL = frozenset({"InsufficientStorage", "XMinioStorageFull", "QuotaExceeded", "507"})
_BUSY = frozenset({"SlowDown", "RequestTimeout", "Throttling", "ThrottlingException", "429"})
_RENEWABLE = frozenset({"ExpiredToken", "TokenRefreshRequired", "RequestExpired", "RequestTimeTooSkewed"})
"""Errors that end when the credentials are renewed or the clock is corrected."""
_UNSAID = frozenset({"400", "403", "404"})
"""The answer to a HEAD has no body with the reason; a read's has."""
_RENEWED_RETRY_S = 5.0
T = TypeVar("T")


class _NoAnswer(Exception):
    """The response cannot be an answer to the request; the message says why."""


class S3Store:
    """An `ObjectStore` in a bucket, below a prefix."""

    def __init__(
        self,
        client: Any,
        bucket: str,
        prefix: str = "",
        writes: Writes | None = None,
        worked: threading.Event | None = None,
    ) -> None:
        """`client`: boto3's S3 client, whose class exists only at run time; `prefix`: empty, or ends with `/`.
        `writes`, `worked`: shared with the store that this is a folder of."""
        self._client = client
        self._writes = writes or Writes()
        self._worked = worked or threading.Event()
        """Set once a request with these credentials to this bucket has succeeded."""
        self._bucket = bucket
        self._prefix = prefix

    @classmethod
    def from_url(cls, url: str) -> S3Store:
        """`s3://bucket/prefix?endpoint=...&region=...`; sends nothing yet. Raises `ConfigError`."""
        path, _, query = url.removeprefix("s3://").partition("?")
        bucket, _, prefix = path.partition("/")
        options = dict(parse_qsl(query))
        is_bucket = bucket.startswith("arn:") or not set(bucket) & set("@:")
        if not bucket or not is_bucket or not options.keys() <= _OPTIONS:
            raise ConfigError(
                f"store URL {shown_address(url)!r}: write s3://bucket/prefix?endpoint=http://host:port&region=eu-west-1"
            )
        try:
            client = Remade(partial(_client, options.get("endpoint"), options.get("region")))
        except (BotoCoreError, ValueError) as error:
            # Not the library's message, which quotes the endpoint.
            said = str(error) if "endpoint" not in options else "its endpoint or region is not valid"
            raise ConfigError(f"store URL {shown_address(url)!r}: {said}") from None
        return cls(client, bucket, prefix.strip("/") + "/" if prefix.strip("/") else "")

    def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
        """Read one range."""
        if length == 0:
            self.head(key)
            return b""
        return self._read(key, start, length)

    def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
        """Send one request, or several parts if large; a conditional write is always one request (at most 5 GiB)."""
        target = self._target(key)
        with self._writes.one(small=len(data) < _SMALL_BYTES), self._errors(key):
            if if_absent:
                etag = self._put_if_absent(target, data)
            elif len(data) < _PART_BYTES:
                etag = self._asked(lambda: _etag(_genuine(self._client.put_object(**target, Body=data))))
            else:
                self._client.upload_fileobj(io.BytesIO(data), **target, Config=_TRANSFER)
                return self._written(key, len(data))
        failpoint("s3.stored")
        return ObjectInfo(key, len(data), etag)

    def _written(self, key: str, size_bytes: int) -> ObjectInfo:
        """Return the info of an object that was written in parts."""
        info = self.head(key)
        if info.size_bytes != size_bytes:
            raise Unavailable(
                f"{self.uri(key)}: {size_bytes} bytes were written, and {info.size_bytes} are there; either the server "
                "has lost some, or another process writes the same object"
            )
        return info

    def _put_if_absent(self, target: Any, data: bytes) -> str:
        """Return the ETag, even if the write had succeeded and its answer was lost."""
        mark = uuid.uuid4().hex
        try:
            answer = _genuine(self._client.put_object(**target, Body=data, IfNoneMatch="*", Metadata={_MARK: mark}))
        except ClientError as error:
            if _code(error) not in _TAKEN:
                raise
            present = self._present(target)
            if present is None:  # another write is under way, or it was deleted again
                raise Unavailable(f"s3://{target['Bucket']}/{target['Key']}: {without_secrets(str(error))}") from error
            found = present.get("Metadata", {}).get(_MARK)
            if found is None and error.response.get("ResponseMetadata", {}).get("RetryAttempts"):
                raise Unavailable(
                    f"s3://{target['Bucket']}/{target['Key']}: the answer to a write was lost, and nothing tells whose "
                    f"object is there, since it has no metadata; let gateways pass x-amz-meta-{_MARK}"
                ) from error
            if found != mark:
                raise
            answer = present
        return _etag(answer)

    def _present(self, target: Any) -> Any:
        """Return the server's info about an object; None if it does not exist."""
        try:
            return self._client.head_object(**target)
        except ClientError as error:
            if _code(error) in _GONE:
                return None
            raise

    def keeps_marks(self, key: str) -> bool:
        """Whether an object written with `if_absent` carries the unique id of its write."""
        with self._errors(key):
            return _MARK in self._client.head_object(**self._target(key)).get("Metadata", {})

    def put_file(self, key: str, path: str) -> ObjectInfo:
        """Upload a file, in parts if large."""
        with self._writes.one(small=False), self._errors(key):
            try:
                self._client.upload_file(path, **self._target(key), Config=_TRANSFER)
                size_bytes = os.stat(path).st_size
            except OSError as error:
                raise NotFound(f"{path} cannot be read: {error.strerror}") from error
        return self._written(key, size_bytes)

    def head(self, key: str) -> ObjectInfo:
        """Return size and ETag."""
        with self._errors(key):
            return self._asked(lambda: self._head(key))

    def _head(self, key: str) -> ObjectInfo:
        try:
            answer = _of_object(self._client.head_object(**self._target(key)), key)
        except ClientError as error:
            if _code(error) in _UNSAID:
                self._client.get_object(**self._target(key), Range="bytes=0-0")["Body"].close()
            raise
        size_bytes = answer.get("ContentLength")
        if not isinstance(size_bytes, int) or size_bytes < 0:
            raise _NoAnswer("it does not say how large the object is")
        return ObjectInfo(key, size_bytes, _etag(answer))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        """List page by page. Markers of empty folders, which consoles create, are left out."""
        begin, after = self._prefix + prefix, ""
        where: dict[str, str] = {}
        while True:
            with self._errors(prefix):
                page, found = self._asked(partial(self._page, begin, after, where))
            for key, info in found:
                after = key
                if is_key(info.key):
                    yield info
            if not page["IsTruncated"]:
                return
            where = {"ContinuationToken": page["NextContinuationToken"]}

    def _page(self, begin: str, after: str, where: dict[str, str]) -> tuple[Any, Sequence[tuple[str, ObjectInfo]]]:
        """Return a page of keys with this prefix, all after those of the previous page, and its objects."""
        page = self._client.list_objects_v2(Bucket=self._bucket, Prefix=begin, MaxKeys=_PAGE_KEYS, **where)
        # A web page that happens to be XML parses as an empty list, which would be mistaken for an empty folder.
        if not isinstance(page.get("IsTruncated"), bool) or (
            page["IsTruncated"] and "NextContinuationToken" not in page
        ):
            raise _NoAnswer("this is not a list of objects")
        found = []
        for item in page.get("Contents", []):
            key = item["Key"]
            if not key.startswith(begin):
                raise _NoAnswer("this is the list of another folder")
            found.append((key, ObjectInfo(key.removeprefix(self._prefix), int(item["Size"]), _etag(item))))
        if where and not (found[0][0] > after if found else _is_next(page, where["ContinuationToken"])):
            raise _NoAnswer("this page of a list has come before")
        return page, found

    def delete(self, key: str) -> None:
        """Remove an object."""
        with self._errors(key):
            self._asked(lambda: _genuine(self._client.delete_object(**self._target(key))))

    def open(self, key: str) -> BinaryIO:
        """Return a file that is read in ranges. Its reads raise `Conflict` if the object is replaced in the
        meantime."""
        info = self.head(key)
        condition = {"IfMatch": f'"{info.etag}"'}
        version = f"{self.uri(key)} {info.etag}"
        file = RangedFile(info.size_bytes, lambda at, size: self._read(key, at, size, **condition), version=version)
        return io.BufferedReader(file)

    def local_path(self, key: str) -> str | None:
        """Return None."""
        checked(key)
        return None

    def unwritable(self) -> str:
        """Return "": only a write would tell."""
        return ""

    def troubles(self) -> Troubles:
        """Report if the bucket is full, or does not answer."""
        return self._writes.troubles()

    def uri(self, key: str) -> str:
        """Return `s3://bucket/prefix/key`."""
        return f"s3://{self._bucket}/{self._prefix}{checked(key)}"

    def below(self, folder: str) -> S3Store:
        """Return a store with the same client and a longer prefix."""
        return S3Store(self._client, self._bucket, f"{self._prefix}{checked(folder)}/", self._writes, self._worked)

    def create_bucket(self) -> bool:
        """Create the bucket of this store if it does not exist. Returns whether it was created. Not part of the port:
        for setup."""
        region = self._client.meta.region_name
        elsewhere: Any = {"CreateBucketConfiguration": {"LocationConstraint": region}} if region != "us-east-1" else {}
        with self._errors(""):
            try:
                self._client.head_bucket(Bucket=self._bucket)
                return False
            except ClientError as error:
                if _code(error) not in _GONE:
                    raise
            try:
                self._client.create_bucket(Bucket=self._bucket, **elsewhere)
            except ClientError as error:
                if _code(error) != "BucketAlreadyOwnedByYou":  # another process was first
                    raise
                return False
        return True

    def _target(self, key: str) -> Any:
        return {"Bucket": self._bucket, "Key": self._prefix + checked(key)}

    def _read(self, key: str, start: int, length: int | None, **condition: str) -> bytes:
        request = self._target(key) | condition
        if not start and length is None:
            request["ChecksumMode"] = "ENABLED"  # for parts of videos, the catalog has checksums
        if start or length is not None:
            request["Range"] = f"bytes={start}-{'' if length is None else start + length - 1}"
        with self._errors(key):
            try:
                return self._asked(lambda: self._received(key, request, start, length))
            except ClientError as error:
                if _code(error) in ("InvalidRange", "416"):
                    return b""
                raise

    def _received(self, key: str, request: dict[str, Any], start: int, length: int | None) -> bytes:
        """Return the body of the answer, after checking that it belongs to this request."""
        answer = _of_object(self._client.get_object(**request), key)
        data: bytes = answer["Body"].read()
        if request.get("IfMatch", f'"{_etag(answer)}"').strip('"') != _etag(answer):
            raise _NoAnswer("this is another version of the object than was asked for")
        if "Range" in request:
            said = _CONTENT_RANGE.fullmatch(answer.get("ContentRange") or "")
            if said is None:
                raise _NoAnswer("it does not say which bytes of the object these are")
            first, last, whole = map(int, said.groups())
            end = whole if length is None else min(start + length, whole)
            if (first, last + 1) != (start, end) or len(data) != end - start:
                raise _NoAnswer(f"bytes {first} to {last} of {whole} came, and {start} to {end - 1} were asked for")
        elif answer.get("ContentLength") != len(data):
            raise _NoAnswer(f"{len(data)} bytes of {answer.get('ContentLength')} came")
        return data

    def _asked(self, request: Callable[[], T]) -> T:
        """Send a request, and repeat it if the response cannot be an answer."""
        for _ in range(_ODD_ANSWERS - 1):
            with suppress(_NoAnswer, ResponseParserError):
                return request()
        return request()

    @contextmanager
    def _errors(self, key: str) -> Iterator[None]:
        """Convert botocore's errors into ESSP's."""
        where = f"s3://{self._bucket}/{self._prefix}{key}"
        try:
            yield
            self._worked.set()
        except ClientError as error:
            raise self._mapped(error, where) from error
        except S3UploadFailedError as error:
            cause = error.__context__
            raise (
                self._mapped(cause, where)
                if isinstance(cause, ClientError)
                else Unavailable(without_secrets(str(error)))
            ) from error
        except (NoCredentialsError, PartialCredentialsError, CredentialRetrievalError, ProfileNotFound) as error:
            raise self._refuses(
                f"{where}: {without_secrets(str(error))}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a role"
            ) from error
        except ParamValidationError as error:
            raise ConfigError(f"{where}: {without_secrets(str(error))}", code="refused") from error
        except BotoCoreError as error:
            raise Unavailable(f"{where}: {advised(without_secrets(str(error)))}") from error
        except EsspError:
            raise
        except Exception as error:  # the client raises all kinds of errors for responses that are not from S3
            what = str(error) if isinstance(error, _NoAnswer) else f"{type(error).__name__}: {error}"
            raise Unavailable(
                f"{where}: what came is not an answer of S3 ({without_secrets(what):.200}); see what is at the "
                "address, "
                "and which proxies are in between"
            ) from error

    def _mapped(self, error: ClientError, where: str) -> EsspError:
        code = _code(error)
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in _GONE:
            return NotFound(f"there is no object {where}")
        if code in _TAKEN:
            return Conflict(f"{where}: another writer was first, or the object has changed ({code})")
        if code == "NoSuchBucket":
            endpoint = shown_address(self._client.meta.endpoint_url)
            remedy = f"create it: aws s3 mb s3://{self._bucket} --endpoint-url {endpoint}"
            return self._refuses(f"{where}: there is no bucket {self._bucket}; {remedy}", NoBucket)
        if code in _UNKNOWN or status == 401:
            return self._refuses(
                f"{where}: {code}; check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the profile that "
                "AWS_SHARED_CREDENTIALS_FILE has, which is read again each time they are refused"
            )
        if code in _DENIED:
            return ConfigError(
                f"{where}: {code}; let these credentials list, read and write there; an object that is not there is "
                "denied, too, where they may not list",
                code="refused",
            )
        if code in _ELSEWHERE:
            return self._refuses(f"{where}: the bucket is in another region; name it in the URL: ?region=...")
        if code == "NotImplemented" or status == 501:
            return ConfigError(
                f"{where}: the server cannot do this ({error}); conditional writes are needed", code="unsupported"
            )
        if code in _RENEWABLE:
            words = f"{where}: {code}; renew the credentials, and see that the clock is right"
            return Unavailable(words, _RENEWED_RETRY_S)
        if status == 507 or code in _FULL:
            return StorageFull(f"{where}: {without_secrets(str(error))}")
        if status >= 500 or status in (408, 429) or code in _BUSY or 300 <= status < 400:
            return Unavailable(f"{where}: {without_secrets(str(error))}")
        return PermanentError(f"{where}: {without_secrets(str(error))}")

    def _refuses(self, words: str, kind: type[StoreRefuses] = StoreRefuses) -> EsspError:
        """Return the error for refused access: permanent, or one to wait for if the store has worked before."""
        return Unavailable(words, _RENEWED_RETRY_S) if self._worked.is_set() else kind(words)


def _etag(answer: Any) -> str:
    etag = answer.get("ETag")
    if not isinstance(etag, str) or not etag.strip('"'):
        raise _NoAnswer("it has no ETag")
    return etag.strip('"')


def _genuine(answer: Any) -> Any:
    """Return an answer without a body, after excluding a proxy's page."""
    if answer["ResponseMetadata"]["HTTPHeaders"].get("content-length", "0") != "0":
        raise _NoAnswer("it has a body like a web page")
    return answer


def _is_next(page: Any, token: str) -> bool:
    """Whether a page without objects is the one that this token asks for: its objects were removed meanwhile."""
    return bool(page.get("ContinuationToken") == token != page.get("NextContinuationToken"))


def _of_object(answer: Any, key: str) -> Any:
    """Return an answer about an object, after excluding a proxy's page."""
    if str(answer.get("ContentType", "")).startswith(_HTML) and not key.lower().endswith((".html", ".htm")):
        raise _NoAnswer("it is a web page")
    return answer


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _client(endpoint: str | None, region: str | None) -> Any:
    options: dict[str, Any] = {}
    if endpoint:
        options = {
            "s3": {"addressing_style": "path"},
            "request_checksum_calculation": "when_required",
            "response_checksum_validation": "when_required",
        }
    config = Config(
        connect_timeout=_CONNECT_S,
        read_timeout=_READ_S,
        max_pool_connections=32,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
        **options,
    )
    # A separate session, since sessions are not safe to share between threads. They may share the data that they load.
    session = botocore.session.get_session()
    session.register_component("data_loader", _descriptions())
    client = boto3.session.Session(botocore_session=session, region_name=region).client(
        "s3", endpoint_url=endpoint, config=config
    )
    client.meta.events.register("before-send.s3", _count)
    client.meta.events.register("after-call.s3", partial(_renew, session.get_credentials()))
    return client


def _renew(credentials: Any, parsed: Any, **_: object) -> None:
    """If the server refuses static credentials, use those that are configured now. Roles renew their own."""
    refused = parsed.get("Error", {}).get("Code") in _UNKNOWN | _RENEWABLE
    if refused and type(credentials) is Credentials:
        now = botocore.session.get_session().get_credentials()
        if now is not None:
            found = now.get_frozen_credentials()
            for name in ("access_key", "secret_key", "token"):
                setattr(credentials, name, getattr(found, name))


def _count(event_name: str, **_: object) -> None:
    """Count a request: `before-send.s3.GetObject`."""
    STORE_REQUESTS.labels(event_name.rpartition(".")[2]).inc()


@cache
def _descriptions() -> Loader:
    """Read botocore's description of S3 from files, once per process. That is most of the work of creating a client."""
    loader: Loader = botocore.session.get_session().get_component("data_loader")
    return loader
