"""Jobs whose clips go to loops of the user's own."""

from __future__ import annotations

from typing import Any

import pytest

from essp_common.job.spec import JobSpec
from essp_common.messages.recipe import clip_consumers, recipe_of

STREAMS = {"rgb": {"feature": "rgb"}, "flow": {"feature": "flow"}}


def job(**fields: Any) -> JobSpec:
    document = {"name": "loop", "output": "file:///out", "consumers": {"mine": {"stream": "rgb"}}, "epochs": 3}
    return JobSpec.model_validate(document | fields)


def test_a_consumer_is_a_reader_of_its_stream() -> None:
    spec = job(consumers={"a": {"stream": "rgb"}, "b": {"stream": "rgb"}, "c": {"stream": "flow"}}, streams=STREAMS)
    assert spec.readers() == {"consumer.a": "rgb", "consumer.b": "rgb", "consumer.c": "flow"}
    assert sorted(clip_consumers(recipe_of(spec))) == ["consumer.a", "consumer.b", "extractor.flow"]


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"trainers": {"t": {"stream": "rgb"}}}, "give one of `trainers`"),
        ({"predictor": {"model": "file:///m"}}, "give one of `trainers`"),
        ({"consumers": {}}, "give one of `trainers`"),
        ({"consumers": {"mine": {"stream": "rbg"}}}, r"consumers\.mine\.stream: no stream 'rbg'; .*rgb"),
        ({"sampling": {"rank": 2, "ranks": 2}}, "rank: 2 is not one of 2 ranks"),
        ({"consumers": {}, "trainers": {"t": {"stream": "rgb"}}, "sampling": {"ranks": 2}}, r"sampling\.ranks: only"),
    ],
)
def test_what_contradicts_itself_is_refused(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        job(**fields)
