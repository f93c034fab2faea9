"""The spans of a whole job: each clip's way, complete and in order, whatever process a span is of."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp_common.job.spec import parse_spec
from essp_common.runtime.config import Settings
from tests.harness.collector import collecting
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import job_text, make_videos

pytestmark = [pytest.mark.slow, pytest.mark.processes, pytest.mark.lane("promises")]


def test_each_clip_of_a_job_has_its_whole_way(tmp_path: Path) -> None:
    make_videos(tmp_path / "videos")
    catalog = f"file://{tmp_path}/catalog.parquet"
    build(f"file://{tmp_path}/videos", catalog, ("file:///",), BuildOptions("folders"))
    text = job_text("night", output=f"file://{tmp_path}/run", catalog=catalog, epochs=1, clips=8, budget="64MiB")
    with collecting() as collector, Embedded(parse_spec(text), Settings(traces=collector.url, trace_share=1.0)) as job:
        status = complete(job)
    assert collector.services == {"essp-run"}
    traces = defaultdict(list)
    for span in collector.spans:
        traces[span.trace_id].append(span)
    assert len(traces) == status.progress.total
    for spans in traces.values():
        step = "train" if any(span.name == "train" for span in spans) else "evaluate"
        assert Counter(span.name for span in spans) == {"clip": 1, "decode": 1, "extract flow": 1, step: 2}
        [root] = [span for span in spans if span.name == "clip"]
        assert {span.parent_span_id for span in spans if span is not root} == {root.span_id}
        ends = {span.name: span.end_time_unix_nano for span in spans}
        assert ends["clip"] <= ends["decode"] <= ends["extract flow"] <= ends[step]
