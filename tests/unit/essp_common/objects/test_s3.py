"""What a server of S3 answers, in ESSP's own errors."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from essp_common.errors import ConfigError, Conflict, EsspError, PermanentError, Unavailable
from essp_common.objects.port import StoreRefuses
from essp_common.objects.s3 import S3Store


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (401, "Unauthorized", StoreRefuses),
        (403, "AccessDenied", ConfigError),
        (408, "RequestTimeout", Unavailable),
        (408, "408", Unavailable),
        (429, "TooManyRequests", Unavailable),
        (503, "SlowDown", Unavailable),
        (400, "InvalidRequest", PermanentError),
    ],
)
def test_a_status_means_the_same_whatever_word_the_server_has_for_it(
    status: int, code: str, error: type[EsspError]
) -> None:
    class Refusing:
        meta = SimpleNamespace(endpoint_url="http://server")

        def get_object(self, **request: object) -> None:
            answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
            raise ClientError(answer, "GetObject")

    with pytest.raises(EsspError) as raised:
        S3Store(Refusing(), "bucket").get("key")
    assert type(raised.value) is error


class Taken:
    """A server on which the object is there already."""

    meta = SimpleNamespace(endpoint_url="http://server")

    def __init__(self, tries: int, keeps: bool, own: bool) -> None:
        self._tries, self._keeps, self._own = tries, keeps, own
        self._metadata: dict[str, str] = {}

    def put_object(self, Metadata: dict[str, str], **_: object) -> None:
        self._metadata = Metadata if self._own else dict.fromkeys(Metadata, "another writer")
        answer: Any = {"Error": {"Code": "PreconditionFailed"}, "ResponseMetadata": {"RetryAttempts": self._tries - 1}}
        raise ClientError(answer, "PutObject")

    def head_object(self, **_: object) -> dict[str, object]:
        return {"ETag": '"5"', "Metadata": self._metadata if self._keeps else {}}


@pytest.mark.parametrize(
    ("tries", "keeps", "own", "error"),
    [
        (2, True, True, None),
        (2, True, False, Conflict),
        (2, False, True, Unavailable),
        (2, False, False, Unavailable),
        (1, False, False, Conflict),  # no answer was lost
    ],
)
def test_whose_object_is_there_after_a_lost_answer_is_never_guessed(
    tries: int, keeps: bool, own: bool, error: type[EsspError] | None
) -> None:
    store = S3Store(Taken(tries, keeps, own), "bucket")
    with pytest.raises(error) if error else nullcontext():
        assert store.put("key", b"x", if_absent=True).etag == "5"
