"""Which clips are traced, under which ids, and what a collector gets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp_common.pb.v1.messages_pb2 import TRAIN, ClipRef
from essp_common.runtime import tracing
from tests.harness.collector import Collector, collecting


@pytest.fixture
def collector() -> Iterator[Collector]:
    with collecting() as made:
        yield made


CLIP = ClipRef(job="night", purpose=TRAIN, epoch=2, index=7)


def test_spans_of_several_processes_make_up_one_trace(collector: Collector) -> None:
    with tracing.exported(collector.url, 1.0, "master", "m"):
        assert tracing.traces()
        tracing.issued("night", TRAIN, 2, 7)
    with tracing.exported(f"{collector.url}/", 1.0, "decoder", "d"):
        tracing.span("decode", CLIP, 0.25, bytes=100)
    assert not tracing.traces()
    tracing.span("decode", CLIP)
    root, decode = collector.spans
    assert collector.services == {"essp-master", "essp-decoder"}
    assert (root.name, root.parent_span_id) == ("clip", b"")
    assert (decode.name, decode.parent_span_id, decode.trace_id) == ("decode", root.span_id, root.trace_id)
    assert decode.end_time_unix_nano - decode.start_time_unix_nano == 250_000_000
    about = {a.key: a.value.string_value or a.value.int_value for a in decode.attributes}
    assert about == {"essp.job": "night", "essp.purpose": TRAIN, "essp.epoch": 2, "essp.clip": 7, "essp.bytes": 100}


def test_a_collector_that_is_away_is_no_trouble(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "0.1")  # it would try again for ten seconds
    with tracing.exported("http://127.0.0.1:9", 1.0, "decoder", "d"):
        tracing.span("decode", CLIP)
    assert "Failed to export span" in caplog.text


@given(st.text(max_size=20), st.integers(0, 4), st.integers(0, 10**6), st.integers(0, 2**63))
def test_ids_follow_from_the_clip(job: str, purpose: int, epoch: int, index: int) -> None:
    trace_id, span_id = tracing.ids_of(job, purpose, epoch, index)
    assert (trace_id, span_id) == tracing.ids_of(job, purpose, epoch, index)
    assert 0 < trace_id < 2**128
    assert 0 < span_id < 2**64
    assert (trace_id, span_id) != tracing.ids_of(job, purpose, epoch, index + 1)
    kept = [tracing.is_sampled(trace_id, share / 10) for share in range(11)]
    assert kept == sorted(kept), "who is among a share is among every larger one"
    assert (kept[0], kept[-1]) == (False, True)


def test_about_the_share_is_sampled() -> None:
    sampled = sum(tracing.is_sampled(tracing.ids_of("night", TRAIN, 0, index)[0], 0.1) for index in range(10_000))
    assert abs(sampled - 1000) < 4 * (10_000 * 0.1 * 0.9) ** 0.5
