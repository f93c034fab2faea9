"""Catalogs that move together with their videos, and videos that move away from their catalog."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from essp.catalog.relocation import Relocated, relocate
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import is_relative, read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError
from essp_common.objects.block_sums import head_sums
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores, open_store
from tests.harness.catalog_rows import row
from tests.harness.listings import make
from tests.harness.refused import refused

_STORES = Stores(["file:///", "fsspec+memory://"])


def _rows(folder: Path, *names: str) -> list[VideoRow]:
    """The rows of files, as a build makes them."""
    make(folder, *names)
    store = open_store(f"file://{folder}")
    return [_row(store, name) for name in names]


def _row(store: ObjectStore, name: str) -> VideoRow:
    info = store.head(name)
    sums = head_sums(store.local_path(name) or "")
    known = replace(row(name), uri=store.uri(name), size_bytes=info.size_bytes, etag=info.etag)
    return replace(known, sums=sums.packed() if sums else b"")


def _written(path: Path, rows: list[VideoRow], relative: bool | None = None, source: str = "") -> Catalog:
    catalog = Catalog(rows, source or f"file://{path.parent}")
    write_catalog(open_store(f"file://{path.parent}"), path.name, catalog, relative=relative)
    return catalog


def _uris(path: Path) -> list[str]:
    return [each.uri for each in read_catalog(open_store(f"file://{path.parent}"), path.name).rows]


# --- relative URIs ---


@pytest.mark.parametrize("folder", ["", "videos", "Läufe 100%/a"])
def test_a_catalog_beside_its_videos_moves_with_them(tmp_path: Path, folder: str) -> None:
    here = tmp_path / "here"
    catalog = _written(here / "c.parquet", _rows(here / folder, "a/1.mp4", "b/2.mp4"))
    assert read_catalog(open_store(f"file://{here}"), "c.parquet") == catalog
    here.rename(tmp_path / "there")
    moved = read_catalog(open_store(f"file://{tmp_path}"), "there/c.parquet")
    place = f"file://{tmp_path}/there/{folder}".rstrip("/")
    assert [each.uri for each in moved.rows] == [f"{place}/a/1.mp4", f"{place}/b/2.mp4"]
    assert moved.source == f"file://{tmp_path}/there"


def test_segments_and_unusable_rows_move_as_well(tmp_path: Path) -> None:
    rows = _rows(tmp_path / "here", "a.mp4")
    rows += [replace(rows[0], id="a.mp4#3-4"), replace(rows[0], id="gone", uri="", error="missing: gone")]
    rows += [replace(rows[0], id="far", uri="file:///elsewhere/far.mp4", error="missing: far")]
    _written(tmp_path / "here" / "c.parquet", rows)
    (tmp_path / "here").rename(tmp_path / "there")
    place = f"file://{tmp_path}/there/a.mp4"
    assert _uris(tmp_path / "there" / "c.parquet") == [place, place, "file:///elsewhere/far.mp4", ""]


def test_a_catalog_apart_from_its_videos_is_relative_only_if_asked(tmp_path: Path) -> None:
    rows = _rows(tmp_path / "all" / "videos", "a/1.mp4", "b/2.mp4")
    path = tmp_path / "all" / "catalogs" / "c.parquet"
    store = open_store(f"file://{path.parent}")
    _written(path, rows)
    assert not is_relative(store, path.name)
    _written(path, rows, relative=True)
    assert is_relative(store, path.name)
    assert _uris(path) == [each.uri for each in rows]
    (tmp_path / "all").rename(tmp_path / "moved")
    expected = [f"file://{tmp_path}/moved/videos/{name}" for name in ("a/1.mp4", "b/2.mp4")]
    assert _uris(tmp_path / "moved" / "catalogs" / "c.parquet") == expected


def test_videos_in_another_store_have_no_relative_path(tmp_path: Path) -> None:
    rows = [replace(row("a"), uri="s3://bucket/a.mp4")]
    with refused("--relative", "unsupported"):
        _written(tmp_path / "c.parquet", rows, relative=True)


@pytest.mark.integration
def test_a_relative_catalog_in_a_bucket_stays_in_its_bucket(tmp_path: Path, empty_s3_url: str) -> None:
    store = open_store(empty_s3_url)
    begin = store.uri("x").removesuffix("/x")
    rows = [replace(row("1.mp4"), uri=f"{begin}/videos/1.mp4")]
    write_catalog(store, "c/d.parquet", Catalog(rows, f"{begin}/videos"), relative=True)
    assert read_catalog(store, "c/d.parquet") == Catalog(rows, f"{begin}/videos")
    store.put("copied/c/d.parquet", store.get("c/d.parquet"))
    assert read_catalog(store, "copied/c/d.parquet").rows[0].uri == f"{begin}/copied/videos/1.mp4"


# --- relocate ---


def test_videos_that_moved_are_found_in_their_new_place(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    _written(path, _rows(tmp_path / "old" / "videos", "a/1.mp4", "b/2.mp4"), relative=False)
    (tmp_path / "old").rename(tmp_path / "new")
    done = relocate(f"file://{path}", _STORES, f"file://{tmp_path}/old/", f"file://{tmp_path}/new")
    assert done == Relocated(files=2, moved=2, taken=0, unchecked=0)
    assert _uris(path) == [f"file://{tmp_path}/new/videos/{name}" for name in ("a/1.mp4", "b/2.mp4")]
    with refused("OLD", "unknown"):
        relocate(f"file://{path}", _STORES, f"file://{tmp_path}/old", f"file://{tmp_path}/new")


def test_videos_may_come_from_and_go_to_the_top_of_a_disk(tmp_path: Path) -> None:
    """As in a container in which the folder of the videos is mounted."""
    catalog, disk = tmp_path / "c.parquet", f"file://{tmp_path}/disk"
    (found,) = _rows(tmp_path / "disk", "a.mp4")
    _written(catalog, [replace(found, uri="file:///a.mp4")], relative=False)
    relocate(f"file://{catalog}", _STORES, "file:///", disk)
    assert _uris(catalog) == [f"{disk}/a.mp4"]
    with pytest.raises(ConfigError, match=r"file:///a\.mp4 does not exist"):
        relocate(f"file://{catalog}", _STORES, disk, "file:///")


def test_only_a_catalog_is_replaced(tmp_path: Path) -> None:
    _written(tmp_path / "c.parquet", _rows(tmp_path, "1.mp4"))
    with refused("--out", "exists"):
        relocate(f"file://{tmp_path}/c.parquet", _STORES, out=f"file://{tmp_path}/1.mp4")
    assert (tmp_path / "1.mp4").read_bytes() == b"1.mp4"
    for _ in range(2):
        relocate(f"file://{tmp_path}/c.parquet", _STORES, out=f"file://{tmp_path}/new.parquet")
    assert _uris(tmp_path / "new.parquet") == [f"file://{tmp_path}/1.mp4"]


def test_copied_files_are_taken_over_if_their_content_fits(tmp_path: Path) -> None:
    here = tmp_path / "here"
    rows = _rows(here, "1.mp4", "2.mp4")
    rows[1] = replace(rows[1], sums=b"")
    _written(here / "c.parquet", rows)
    shutil.copytree(here, tmp_path / "there", copy_function=shutil.copyfile)
    for name in ("1.mp4", "2.mp4"):
        os.utime(tmp_path / "there" / name, (1, 1))
    place = tmp_path / "there" / "c.parquet"
    assert relocate(f"file://{place}", _STORES) == Relocated(files=2, moved=0, taken=2, unchecked=1)
    store = open_store(f"file://{place.parent}")
    assert [each.etag for each in read_catalog(store, "c.parquet").rows] == [
        store.head(name).etag for name in ("1.mp4", "2.mp4")
    ]
    assert is_relative(store, "c.parquet")


@pytest.mark.parametrize("change", ["gone", "longer", "other"])
def test_nothing_is_written_if_a_file_is_another_one(tmp_path: Path, change: str) -> None:
    path = tmp_path / "c.parquet"
    _written(path, _rows(tmp_path, "1.mp4", "2.mp4"))
    before = path.read_bytes()
    video_file = tmp_path / "2.mp4"
    if change == "gone":
        video_file.unlink()
    else:
        video_file.write_bytes(b"22mp4" if change == "other" else b"longer")
        os.utime(video_file, (1, 1))
    with refused("", "not_found"):
        relocate(f"file://{path}", _STORES)
    assert path.read_bytes() == before
