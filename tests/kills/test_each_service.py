"""One kill of each service, over real servers. Wherever else they are killed: `tests/faults`, `tests/integration`.

A training job, then a prediction job run on one fleet. Of each service one process is killed in the midst of its work,
one service after the other, and another process takes its place. Weights and answers equal those of undisturbed runs in
one process, and the audit finds no violation.
"""

from __future__ import annotations

import json
import signal
import uuid
from pathlib import Path

import pytest

from essp.api.prediction import job_of
from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp.servers.servers import RedisServer, S3Server
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.predictions import Prediction, read_predictions
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.runtime.failpoints import VARIABLE
from essp_common.wiring import Stores
from tests.conftest import BUCKET
from tests.harness.brokers import kafka_broker
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import job_text, make_videos, weights_of
from tests.integration.fleet import Api, Fleet

pytestmark = pytest.mark.integration

WORKERS = {
    ("decoder",): "decoder.stored",
    ("extractor", "run", "--feature", "flow"): "extractor.stored",
    ("trainer", "--job", "killed", "--trainer", "rgb"): "trainer.trained",
}
"""In the order of the work: each has something to do when those above it have done something."""


class Place:
    """A store with the small set, its catalog, and the output of both jobs."""

    def __init__(self, url: str, root: str) -> None:
        self.stores, self.root = Stores((url,)), root
        build(f"{root}/videos", f"{root}/catalog.parquet", (url,), BuildOptions("folders", relative=False))

    def training(self) -> JobSpec:
        return parse_spec(job_text("killed", output=f"{self.root}/run", catalog=f"{self.root}/catalog.parquet"))

    def prediction(self) -> JobSpec:
        """Of all videos, by the model that was trained."""
        answers = self.stores.under(f"{self.root}/answers")
        answers.put("catalog.parquet", self.stores.under(self.root).get("catalog.parquet"))
        _, model = open_model(self.stores, f"{self.root}/run")
        return job_of(model, f"{self.root}/run", f"{self.root}/answers")

    def results(self) -> tuple[dict[str, str], list[Prediction]]:
        """What came of both jobs."""
        answers, _ = read_predictions(self.stores.under(f"{self.root}/answers"), layout.PREDICTIONS)
        return weights_of(self.stores, f"{self.root}/run"), answers


def replaced(fleet: Fleet, arguments: tuple[str, ...], failpoint: str) -> None:
    """A process dies at its failpoint, and another one is started."""
    armed = fleet.start(*arguments, **{VARIABLE: f"{failpoint}:1:kill"})
    fleet.gone(armed, -signal.SIGKILL)
    fleet.start(*arguments)


def completed(api: Api, job: str) -> None:
    status = api.until(job, "has ended", lambda status: status.state.ended)
    assert status.state is JobState.COMPLETED, status.reason


def test_jobs_outlive_the_death_of_each_service(s3_server: S3Server, redis_server: RedisServer, tmp_path: Path) -> None:
    make_videos(tmp_path / "videos")
    name = uuid.uuid4().hex[:10]
    store_url, root = s3_server.store(BUCKET, name), f"s3://{BUCKET}/{name}"
    for path in sorted((tmp_path / "videos").rglob("*.*")):
        Stores((store_url,)).under(root).put_file(str(path.relative_to(tmp_path)), str(path))
    there, here = Place(store_url, root), Place("file:///", f"file://{tmp_path}")
    redis_server.execute("FLUSHALL")
    with kafka_broker(tmp_path) as kafka:
        environment = {
            "ESSP_BUS": kafka.url,
            "ESSP_CACHE": redis_server.url,
            "ESSP_STORES": json.dumps([store_url]),
            "ESSP_API_TOKEN": "a-secret",
            "ESSP_DECODER_PROCESSES": "1",
            "ESSP_READY_S": "0",  # the workers come later
        }
        with Fleet(environment, tmp_path) as fleet:
            first = fleet.start("master", "--port", "0")
            api = Api(fleet, first, "a-secret")
            assert api.start(there.training().model_dump_json()) == 202
            api.close()
            fleet.kill(first)
            api = Api(fleet, fleet.start("master", "--port", "0"), "a-secret")
            for arguments, failpoint in WORKERS.items():
                replaced(fleet, arguments, failpoint)
            fleet.start("trainer", "--job", "killed", "--trainer", "flow")
            replaced(fleet, ("aggregator",), "s3.stored")
            completed(api, "killed")
            audit = json.loads(fleet.run("audit", "killed", "--server", api.url, "--json"))
            assert [finding["holds"] for finding in audit["findings"]] == [True] * 7, audit
            assert api.start(there.prediction().model_dump_json()) == 202
            replaced(fleet, ("predictor",), "predictor.kept")
            completed(api, "predict")
            api.close()

    for spec in (here.training, here.prediction):
        with Embedded(spec(), Settings()) as job:
            complete(job)
    assert there.results() == here.results()
