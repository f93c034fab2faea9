"""A store that is busy while a training starts or resumes is asked again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from essp_common.errors import Unavailable
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.pb.v1.messages_pb2 import (
    Control,
)
from essp_common.wiring import Stores
from tests.harness.training_jobs import (
    Running,
    Stage,
    final_weights,
    finished,
    job_spec,
    phase_plans,
    train,
)
from tests.lanes import often


class Busy(Stores):
    """Stores that answer what they are asked of files that were there before when they are asked again."""

    def __init__(self) -> None:
        super().__init__(("file:///",))
        self.refused: set[tuple[str, str]] = set()
        self.busy = True

    def under(self, uri: str, videos: bool = False) -> ObjectStore:
        stores, there = self, {info.key for info in super().under(uri).list()}

        class Twice(DirectoryStore):
            def get(self, key: str, start: int = 0, length: int | None = None) -> bytes:
                stores.refuse_once("get", key, key in there)
                return super().get(key, start, length)

            def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
                stores.refuse_once("list", prefix, bool(there))
                return super().list(prefix)

        return Twice.from_url(uri)

    def resolve(self, uri: str, video: bool = False) -> tuple[ObjectStore, str]:
        self.refuse_once("resolve", uri, True)
        return super().resolve(uri, video)

    def refuse_once(self, what: str, key: str, there: bool) -> None:
        if self.busy and there and (what, key) not in self.refused:
            self.refused.add((what, key))
            raise Unavailable("503 Slow Down", retry_after_s=0)


@pytest.mark.parametrize("ranks", often([2, 1], 1))
def test_a_store_that_is_busy_while_a_training_resumes_is_asked_again(tmp_path: Path, ranks: int) -> None:
    whole = Stage(job_spec(tmp_path / "whole"), phase_plans(1))
    train(whole, ranks=ranks)
    stage = Stage(job_spec(tmp_path / "parts"), phase_plans(1))
    stage.command(Control.START)
    stage.feed(stage.every_position()[:4])
    with Running(stage, ranks) as running:
        stage.wait_for_trained(4)
    assert running.error is None
    stores = Busy()
    again = Stage(stage.spec, stage.plans, stores=stores)
    train(again, again.every_position()[4:], ranks=ranks, save_retry_s=0)
    stores.busy = False
    assert {what for what, _ in stores.refused} == {"get", "list"}
    assert final_weights(again) == final_weights(whole)


def test_a_store_that_is_busy_is_asked_again_for_weights_to_start_from(tmp_path: Path) -> None:
    first = finished(tmp_path / "first")
    path = tmp_path / "weights.safetensors"
    path.write_bytes(final_weights(first))
    spec = job_spec(tmp_path / "second", weights=path.as_uri())
    stores = Busy()
    stage = Stage(spec, phase_plans(1), stores=stores)
    train(stage)
    stores.busy = False
    assert ("resolve", path.as_uri()) in stores.refused
    plain = Stage(job_spec(tmp_path / "plain", weights=path.as_uri()), phase_plans(1))
    train(plain)
    assert final_weights(stage) == final_weights(plain)
