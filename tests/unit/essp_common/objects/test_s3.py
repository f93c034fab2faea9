"""What a server of S3 answers, in ESSP's own errors."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from essp_common.errors import ConfigError, EsspError, PermanentError, Unavailable
from essp_common.objects.s3 import S3Store


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (401, "Unauthorized", ConfigError),
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
