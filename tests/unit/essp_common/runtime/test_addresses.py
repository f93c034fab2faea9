"""What is secret in the URL of a server is in no message: not in an error, in its cause, on stderr or in a log."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator

import httpx
import pytest

from essp.cli import rest
from essp.doctor import master as doctor_master
from essp.doctor import redis as doctor_redis
from essp.doctor import stores as doctor_stores
from essp_common import wiring
from essp_common.artifacts.staging import parse_burst
from essp_common.bus.kafka_options import KafkaOptions
from essp_common.errors import EsspError
from essp_common.objects.filesystems import FilesystemStore
from essp_common.runtime import logs
from essp_common.runtime.addresses import checked_address, shown_address, shown_uri, without_secrets
from essp_common.wiring import Stores, open_bus, open_cache, open_store
from essp_master.config import MasterSettings

SECRET = "S3CRET"
IN_USERS = (
    "{0}://user:S3CRET@localhost:1/0",
    "{0}://user:S3CRET@localhost:1x/0",
    "{0}://:S3CRET@localhost:99999",
    "{0}://user:a#S3CRET@localhost:1",
    "{0}://user:S3CRET#a@localhost:1",
    "{0}://user:a/S3CRET@localhost:1",
    "{0}://user:S3CRET/a@localhost:1",
    "{0}://user:a?S3CRET@localhost:1",
    "{0}://user:1?S3CRET=a@localhost:1",
    "{0}://user:1?bytes=S3CRET@localhost:1",
    "{0}://user:a@S3CRET@localhost:1",
    "{0}://user:[S3CRET@localhost:1",
    "{0}://user:S3CRET",
    "{0}://user:S3CRET\x07@localhost:1",
    "{0}://localhost:1,user:S3CRET@localhost:2",
)
IN_OPTIONS = tuple(f"{{0}}://localhost:1/0?{name}=S3CRET" for name in ("key", "secret", "token", "password", "sig"))
SCHEMES = ("redis", "rediss", "redis+cluster", "kafka", "kafka+ssl", "memory", "shm", "s3", "http", "https", "nobody")
URLS = [url.format(scheme) for scheme in SCHEMES for url in (*IN_USERS, *IN_OPTIONS)]
STORES = [
    *URLS,
    "s3://bucket?endpoint=http://user:S3CRET@localhost:1",
    "s3://bucket?endpoint=http://user:S3CRET@localhost:1x",
    "s3://user:S3CRET@bucket/a",
    "s3://bucket?key=S3CRET&secret=S3CRET",
    "fsspec+memory://x?token=S3CRET",
    "sftp://user:S3CRET@localhost/x",
]


def said_by(call: Callable[[], object]) -> str:
    """All that is said when this is done: a result, or an error with its causes."""
    try:
        return str(call())
    except Exception as error:  # noqa: BLE001  of whatever kind: none may have it
        return "\n".join(f"{type(each).__name__}: {each}" for each in chain_of(error))


def chain_of(error: BaseException | None) -> Iterator[BaseException]:
    """What a traceback shows."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def leaks(urls: Iterable[str], *calls: Callable[[str], object]) -> list[tuple[str, str]]:
    """The URLs whose secret is in what one of these calls says, with the words."""
    said = ((url, said_by(lambda url=url, call=call: call(url))) for url in urls for call in calls)  # type: ignore[misc]
    return [(url, words) for url, words in said if SECRET in words]


@pytest.fixture(autouse=True)
def nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """No name is looked up and no server waited for."""

    def refuse(*_: object, **__: object) -> None:
        raise ConnectionRefusedError(111, "refused")

    monkeypatch.setattr("socket.create_connection", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


def test_settings_quote_no_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    def setting(name: str) -> Callable[[str], object]:
        def read(url: str) -> object:
            with monkeypatch.context() as environment:
                environment.setenv(name, url)
                return MasterSettings()

        return read

    urls = [url for url in URLS if url.startswith(("redis:", "kafka:"))]  # one reads all of the environment
    assert not leaks(urls, setting("ESSP_BUS"), setting("ESSP_CACHE"), setting("ESSP_STORES"), setting("ESSP_TRACES"))
    assert not leaks([f'["{url}"]' for url in urls], setting("ESSP_STORES"))


def test_messages_about_an_address_quote_no_secret() -> None:
    assert not leaks(URLS, shown_address, lambda url: checked_address(url) and "", parse_burst)
    assert not leaks(URLS, lambda url: rest.connect(url, "") and "", lambda url: list(doctor_master.examine(url, "")))


def test_stores_quote_no_secret() -> None:
    other = Stores(["file:///data"])
    assert not leaks(STORES, lambda url: Stores([url]).resolve("s3://elsewhere/x"))
    assert not leaks(STORES, other.resolve, other.under, lambda url: other.resolve(url, video=True))
    looked_at = [url for url in STORES if not url.startswith("http")]  # those would leave a thread of aiohttp
    assert not leaks(looked_at, lambda url: list(doctor_stores.examine((url,))))


def test_opening_quotes_no_secret() -> None:
    assert not leaks([url for url in URLS if url.startswith(("memory", "nobody"))], open_bus)
    assert not leaks([url for url in URLS if url.startswith("kafka")], KafkaOptions.from_url)
    assert not leaks(
        [url for url in URLS if url.startswith(("memory", "nobody", "shm"))], lambda url: open_cache(url) and ""
    )
    assert not leaks(
        [url for url in URLS if url.startswith("redis")], open_cache, lambda url: list(doctor_redis.examine(url))
    )
    assert not leaks(
        [url for url in STORES if url.startswith(("s3", "nobody", "fsspec"))],
        lambda url: open_store(url) and "",
    )


def test_a_wrong_place_tells_scheme_and_bucket_of_the_roots_and_no_more() -> None:
    stores = Stores(
        ["s3://bucket/deep/below?endpoint=http://u:S3CRET@h:1", "https://u:S3CRET@host/deep", "file:///deep"]
    )
    with pytest.raises(EsspError) as raised:
        stores.resolve("s3://other/x")
    assert "now some of: file://, https://***@host, s3://bucket)" in str(raised.value)
    assert "deep" not in str(raised.value)


def test_a_place_is_found_with_and_without_the_password_of_its_root(monkeypatch: pytest.MonkeyPatch) -> None:
    """And what stands in catalogs has it not."""
    monkeypatch.setattr(wiring, "open_store", lambda url: url)
    root = "https://user:S3CRET@host/data"
    for uri in (f"{root}/a.mp4", "https://user@host/data/a.mp4"):
        assert Stores([root]).resolve(uri, video=True)[1] == "a.mp4"
    assert Stores([root]).root_of(f"{root}/a") == "https://user@host/data"
    store = FilesystemStore.from_url("fsspec+memory://user:S3CRET@host/data")
    assert store.uri("a.mp4") == "fsspec+memory://user@host/data/a.mp4"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:p@h:6379/0", "redis://***@h:6379/0"),
        ("redis+cluster://h:6379?password_file=/etc/p", "redis+cluster://h:6379?password_file=/etc/p"),
        ("kafka+ssl://a:1,b:2?ca=/x&sasl=PLAIN", "kafka+ssl://a:1,b:2?ca=/x&sasl=PLAIN"),
        ("s3://b/p?endpoint=http://u:p@h:9&region=eu", "s3://b/p?endpoint=http://***@h:9&region=eu"),
        ("file:///data/it's @ home?bytes=1GiB", "file:///data/it's @ home?bytes=1GiB"),
        ("http://[::1]:8080/#token=x", "http://[::1]:8080/#***"),
        ("localhost:9092", "localhost:9092"),
    ],
)
def test_what_is_no_secret_is_shown(url: str, shown: str) -> None:
    assert shown_address(url) == shown


def test_signed_links_are_shown_without_their_signature() -> None:
    assert shown_uri("https://h/a.mp4?X-Amz-Signature=S3CRET&x=1") == "https://h/a.mp4?X-Amz-Signature=***&x=***"
    assert shown_uri("s3://bucket/what? #2 @home.mp4") == "s3://bucket/what? #2 @home.mp4"


def test_a_log_shows_no_password(capfd: pytest.CaptureFixture[str]) -> None:
    for style in ("text", "json"):
        logs.set_up("INFO", style, "w")
        try:
            raise httpx.ConnectError("http://user:S3CRET@host/x does not answer")
        except httpx.ConnectError:
            logging.getLogger("essp").exception("redis://:S3CRET@host:1 is away")
        out = "".join(capfd.readouterr())
        assert "is away" in out
        assert SECRET not in out
    assert without_secrets("a@b: http://h:1/x@y") == "a@b: http://h:1/x@y"
