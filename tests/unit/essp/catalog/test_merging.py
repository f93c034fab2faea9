"""One catalog of several data sets: `essp catalog merge`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import NotFound
from essp_common.objects.directory import DirectoryStore
from tests.harness.catalog_rows import row
from tests.harness.command_line import essp
from tests.harness.refused import refused


def written(folder: Path, name: str, *rows: VideoRow) -> str:
    write_catalog(DirectoryStore(str(folder)), f"{name}.parquet", Catalog(rows, name))
    return f"{name}={folder}/{name}.parquet"


def test_rows_say_where_they_are_from_and_are_not_mixed_up(tmp_path: Path) -> None:
    own = [replace(row(f"push/{n}.mp4"), group="p1", event="e", view=view) for n, view in enumerate(("left", "right"))]
    web = [
        replace(row("push/0.mp4", "test"), group="p1", extra='{"licence": "\\ud800"}'),
        row("sing/1.mp4", error="empty"),
    ]
    given = written(tmp_path, "own", *own), written(tmp_path, "web", *web)
    out = tmp_path / "both.parquet"
    told = json.loads(essp("catalog", "merge", *given, "--out", str(out), "--json").stdout)
    assert (told["rows"], told["all_classes"]) == ({"own": 2, "web": 2}, 2)
    found = {one.id: one for one in read_catalog(DirectoryStore(str(tmp_path)), "both.parquet").rows}
    assert list(found) == ["own/push/0.mp4", "own/push/1.mp4", "web/push/0.mp4", "web/sing/1.mp4"]
    assert {one.group for one in found.values()} == {"own/p1", "web/p1", ""}
    assert {one.event for one in found.values()} == {"own/e", ""}
    assert found["web/push/0.mp4"].meta == {"licence": "\ud800", "dataset": "web"}
    before = out.read_bytes()
    assert "sampling.mix" in essp("catalog", "merge", *given, "--out", str(out)).stdout
    assert out.read_bytes() == before


def test_what_cannot_be_is_refused_and_nothing_is_overwritten(tmp_path: Path) -> None:
    own, web = written(tmp_path, "own", row("a/0.mp4")), written(tmp_path, "web", row("a/0.mp4"))
    out = str(tmp_path / "both.parquet")
    for given, field, code in (
        ((own, own), "NAME=CATALOG", "invalid"),
        ((own, "web.parquet"), "NAME=CATALOG", "invalid"),
        ((own,), "", "missing"),
        ((own, f"a/b={tmp_path}/web.parquet"), "", "invalid"),
    ):
        with refused(field, code):
            essp("catalog", "merge", *given, "--out", out)
    with pytest.raises(NotFound, match="none"):
        essp("catalog", "merge", own, f"none={tmp_path}/none.parquet", "--out", out)
    (tmp_path / "notes.parquet").write_text("mine")
    for taken in ("own.parquet", "notes.parquet"):
        before = (tmp_path / taken).read_bytes()
        with refused("--out", "exists"):
            essp("catalog", "merge", own, web, "--out", str(tmp_path / taken))
        assert (tmp_path / taken).read_bytes() == before
    essp("catalog", "merge", own, web, "--out", out)
    with refused("--column", "invalid"):
        essp("catalog", "merge", own, web, "--out", str(tmp_path / "more.parquet"), "--column", "group")
    with refused("--column", "exists"):
        essp("catalog", "merge", own, f"both={out}", "--out", str(tmp_path / "more.parquet"))
