"""URIs that people write: what passes is a root and a key and nothing else, wherever it is given."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.uris import as_uri
from essp_common.errors import ConfigError, EsspError, NotFound
from essp_common.job.spec import parse_spec
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.s3 import S3Store
from essp_common.objects.uris import place_of
from essp_common.wiring import Stores
from tests.harness.refused import Refusal, refused

ENDPOINT = "http://127.0.0.1:9000"
HOSTILE = (
    "s3://bucket/x?endpoint=http://evil:80/%23",
    "s3://bucket/x?region=eu-west-1",
    "s3://bucket/x#fragment",
    "s3://bucket/../other",
    "s3://bucket/../../x",
    "s3://bucket/./x",
    "s3://bucket//x",
    "s3://bucket/x//",
    "s3://bucket/%2e%2e/x",
    "s3://bucket/%2E%2E%2Fx",
    "s3://bucket/a%252fb",
    "s3://bucket/a\\b",
    "s3://bucket/a\nb",
    "s3://bucket/a\x85b",
    "s3://bucket/a\ud800",
    "s3://bucket/" + "a" * 2000,
    "file:///root/../escaped",
    "file:///root/..",
)
PARTS = st.text(st.characters(exclude_categories=("Cs", "Cc", "Zl", "Zp"), exclude_characters="/?#%\\"), min_size=1)
PLAIN = PARTS.filter(lambda part: part not in (".", "..") and len(part) < 50)


@pytest.mark.parametrize("uri", HOSTILE)
def test_a_uri_that_is_more_than_a_root_and_a_key_is_refused_everywhere(uri: str, tmp_path: Path) -> None:
    stores = Stores([f"s3://bucket?endpoint={ENDPOINT}", "file:///root"])
    with pytest.raises(ConfigError):
        place_of(uri)
    with pytest.raises(ConfigError):
        stores.under(uri)
    with pytest.raises(ConfigError):
        stores.resolve(uri)


@pytest.mark.parametrize("uri", [uri for uri in HOSTILE if "\ud800" not in uri and uri.isprintable()])
@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("output: {}\ntrainers: {{rgb: {{stream: rgb}}}}", ("output", "invalid")),
        ("output: file:///x\ndata: {{catalog: {}}}\ntrainers: {{rgb: {{stream: rgb}}}}", ("data.catalog", "invalid")),
        ("output: file:///x\ntrainers: {{rgb: {{stream: rgb, weights: {}}}}}", ("trainers.rgb.weights", "invalid")),
        ("output: file:///x\npredictor: {{model: {}}}", ("predictor.model", "invalid")),
    ],
)
def test_a_job_with_such_a_uri_is_refused_with_the_name_of_the_field(text: str, field: Refusal, uri: str) -> None:
    quoted = "'" + uri + "'"
    with refused(*field):
        parse_spec("name: a\n" + text.format(quoted))


def test_the_query_of_a_configured_root_stays_and_no_other_is_used() -> None:
    store = Stores([f"s3://bucket/jobs?endpoint={ENDPOINT}"]).under("s3://bucket/jobs/a/b/")
    assert isinstance(store, S3Store)
    assert store._client.meta.endpoint_url == ENDPOINT
    assert store.uri("c") == "s3://bucket/jobs/a/b/c"


def test_a_root_holds_whole_parts_only() -> None:
    stores = Stores(["file:///data/a", f"s3://bucket/jobs?endpoint={ENDPOINT}"])
    for outside in (
        "file:///data/ab/x",
        "file:///data",
        "s3://bucket/jobsx",
        "s3://bucket2/jobs/x",
        "file://host/data/a/x",
    ):
        with pytest.raises(ConfigError, match="no configured store"):
            stores.under(outside)
        with pytest.raises(NotFound, match="no configured store"):
            stores.resolve(outside)


def test_the_innermost_root_holds_a_place() -> None:
    stores = Stores(["file:///data", "file:///data/a/b", "file:///data/a"])
    assert stores.resolve("FILE:///data/a/b/c/d")[1] == "c/d"
    assert stores.resolve("file:///data/a/c")[1] == "c"


def test_a_root_that_is_none_names_the_setting() -> None:
    with refused("ESSP_STORES"):
        Stores(["file:///data/../x"])


@given(st.lists(PLAIN, max_size=4), st.lists(PLAIN, min_size=1, max_size=4))
def test_what_passes_lies_below_its_root_and_reads_the_same_again(root: list[str], parts: list[str]) -> None:
    base = place_of("/".join(["file://", *root]) + "/")
    place = place_of("/".join(["file://", *root, *parts]))
    assert place_of(str(place)) == place
    assert place.below(base) == "/".join(parts)


@given(st.text(max_size=40), st.lists(st.sampled_from(["..", ".", "", "%2e%2e", "a", "?", "#", "\\", "/"]), max_size=6))
def test_no_text_leads_out_of_a_root(text: str, parts: list[str]) -> None:
    stores = Stores(["file:///root/inner"])
    for uri in (text, f"file:///root/inner/{text}", "file:///root/inner/" + "/".join(parts)):
        for video in (False, True):
            try:
                store, key = stores.resolve(uri, video)
                path = store.uri(key).removeprefix("file://") if key else "/root/inner"
            except EsspError:
                continue
            assert Path(path).is_relative_to("/root/inner")
            assert ".." not in Path(path).parts


@given(PLAIN)
def test_any_character_but_the_separator_may_be_in_the_name_of_a_video(part: str) -> None:
    stores = Stores(["file:///videos"])
    for name in (part, quote(part, safe=""), f"{part}?x=1", f"#{part}", f"{part}\\{part}"):
        assert stores.resolve(f"file:///videos/c/{name}", video=True)[1] == f"c/{name}"


def test_a_folder_of_videos_may_have_any_name(tmp_path: Path) -> None:
    folder = tmp_path / "C# 100%25?"
    folder.mkdir()
    (folder / "v.mp4").write_bytes(b"x")
    stores = Stores(["file:///"])
    assert [info.key for info in stores.under(as_uri(str(folder)), videos=True).list()] == ["v.mp4"]
    with pytest.raises(ConfigError):
        stores.under(as_uri(str(folder)))


def test_a_path_with_two_slashes_first_is_one_uri() -> None:
    assert as_uri("//data/x") == "file:///data/x"


def test_a_link_below_the_root_does_not_widen_where_may_be_written(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "outside")
    store = Stores([f"file://{tmp_path}/root"]).under(f"file://{tmp_path}/root/link/job")
    assert isinstance(store, DirectoryStore)
    with pytest.raises(NotFound, match="symbolic link"):
        store.put("a", b"x")
    assert not list((tmp_path / "outside").iterdir())
