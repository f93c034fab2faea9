"""Sources that list several views of each event, and what a catalog says of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from essp.catalog.build import BuildOptions, build
from essp.catalog.check.findings import Wanted, find
from essp.catalog.entry import Segment
from essp.catalog.sources import Listing, read_source
from essp.catalog.summary import summarize
from essp.cli.main import app
from essp_common.wiring import Stores
from essp_engine.video.synthetic import Encoding, numbered, write_video
from tests.harness.listings import make
from tests.harness.refused import refused


def csv(root: Path, text: str, view_columns: str | None = None, whole: bool = False) -> Listing:
    (root / "list.csv").write_text(text)
    stores = Stores([f"file://{root}"])
    return read_source(f"file://{root}/list.csv", stores, whole=whole, view_columns=view_columns)


def views(found: Listing) -> list[tuple[str, str, str]]:
    """The event, the view and the file of each entry."""
    return [(entry.event, entry.view, entry.uri.rpartition("/")[2]) for entry in found.entries]


TWO = [("e", "Left", "1.mp4"), ("e", "right", "2.mp4"), ("f", "Left", "3.mp4"), ("f", "right", "4.mp4")]


@pytest.mark.parametrize(
    ("text", "option"),
    [
        ("event,path:Left,path:right,label\ne,1.mp4,2.mp4,a\nf,3.mp4,4.mp4,b\n", None),
        ("event,cam1,cam2,label\ne,1.mp4,2.mp4,a\nf,3.mp4,4.mp4,b\n", "Left=cam1, right=cam2"),
        ("event,Left,right,label\ne,1.mp4,2.mp4,a\nf,3.mp4,4.mp4,b\n", "Left,right"),
        ("event,view,path,label\ne,Left,1.mp4,a\ne,right,2.mp4,a\nf,Left,3.mp4,b\nf,right,4.mp4,b\n", None),
    ],
)
def test_views_are_listed_in_columns_or_in_rows(tmp_path: Path, text: str, option: str | None) -> None:
    make(tmp_path, "1.mp4", "2.mp4", "3.mp4", "4.mp4")
    found = csv(tmp_path, text, option)
    assert views(found) == TWO
    assert [entry.id for entry in found.entries] == [f"{event}/{view}" for event, view, _ in TWO]
    assert [entry.class_name for entry in found.entries] == ["a", "a", "b", "b"]
    assert not any(entry.meta for entry in found.entries)


def test_each_view_may_have_bounds_in_its_own_clock(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4")
    found = csv(tmp_path, "path:l,path:r,label,start_s,end_s,start_s:r\n1.mp4,2.mp4,a,1,5,2.5\n")
    assert [entry.segment for entry in found.entries] == [Segment(1.0, 5.0, "s"), Segment(2.5, 5.0, "s")]
    assert [entry.event for entry in found.entries] == ["1.mp4#1-5s"] * 2, "the first view names the event"


def test_a_view_that_is_missing_is_an_entry_with_its_reason(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    found = csv(tmp_path, "event,path:l,path:r,label\ne,1.mp4,,a\nf,1.mp4,gone.mp4,a\n")
    reasons = {(entry.event, entry.view): (entry.error or "").partition(":")[0] for entry in found.entries}
    assert reasons == {("e", "l"): "", ("e", "r"): "missing", ("f", "l"): "", ("f", "r"): "missing"}


def test_rows_of_an_event_agree(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4", "2.mp4", "3.mp4")
    found = csv(tmp_path, "event,view,path,label\ne,l,1.mp4,a\ne,r,2.mp4,b\nf,l,3.mp4,a\n")
    assert [(entry.error or "").partition(":")[0] for entry in found.entries] == ["mislabelled", "mislabelled", ""]


def test_columns_of_views_that_make_no_sense_are_refused(tmp_path: Path) -> None:
    make(tmp_path, "1.mp4")
    plain = "path,label\n1.mp4,a\n"
    for option, code in (("left", "unknown"), ("path,x=path", "conflict"), ("=path", "invalid"), ("path,,", "invalid")):
        with refused("--view-columns", code):
            csv(tmp_path, plain, option)
    with refused("--view-columns", "unsupported"):
        read_source(f"file://{tmp_path}", Stores([f"file://{tmp_path}"]), view_columns="a,b")
    with refused("--whole", "unsupported"):
        csv(tmp_path, "path:l,path:r,label,start_s\n1.mp4,1.mp4,a,1\n", whole=True)


def test_events_and_views_are_counted_and_incomplete_ones_named(tmp_path: Path) -> None:
    for name in ("1l", "1r", "2l"):
        write_video(tmp_path / f"{name}.mp4", numbered(4, 32, 32), Encoding("mpeg4"))
    (tmp_path / "list.csv").write_text("event,path:l,path:r,label\none,1l.mp4,1r.mp4,a\ntwo,2l.mp4,2r.mp4,a\n")
    out = f"file://{tmp_path}/c.parquet"
    built = build(f"file://{tmp_path}/list.csv", out, ("file:///",), BuildOptions())
    events = summarize(built.catalog).events
    assert events is not None
    assert (events.count, events.whole, events.views) == (2, 1, {"l": 2, "r": 1})
    [partial] = events.partial
    assert partial.startswith("two: r: missing")
    found = [one for one in find(list(built.catalog.rows), {}, Wanted(frames=1)) if one.kind == "views"]
    assert [(one.subject, one.videos) for one in found] == [("two", ("two/l", "two/r"))]
    shown = CliRunner().invoke(app, ["catalog", "show", f"{tmp_path}/c.parquet"]).output
    assert "2 events, 1 with all views" in shown
    again = build(f"file://{tmp_path}/list.csv", out, ("file:///",), BuildOptions())
    assert again.catalog == built.catalog
    with refused("--background", "unsupported"):
        build(f"file://{tmp_path}/list.csv", out, ("file:///",), BuildOptions(background="none"))
