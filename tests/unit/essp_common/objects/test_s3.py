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


class Listing:
    """A server whose lists have pages of one key."""

    meta = SimpleNamespace(endpoint_url="http://server")

    def __init__(self, *pages: str, echoes: bool = True, stands: bool = False) -> None:
        """`pages`: the key of each; empty: it was removed meanwhile. `echoes`: each page says which token asked for
        it. `stands`: each page leads to itself."""
        self._pages, self._echoes, self._stands = pages, echoes, stands

    def list_objects_v2(self, ContinuationToken: str = "0", **_: object) -> dict[str, object]:
        number = int(ContinuationToken)
        key = self._pages[number]
        page: dict[str, object] = {"IsTruncated": number + 1 < len(self._pages)}
        if page["IsTruncated"]:
            page["NextContinuationToken"] = str(number + (not self._stands or not number))
        if number and self._echoes:
            page["ContinuationToken"] = ContinuationToken
        return page | ({"Contents": [{"Key": key, "Size": 1, "ETag": '"e"'}]} if key else {})


@pytest.mark.parametrize("pages", [("a", ""), ("a", "", "b"), ("", "", "")])
def test_a_page_whose_objects_were_removed_does_not_end_a_list(pages: tuple[str, ...]) -> None:
    assert [info.key for info in S3Store(Listing(*pages), "bucket").list()] == [key for key in pages if key]


@pytest.mark.parametrize("kind", [{"echoes": False}, {"stands": True}])
def test_an_empty_page_that_may_be_another_is_not_believed(kind: dict[str, bool]) -> None:
    with pytest.raises(Unavailable, match="has come before"):
        list(S3Store(Listing("a", "", "b", **kind), "bucket").list())
