"""Writes whose answer is lost, whether they were done or not. The writer retries and recognises its own write."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from essp.servers.servers import S3Server
from essp_common.artifacts import layout
from essp_common.errors import Conflict
from essp_common.objects.numbered_log import numbered
from essp_common.objects.port import ObjectStore
from essp_common.wiring import open_store
from essp_engine.registrations import Registrations, TrainerRow
from tests.conftest import BUCKET
from tests.faults.conftest import Begin
from tests.faults.deployment import Deployment
from tests.faults.s3_front import S3Front

pytestmark = pytest.mark.integration

IMAGE = "registry.example/team/big@sha256:" + "0f" * 32
TRAINER = TrainerRow(name="big", image=IMAGE, models=("resnet50",))


@pytest.fixture
def front(s3_server: S3Server) -> Iterator[S3Front]:
    with S3Front(s3_server.port) as front:
        yield front


@pytest.fixture
def store(front: S3Front, unique: str) -> ObjectStore:
    """A store behind the front."""
    return open_store(f"s3://{BUCKET}/{unique}?endpoint=http://127.0.0.1:{front.port}")


@pytest.mark.parametrize("lose", [S3Front.lose_answers, S3Front.lose_writes])
def test_a_conditional_write_that_is_sent_again_is_not_its_own_rival(
    store: ObjectStore, front: S3Front, lose: Callable[[S3Front, int, str], None]
) -> None:
    lose(front, 2, "fence")
    written = store.put("fence", b"{}", if_absent=True)
    assert front.faults.total() == 2
    assert written == store.head("fence")
    lose(front, 2, "fence")
    with pytest.raises(Conflict):
        store.put("fence", b"{}", if_absent=True)  # the same bytes, but another write
    assert front.faults.total() == 4


def test_a_registration_whose_answer_is_lost_is_made_once(store: ObjectStore, front: S3Front) -> None:
    table = Registrations(store, ["registry.example/team/"])
    front.lose_answers(1, "registrations/")
    seen = table.put("trainers", TRAINER, "ann", None)
    assert front.faults["lost answer"] == 1
    assert table.row("trainers", "big") == (TRAINER, seen)
    assert len(table.changes()) == 1


def test_a_master_whose_writes_lose_their_answers_is_not_overtaken_by_itself(
    deployment: Deployment, begin: Begin
) -> None:
    """Its fence, the job's specification, and segment after segment of its history."""
    front, before = deployment.s3, deployment.s3.faults.copy()
    for about in ("fences/", "spec.json", "history/"):
        front.lose_answers(1, about)
    front.lose_writes(1, "history/")
    run = begin()
    run.finish()
    assert front.faults - before == {"lost answer": 3, "lost write": 1}
    output = open_store(
        deployment.store_url(front.port).replace(deployment.bucket, f"{deployment.bucket}/runs/{run.name}", 1)
    )
    assert [info.key for info in output.list(layout.FENCES)] == [numbered(layout.FENCES, 1)], (
        "the first fence it took was its own"
    )
