"""What a catalog holds, in figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from essp.catalog.summary import COLUMNS, summarize
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog, write_catalog
from essp_common.wiring import open_store
from tests.harness.catalog_rows import row


def test_groups_on_both_sides_of_given_splits_are_told() -> None:
    rows = (replace(row("a/1"), group="g"), replace(row("a/2", "test"), group="g"), replace(row("a/3"), group="h"))
    summary = summarize(Catalog(rows))
    assert summary.groups == {"test": 1, "train": 2}
    assert summary.straddling == {"g": ("test", "train")}


def test_a_summary_adds_up() -> None:
    rows = (
        row("a/1"),
        replace(row("a/2#0-24", uri="file:///a/1"), last_frame=24),
        replace(row("b/1", "test"), seekable=False, keyframe_frame=()),
        row("b/2", error="damaged: block 7"),
        row("c/1", error="damaged: block 9"),
        row("c/2", error="missing: gone"),
    )
    summary = summarize(Catalog(rows, "here"), examples=1)
    assert (summary.rows, summary.usable.videos, summary.usable.frames) == (6, 3, 125)
    assert summary.usable.hours == pytest.approx(5 / 3600)
    assert summary.usable.bytes == 2000, "a file with two segments is there once"
    assert summary.splits["test"].videos == 1
    assert summary.classes == {"a": {"train": 2}, "b": {"test": 1}, "c": {}}
    assert summary.codecs == {"mov/h264/yuv420p": 3}
    assert summary.sizes == {"320x240": 3}
    assert summary.seekable == 2
    assert summary.gop is not None
    assert {name: count for name, count in summary.gop.counts.items() if count} == {"2-12": 2, "13-30": 1, "31-60": 1}
    assert (summary.gop.shortest, summary.gop.longest) == (12, 50)
    assert [(p.kind, p.videos, p.examples) for p in summary.problems] == [
        ("damaged", 2, ("b/2: block 7",)),
        ("missing", 1, ("c/2: gone",)),
    ]


def test_a_summary_of_nothing_is_a_summary() -> None:
    assert summarize(Catalog(())).gop is None


def test_a_summary_needs_no_other_columns_than_it_says(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    catalog = Catalog((row("a/1"), row("b/1", error="damaged: x")))
    write_catalog(store, "c", catalog)
    assert summarize(read_catalog(store, "c", COLUMNS)) == summarize(catalog)
