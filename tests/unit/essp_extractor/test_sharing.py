"""Several features in one process: made from one delivery of a clip, with the flow computed once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from essp_common import topics
from essp_engine.features import registry
from essp_extractor.motion.fields import Field, FlowFields, Grey
from tests.harness.extractor_bench import ExtractorBench, frames_at, stream


def test_flow_is_computed_once_for_all_features_of_a_process(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []
    original = FlowFields.of

    def noted(self: FlowFields, first: Grey, second: Grey) -> Field:
        made.append(1)
        return original(self, first, second)

    monkeypatch.setattr(FlowFields, "of", noted)
    params: dict[str, dict[str, Any]] = {
        "flow": {"length": 5},
        "hof": {"length": 3, "side": 8},
        "mbh": {"length": 3, "side": 8},
    }
    bench = ExtractorBench(*[stream(f"the_{name}", name, **given) for name, given in params.items()])
    with bench.extractor(*params):
        bench.decoded(2)
        ready = bench.ready(3)
        bench.progress(3)
    assert len(made) == 5
    for name, given in params.items():
        extractor = registry.create(name, given)
        extractor.setup()
        assert np.array_equal(bench.take(ready[2, f"the_{name}"]), extractor.extract(frames_at(2)))
    assert bench.cache.usage().keys == 0
    assert bench.bus.backlog(topics.CLIPS, "extractor.flow+hof+mbh") == 0


@pytest.mark.parametrize("order", [1, -1])
def test_stream_that_cannot_be_made_leaves_the_others_alone(order: int) -> None:
    streams = [stream("motion", "flow", length=9), stream("change", "frame_diff", length=2)][::order]
    bench = ExtractorBench(*streams)
    with bench.extractor("flow", "frame_diff"):
        bench.decoded(0)
        ready = bench.ready(1)
        reports = bench.progress(2)
        (letter,) = bench.letters(1)
    assert set(ready) == {(0, "change")}
    assert [report.made.stream for report in reports if report.HasField("made")] == ["change"]
    assert [report.failed.stream for report in reports if report.HasField("failed")] == ["motion"]
    assert "the clip has 6 frame" in letter.reason
    bench.take(ready[0, "change"])
    assert bench.cache.usage().keys == 0
    assert bench.said_so_far() == []
