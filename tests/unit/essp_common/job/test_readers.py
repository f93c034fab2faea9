"""How many readers of a clip a job may have: trainers, and the streams that are extracted for them."""

from __future__ import annotations

import pytest

from essp_common.job.fields import MOST_READERS
from essp_common.job.spec import JobSpec
from essp_common.pb.v1.messages_pb2 import OutstandingClip
from essp_engine.preflight.sizing import parts_of
from tests.harness.refused import refused


def job(trainers: int, streams: int) -> JobSpec:
    """Trainers that read the clips themselves, and `streams` more, of a feature each."""
    plain = {f"t{n}": {"stream": "rgb"} for n in range(trainers)}
    other = {f"x{n}": {"stream": f"s{n}"} for n in range(streams)}
    features = {f"s{n}": {"feature": "frame_diff", "params": {"length": n + 1}} for n in range(streams)}
    document = {"name": "j", "output": "file:///out", "streams": {"rgb": {}, **features}, "trainers": plain | other}
    return JobSpec.model_validate(document)


@pytest.mark.parametrize(("trainers", "streams"), [(MOST_READERS, 0), (0, MOST_READERS // 2), (MOST_READERS - 4, 2)])
def test_as_many_as_the_ledger_has_bits_for(trainers: int, streams: int) -> None:
    parts = parts_of(job(trainers, streams))
    everybody = parts.demand(parts.everyone)
    assert everybody == 2**MOST_READERS - 1
    assert OutstandingClip(left=everybody).left == everybody


@pytest.mark.parametrize(("trainers", "streams"), [(65, 0), (0, 33), (61, 2), (1000, 0)])
def test_more_are_refused_with_the_limit(trainers: int, streams: int) -> None:
    with refused("trainers", "conflict"):
        job(trainers, streams)
