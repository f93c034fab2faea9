"""What all divisions came to: mean and deviation against NumPy, shares of all videos against counting."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.divisions import figures
from essp.divisions.figures import FUSED, Outcome, Outcomes
from essp.divisions.jobs import Division
from essp.divisions.page import render
from essp_common.errors import NotFound
from essp_common.wiring import Stores

COUNTS = st.lists(
    st.integers(1, 50).flatmap(lambda videos: st.tuples(st.just(videos), st.integers(0, videos))),
    min_size=1,
    max_size=25,
)


def outcomes(counts: list[tuple[int, int]], once: bool = True) -> Outcomes:
    """`counts`: videos of each division, and how many were right."""
    each = tuple(
        Outcome(
            f"fold-{n}",
            f"person {n} <&>",
            f"file:///o/fold-{n}",
            videos,
            {FUSED: {"top1": right / videos, "mean_class": 0.5, "mAP": 0.5}},
        )
        for n, (videos, right) in enumerate(counts)
    )
    return Outcomes("job", "test", each, once)


@given(COUNTS)
def test_mean_and_deviation_are_those_of_numpy_and_shares_those_of_counting(counts: list[tuple[int, int]]) -> None:
    found = outcomes(counts)
    shares = np.array([right / videos for videos, right in counts])
    assert found.mean()[FUSED]["top1"] == pytest.approx(np.mean(shares), abs=1e-12)
    if len(counts) == 1:
        assert found.deviation() == {}, "one says nothing of how far others would be"
    else:
        assert found.deviation()[FUSED]["top1"] == pytest.approx(np.std(shares, ddof=1), abs=1e-12)
    right, videos = sum(r for _, r in counts), sum(v for v, _ in counts)
    assert found.of_all_videos() == {FUSED: {"top1": pytest.approx(right / videos, abs=1e-12)}}
    assert json.loads(json.dumps(found.document()))["divisions"][0]["videos"] == counts[0][0]


def test_of_videos_that_are_tested_on_several_times_there_is_no_share() -> None:
    assert outcomes([(4, 2), (4, 3)], once=False).of_all_videos() == {}


def test_only_what_all_divisions_have_is_compared() -> None:
    first, second = outcomes([(4, 2), (4, 3)]).each
    more = Outcome(second.name, "b", second.output, 4, {"rgb-1": {"top1": 0.5, "mean_class": 0.5}, **second.figures})
    assert Outcomes("job", "test", (more, first), True).columns == (FUSED,)
    older = replace(second, figures={FUSED: {**second.figures[FUSED], "top5": 1.0}})
    both = Outcomes("job", "test", (older, first), True)
    assert both.mean()[FUSED].keys() == both.deviation()[FUSED].keys() == first.figures[FUSED].keys()
    assert both.of_all_videos()[FUSED].keys() == {"top1"}
    assert "100.0 %" in render(both), "what some have is shown of them"


def test_the_page_links_each_report_and_escapes_what_comes_from_the_data() -> None:
    page = render(outcomes([(4, 2), (10, 9)]))
    assert '<a href="fold-1/report/report.html">person 1 &lt;&amp;&gt;</a>' in page
    assert "70.0 %" in page, "mean of 50 % and 90 %"
    assert "28.3 %" in page, "their standard deviation"
    assert "78.6 %" in page, "11 of 14 videos"
    assert "<&>" not in page


def test_a_division_without_figures_is_named_and_not_left_out_of_the_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = SimpleNamespace(videos=4, members={}, fused={"top1": 0.5})
    models = {
        "fold-1": SimpleNamespace(test=measured, validation=measured),
        "fold-2": SimpleNamespace(test=None, validation=None),
    }
    divisions: Any = [Division(name, name, SimpleNamespace(output=f"file:///o/{name}")) for name in models]  # type: ignore[arg-type]
    monkeypatch.setattr(figures, "read_model", lambda output, key: models[output.uri("x").split("/")[-2]])
    with pytest.raises(NotFound, match="/o/fold-2 has no figures of the validation split"):
        figures.outcomes("job", divisions, Stores(("file:///",)), once=True)
    assert figures.outcomes("job", divisions[:1], Stores(("file:///",)), once=True).split == "test"


def test_divisions_that_learned_labels_are_shown_by_map() -> None:
    first, second = outcomes([(4, 2), (4, 3)]).each
    of_labels = [
        replace(one, figures={FUSED: {"top1": 0.9, "mAP": value}}) for one, value in ((first, 0.25), (second, 0.5))
    ]
    found = Outcomes("job", "test", tuple(of_labels), True)
    page = render(found)
    assert found.of_all_videos() == {}
    assert "fused mAP, test, mean" in page
    assert "37.5 %" in page, "mean of 25 % and 50 %"
