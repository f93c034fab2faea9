"""Whatever comes from where an object store should be: a store gives what is there, or raises an error of ESSP's, and
the next calls are answered right."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from boto3.s3.transfer import TransferConfig

from essp_common.errors import Conflict, EsspError, Unavailable
from essp_common.objects import s3
from essp_common.objects.port import ObjectStore
from essp_common.wiring import open_store
from tests.faults.s3_front import Act, Answer, S3Front, _Handler
from tests.lanes import across, often

pytestmark = pytest.mark.integration

DATA = bytes(range(250)) * 40
PAGE = b"<html><head><title>Hotel</title></head><body>Please log in</body></html>"
_HTML = [("Content-Type", "text/html")]
_XHTML = [("Content-Type", "application/xml")]


def _instead(status: int, headers: list[tuple[str, str]], body: bytes = b"") -> Act:
    return lambda handler, _: handler.send((status, headers, body))


def _with(change: Callable[[int, dict[str, str], bytes], Answer]) -> Act:
    return lambda handler, answer: handler.send(change(answer[0], dict(answer[1]), answer[2]))


def _headers(headers: dict[str, str], **other: str | None) -> list[tuple[str, str]]:
    named = {name.replace("_", "-").lower(): value for name, value in other.items()}
    kept = [(name, value) for name, value in headers.items() if name.lower() not in named]
    return kept + [(name, value) for name, value in named.items() if value is not None]


def _raw(data: bytes) -> Act:
    def act(handler: _Handler, _: Answer) -> None:
        handler.close_connection = True
        handler.wfile.write(data)

    return act


def _twice(handler: _Handler, answer: Answer) -> None:
    handler.send(answer)
    handler.send(answer)


ANSWERS: dict[str, Act] = {
    "web page": _instead(200, _HTML, PAGE),
    "web page with an ETag": _instead(200, [*_HTML, ("ETag", '"x"')], PAGE),
    "web page that is XML": _instead(200, _XHTML, PAGE),
    "nothing": _instead(204, []),
    "empty": _instead(200, []),
    "found elsewhere": _instead(302, [("Location", "http://127.0.0.1:1/login")]),
    "moved": _instead(301, []),
    "temporarily moved": _instead(307, [("Location", "/login")]),
    "no XML": _instead(200, _XHTML, b"<?xml version='1.0'?><<<&"),
    "another XML": _instead(200, _XHTML, b"<?xml version='1.0'?><Result><A/></Result>"),
    "without ETag": _with(lambda status, headers, body: (status, _headers(headers, etag=None), body)),
    "empty ETag": _with(lambda status, headers, body: (status, _headers(headers, etag='""'), body)),
    "short": _with(lambda status, headers, body: (status, list(headers.items()), body[: len(body) // 2])),
    "long": _with(lambda status, headers, body: (status, list(headers.items()), body + b"more")),
    "other range": _with(
        lambda status, headers, body: (status, _headers(headers, content_range="bytes 0-9/10000"), body)
    ),
    "no range": _with(lambda _, headers, body: (200, _headers(headers, content_range=None), body)),
    "range that is none": _with(
        lambda status, headers, body: (status, _headers(headers, content_range="bytes */x"), body)
    ),
    "another version": _with(lambda status, headers, body: (status, _headers(headers, etag='"other"'), body[::-1])),
    "twice": _twice,
    "no HTTP": _raw(b"\x00\xff" * 300),
    "half of a header": _raw(b"HTTP/1.1 200 OK\r\nContent-Le"),
    "length that is none": _raw(b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: many\r\n\r\n' + DATA),
    "negative length": _raw(b'HTTP/1.1 200 OK\r\nETag: "a"\r\nContent-Length: -5\r\n\r\n' + DATA),
    "broken chunks": _raw(b'HTTP/1.1 200 OK\r\nETag: "a"\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n' + DATA),
    "400 as a page": _instead(400, _HTML, PAGE),
    "403 without words": _instead(403, []),
    "404 as a page": _instead(404, _HTML, PAGE),
    "407": _instead(407, _HTML, PAGE),
    "409": _instead(409, []),
    "412": _instead(412, []),
    "418": _instead(418, []),
    "501": _instead(501, _HTML, PAGE),
    "502 as a page": _instead(502, _HTML, PAGE),
}
UNASKED = frozenset(name for name in ANSWERS if "page" in name or name == "found elsewhere")
"""Whoever answers so has not passed the request on."""
UNKNOWABLE = {
    "get": ("another version", "short", "long"),
    **dict.fromkeys(("get a part", "get the rest"), ("another version",)),
}
"""What the server would answer had somebody replaced the object. Who wants one version of it opens it."""


def _put(store: ObjectStore) -> bytes:
    assert store.put("new", DATA[1:]).size_bytes == len(DATA) - 1
    return _there(store, DATA[1:])


def _put_once(store: ObjectStore) -> bytes:
    store.put("new", DATA[2:], if_absent=True)
    return _there(store, DATA[2:])


def _there(store: ObjectStore, data: bytes) -> bytes:
    """What was written, as a sound server has it."""
    front = FRONT[0]
    front.heal()
    assert store.get("new") == data, "it was said to be written"
    return DATA


def _deleted(store: ObjectStore) -> bytes:
    store.delete("old")
    FRONT[0].heal()
    assert [info.key for info in store.list()] == ["a", "b"], "it was said to be gone"
    return DATA


def _listed(store: ObjectStore) -> bytes:
    assert [(info.key, info.size_bytes) for info in store.list()][:2] == [("a", len(DATA)), ("b", 5)]
    return DATA


def _headed(store: ObjectStore) -> bytes:
    info = store.head("a")
    assert info.size_bytes == len(DATA)
    assert info.etag
    return DATA


def _opened(store: ObjectStore) -> bytes:
    with store.open("a") as file:
        return file.read()


CALLS: dict[str, Callable[[ObjectStore], bytes]] = {
    "get": lambda store: store.get("a"),
    "get a part": lambda store: DATA[:100] + store.get("a", 100, 500) + DATA[600:],
    "get the rest": lambda store: DATA[:100] + store.get("a", 100),
    "head": _headed,
    "list": _listed,
    "open": _opened,
    "put": _put,
    "put once": _put_once,
    "delete": _deleted,
}
FRONT: list[S3Front] = []


@pytest.fixture
def front(empty_s3_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[S3Front, ObjectStore]]:
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0)
    monkeypatch.setattr(s3, "_READ_S", 1)
    root, _, query = empty_s3_url.partition("?")
    port = urlsplit(query.partition("endpoint=")[2].partition("&")[0]).port
    assert port is not None
    with S3Front(port, about="") as front:
        FRONT[:] = [front]
        yield front, open_store(f"{root}?endpoint=http://127.0.0.1:{front.port}")


@pytest.mark.parametrize(
    ("call", "count"),
    often(
        [
            ("list", 1),
            ("open", 1),
            ("put once", 1),
            ("get a part", 20),
            *((call, 1) for call in CALLS if call not in ("list", "open", "put once")),
            ("list", 20),
            ("put", 20),
        ],
        4,
    ),
)
def test_what_is_no_answer_of_s3(front: tuple[S3Front, ObjectStore], call: str, count: int) -> None:
    server, store = front
    store.put("a", DATA)
    store.put("b", b"other")
    for name, act in ANSWERS.items():
        if call == "delete":
            store.put("old", b"x")
        if call == "put once":
            store.delete("new")
        asked = not (name in UNASKED and call in ("put", "put once", "delete"))
        server.alter(act, count, asked=asked)
        try:
            found = CALLS[call](store)
        except EsspError:
            pass
        else:
            assert found == DATA or name in UNKNOWABLE.get(call, ()), f"{call}: {name}"
        server.heal()
        with suppress(Unavailable):  # the rest of an answer to HEAD looks like one without its body
            assert store.get("a", 3, 5) == DATA[3:8], f"after {call} with {name}"
        assert store.get("a", 3, 5) == DATA[3:8], f"after {call} with {name}"
    assert server.faults["altered"] >= len(ANSWERS)


@pytest.mark.parametrize("call", ["get", "get a part", "head", "list", "put", "delete"])
def test_a_page_of_a_proxy_once_is_asked_again(front: tuple[S3Front, ObjectStore], call: str) -> None:
    server, store = front
    store.put("a", DATA)
    store.put("b", b"other")
    store.put("old", b"x")
    server.alter(ANSWERS["web page with an ETag"], 1, asked=False)
    assert CALLS[call](store) == DATA
    server.alter(ANSWERS["web page with an ETag"], 20, asked=False)
    with pytest.raises(Unavailable, match="not an answer of S3"):
        CALLS[call](store)


@pytest.mark.parametrize(
    ("method", "name"),
    often(
        across(["POST", "PUT"], ["web page that is XML", "nothing", "no XML", "409", "no HTTP", "web page", "501"]), 5
    ),
)
def test_parts_of_a_large_object(
    front: tuple[S3Front, ObjectStore], monkeypatch: pytest.MonkeyPatch, method: str, name: str, tmp_path: Path
) -> None:
    """Begun, written and put together in as many requests."""
    server, store = front
    monkeypatch.setattr(s3, "_PART_BYTES", 1000)
    monkeypatch.setattr(s3, "_TRANSFER", TransferConfig(multipart_threshold=1000, multipart_chunksize=2**23))
    puts: tuple[Callable[[], object], ...] = (
        lambda: store.put("new", DATA),
        lambda: store.put_file("new", str(tmp_path / "new")),
    )
    for put in puts:
        (tmp_path / "new").write_bytes(DATA)
        server.alter(ANSWERS[name], 9, (method,), asked=False)
        with pytest.raises(EsspError):
            put()
        server.heal()
        put()
        assert store.get("new") == DATA


def test_what_was_written_in_parts_has_its_size(
    front: tuple[S3Front, ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, store = front
    monkeypatch.setattr(s3, "_PART_BYTES", 1000)
    server.alter(_instead(200, [("ETag", '"a"'), ("Content-Length", "7")]), 9, ("HEAD",))
    with pytest.raises(Unavailable, match="10000 bytes were written, and 7 are there"):
        store.put("new", DATA)


def test_a_list_whose_page_comes_again_does_not_go_round_for_ever(
    front: tuple[S3Front, ObjectStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    server, store = front
    monkeypatch.setattr(s3, "_PAGE_KEYS", 2)
    for number in range(5):
        store.put(str(number), b"")
    pages: list[Answer] = []

    def first_page(handler: _Handler, answer: Answer) -> None:
        pages.append(answer)
        handler.send(pages[0])

    server.alter(first_page, 9)
    with pytest.raises(Unavailable, match="has come before"):
        list(store.list())
    server.heal()
    assert len(list(store.list())) == 5


def test_a_write_that_another_one_had_done_is_a_conflict(front: tuple[S3Front, ObjectStore]) -> None:
    server, store = front
    store.put("new", b"theirs")
    server.alter(ANSWERS["412"], 1, ("PUT",), asked=False)
    with pytest.raises(Conflict):
        store.put("new", DATA, if_absent=True)
