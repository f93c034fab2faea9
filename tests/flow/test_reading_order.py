"""In which order a job reads its videos: at random to train, each in time order and once to evaluate, and not at all
to fuse, however many strategies are tried."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import pytest

from essp.embedded.composition import Embedded, EmbeddedOptions
from essp_common import topics
from essp_common.bus.memory import MemoryBus
from essp_common.job.spec import AggregationSpec, JobSpec
from essp_common.pb.v1.messages_pb2 import EMBED, TEST, TRAIN, VALIDATION, DecodeSeed
from essp_common.runtime.config import Settings
from essp_common.runtime.metrics import FRAMES
from essp_engine.decoding.sandbox import Outcome, Sandbox
from essp_engine.planning import work_units
from essp_engine.preflight import budget
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import complete

pytestmark = pytest.mark.lane("promises")

FRAMES_OF_A_VIDEO, GROUP = 24, 8
"""In a video, and in each of its groups of pictures. Clips are of four frames."""
Phase = tuple[int, int]
"""Purpose and epoch."""


@dataclass
class Trace:
    """What one job has read."""

    issued: dict[Phase, list[tuple[int, str, int]]] = field(default_factory=lambda: defaultdict(list))
    """Index, video and first frame of each seed, as the master has published them."""
    messages: dict[Phase, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    """Of each video."""
    decoded: dict[Phase, dict[str, int]] = field(default_factory=lambda: defaultdict(lambda: defaultdict(int)))
    """Frames of each video that a decoder had to decode, with those on the way to wanted ones."""


def traced(spec: JobSpec, monkeypatch: pytest.MonkeyPatch) -> Trace:
    """Run a job until it is fused, with one decoder, whose count of frames is of one message at a time."""
    trace = Trace()
    publish, decode = MemoryBus.publish, Sandbox.decode

    def published(self: MemoryBus, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        if topic == topics.SEEDS:
            unit = DecodeSeed.FromString(value)
            phase = (unit.purpose, unit.epoch)
            trace.issued[phase] += [(seed.index, unit.video.id, seed.first_frame) for seed in unit.seeds]
            trace.messages[phase][unit.video.id] += 1
        publish(self, topic, key, value, partition)

    def counted(self: Sandbox, unit: DecodeSeed) -> list[Outcome]:
        before = FRAMES.labels("decoded")._value.get()
        outcomes = decode(self, unit)
        decoded = FRAMES.labels("decoded")._value.get() - before
        trace.decoded[unit.purpose, unit.epoch][unit.video.id] += int(decoded)
        return outcomes

    monkeypatch.setattr(MemoryBus, "publish", published)
    monkeypatch.setattr(Sandbox, "decode", counted)
    with Embedded(spec, Settings(), EmbeddedOptions(decoders=1)) as job:
        status = complete(job)
    assert status.counts.reissued == 0
    return trace


def learning_from_features(spec: JobSpec, clips_per_video: int) -> JobSpec:
    strategies = ["average", {"name": "feature_linear", "penalty": [0.001, 0.01]}]
    aggregation: dict[str, Any] = {"strategies": strategies, "features": True}
    sampling = spec.sampling.model_copy(update={"clips_per_video": clips_per_video})
    return spec.model_copy(update={"aggregation": AggregationSpec.model_validate(aggregation), "sampling": sampling})


@pytest.mark.parametrize(
    ("clips", "messages", "twice"),
    [
        (6, 1, 0),  # some clips overlap, and groups of pictures have two or three
        (3, 3, 0),  # a video that counts as long: each group of pictures with its clip is a message
        (6, 2, GROUP),  # more clips than a message holds: two need the group of pictures in the middle
    ],
)
def test_evaluation_reads_each_video_once_in_time_order_and_training_at_random(
    make_job: MakeJob, monkeypatch: pytest.MonkeyPatch, clips: int, messages: int, twice: int
) -> None:
    if messages == 3:
        monkeypatch.setattr(work_units, "PIECE_PIXELS", 1)
        monkeypatch.setattr(work_units, "_LONG_PIXELS", 1)
    if messages == 2:
        monkeypatch.setattr(budget, "_UNIT_CLIPS", 3)
        monkeypatch.setattr(budget, "_UNIT_FRAMES", 3 * 4)
    trace = traced(learning_from_features(make_job(clips=24), clips), monkeypatch)
    phases = {(TRAIN, 0), (VALIDATION, 0), (TRAIN, 1), (VALIDATION, 1), (EMBED, 0), (TEST, 0)}
    assert set(trace.issued) == set(trace.decoded) == phases, "the aggregator reads features alone"
    for phase, seeds in trace.issued.items():
        videos = [video for _, video, _ in seeds]
        assert [index for index, *_ in seeds] == list(range(len(seeds)))
        if phase[0] == TRAIN:
            assert len(list(groupby(videos))) > len(set(videos)), "a video comes again after others"
            continue
        assert len(list(groupby(videos))) == len(set(videos)) == 4
        for video in set(videos):
            mine = [first for _, each, first in seeds if each == video]
            assert len(mine) == clips
            assert mine == sorted(mine)
        assert set(trace.messages[phase].values()) == {messages}
        most = max(trace.decoded[phase].values())
        assert FRAMES_OF_A_VIDEO < most <= FRAMES_OF_A_VIDEO + twice if twice else most <= FRAMES_OF_A_VIDEO
    training = [[seed[1:] for seed in trace.issued[TRAIN, epoch]] for epoch in (0, 1)]
    assert training[0] != training[1]
    assert trace.issued[VALIDATION, 0] == trace.issued[VALIDATION, 1] == trace.issued[EMBED, 0]
