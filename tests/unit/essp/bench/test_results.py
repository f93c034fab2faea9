"""Results drop the first run, are a table, JSON and a plot, and say when they are partial."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from essp.bench.plot import bars
from essp.bench.results import Column, Results, Row, Spread


@given(st.lists(st.floats(0, 1e9), min_size=1, max_size=8))
def test_the_first_run_is_dropped_unless_it_is_the_only_one(values: list[float]) -> None:
    spread = Spread.of(values)
    kept = values[1:] or values
    assert (spread.low, spread.high) == (min(kept), max(kept))
    assert spread.low <= spread.median <= spread.high
    assert len(spread.values) == max(1, len(values) - 1)


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        (Column("x", "x"), (1.0, 2.0, 4.5), "2.0 (1.0-4.5)"),
        (Column("x", "x", 0), (2.4, 2.0, 1.6), "2"),
        (Column("x", "MB/s", 2, 1e6), (1_234_567_890.0,), "1,234.57"),
    ],
)
def test_a_cell_is_a_median_between_the_runs(column: Column, values: tuple[float, ...], expected: str) -> None:
    assert column.shown(Spread(values)) == expected


def results() -> Results:
    rows = [
        Row(
            {"store": "source", "pipeline": kind, "prefetch": prefetch, "threads": threads},
            {"rate": Spread((1.0, 2.0, 4.0))},
        )
        for kind, prefetch in (("raw", ""), ("full", 0))
        for threads in (1, 2)
    ]
    columns = (Column("rate", "images/s"), Column("missing", "missing"))
    return Results("io", {"cores": 2}, ("store", "pipeline", "prefetch", "threads"), columns, rows, ["It binds."])


def test_the_table_leaves_out_what_is_the_same_everywhere() -> None:
    table = results().table()
    assert [column.header for column in table.columns] == ["pipeline", "threads", "images/s"]
    printed = io.StringIO()
    Console(file=printed, width=80).print(table)
    assert "full            2  2.0 (1.0-4.0)" in printed.getvalue()


def test_json_has_every_run() -> None:
    document = json.loads(results().json())
    assert document["partial"] is False
    assert document["sentences"] == ["It binds."]
    assert document["rows"][0] == {
        "store": "source", "pipeline": "raw", "prefetch": "", "threads": 1,
        "rate": {"median": 2.0, "low": 1.0, "high": 4.0, "runs": [1.0, 2.0, 4.0]},
    }  # fmt: skip
    assert json.loads(replace(results(), partial=True).json())["partial"] is True


def test_the_plot_is_a_picture_with_bars_in_each_panel() -> None:
    picture = cv2.imdecode(np.frombuffer(bars(results(), "rate", "threads", "pipeline"), np.uint8), cv2.IMREAD_COLOR)
    assert picture is not None
    height, width, _ = picture.shape
    blue = np.asarray(picture[..., 0].astype(int) - picture[..., 2] > 80)
    assert blue[:, : width // 2].any()
    assert blue[:, width // 2 :].any()
    partial = bars(replace(results(), partial=True), "rate", "threads", "pipeline")
    assert partial != bars(results(), "rate", "threads", "pipeline")
    assert height > 200
