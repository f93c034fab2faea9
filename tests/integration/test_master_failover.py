"""Masters that are killed at every stage of a job and replaced each time; and two masters at once.

One job runs on the whole fleet, as processes over real servers. Whatever happens to the masters, the weights equal
those of an undisturbed run in one process, each command is applied once, and the audit finds no violation.
"""

from __future__ import annotations

import json
import signal
import socket
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp.servers.servers import RedisServer, S3Server
from essp_common.job.spec import parse_spec
from essp_common.job.status import JobState
from essp_common.runtime.config import Settings
from essp_common.runtime.failpoints import VARIABLE
from essp_common.wiring import Stores
from tests.conftest import BUCKET
from tests.harness.brokers import kafka_broker
from tests.harness.embedded_jobs import complete
from tests.harness.journeys import JobOptions, job_text, make_videos, weights_of
from tests.harness.waiting import LONGEST_S
from tests.integration.fleet import Api, Fleet, Process

pytestmark = pytest.mark.integration

TOKEN = "a-secret"
EPOCHS, CLIPS, BUDGET = 3, 24, "256KiB"
FENCED, UNAVAILABLE = 4, 6
"""The exit codes of `essp` for a conflict, and for a master that does not answer."""


@dataclass
class FailoverFleet:
    """The fleet, and the master of the moment."""

    fleet: Fleet
    stores: Stores
    root: str
    port: int
    masters: list[Process] = field(default_factory=list)
    apis: list[Api] = field(default_factory=list)

    def start(self, failpoint: str = "", port: int | None = None) -> None:
        """Start a master; with a failpoint it kills itself there."""
        armed = {VARIABLE: f"{failpoint}:kill"} if failpoint else {}
        self.masters.append(self.fleet.start("master", "--port", str(port or self.port), **armed))

    def master(self, failpoint: str = "", port: int | None = None) -> Api:
        """The same, and wait until it answers."""
        self.start(failpoint, port)
        self.apis.append(Api(self.fleet, self.masters[-1], TOKEN))
        return self.apis[-1]

    def killed(self) -> None:
        """The newest master has died at its failpoint."""
        self.fleet.gone(self.masters[-1], -signal.SIGKILL)

    def refuses(self, command: str, content: str = "") -> None:
        """A command during which the master dies: it is not answered. Empty: start the job that is the content."""
        url = f"http://127.0.0.1:{self.port}/v1/jobs{command}"
        headers = {"Authorization": f"Bearer {TOKEN}"} | ({"Content-Type": "application/yaml"} if content else {})
        with pytest.raises(httpx.TransportError):
            httpx.post(url, content=content, headers=headers, timeout=LONGEST_S)
        self.killed()


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("videos")
    make_videos(root)
    return root


@pytest.fixture(scope="module")
def expected(videos: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The weights of a run in this process."""
    folder = tmp_path_factory.mktemp("embedded")
    catalog, output = f"file://{folder}/catalog.parquet", f"file://{folder}/run"
    build(f"file://{videos}", catalog, ("file:///",), BuildOptions("folders"))
    text = job_text("whole", output=output, catalog=catalog, epochs=EPOCHS, clips=CLIPS, budget=BUDGET)
    with Embedded(parse_spec(text), Settings()) as job:
        complete(job)
    return weights_of(Stores(("file:///",)), output)


@pytest.fixture
def failover(videos: Path, s3_server: S3Server, redis_server: RedisServer, tmp_path: Path) -> Iterator[FailoverFleet]:
    prefix = uuid.uuid4().hex[:10]
    store_url, root = s3_server.store(BUCKET, prefix), f"s3://{BUCKET}/{prefix}"
    stores = Stores((store_url,))
    for path in sorted(videos.rglob("*.*")):
        stores.under(root).put_file(f"videos/{path.relative_to(videos)}", str(path))
    build(f"{root}/videos", f"{root}/catalog.parquet", (store_url,), BuildOptions("folders"))
    redis_server.execute("FLUSHALL")
    with kafka_broker(tmp_path) as kafka, socket.socket() as reserved:
        environment = {
            "ESSP_BUS": kafka.url,
            "ESSP_CACHE": redis_server.url,
            "ESSP_STORES": json.dumps([store_url]),
            "ESSP_API_TOKEN": TOKEN,
            "ESSP_DECODER_PROCESSES": "1",
            "ESSP_HISTORY_S": "0.2",
        }
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        with Fleet(environment, tmp_path) as fleet:
            made = FailoverFleet(fleet, stores, root, reserved.getsockname()[1])
            yield made
            for api in made.apis:
                api.close()


def test_a_job_outlives_its_masters(failover: FailoverFleet, expected: dict[str, str]) -> None:
    fleet, job = failover.fleet, "failover"
    output = f"{failover.root}/runs/{job}"
    catalog = f"{failover.root}/catalog.parquet"
    text = job_text(job, output=output, catalog=catalog, epochs=EPOCHS, clips=CLIPS, budget=BUDGET)

    for point in ("fence-taken:1", "start-recorded:1"):  # nobody was told
        assert not failover.master(f"master.{point}").knows(job)
        failover.refuses("", content=text)
    assert not failover.master("master.start-published:1").knows(job)
    for arguments in (["decoder"], ["extractor", "run", "--feature", "flow"], ["aggregator"]):
        fleet.start(*arguments)
    trainers = [fleet.start("trainer", "--job", job, "--trainer", name) for name in ("rgb", "flow")]
    failover.refuses("", content=text)  # before the answer: the job is under way all the same

    api = failover.master("master.command-published:1")
    api.until(job, "is known", lambda status: status.state is JobState.RUNNING)
    assert api.start(text) == 409
    failover.refuses(f"/{job}:pause")  # published, and not answered: it holds

    api = failover.master("master.command-entered:1")
    assert (api.status(job).state, api.start(text)) == (JobState.PAUSED, 409)
    failover.refuses(f"/{job}:resume")  # neither published nor answered: it does not

    api = failover.master("master.history-written:4")
    assert api.status(job).state is JobState.PAUSED
    assert (api.ask(job, "pause"), api.ask(job, "resume")) == (200, 200)
    failover.killed()  # its history is written, its messages are not done

    for point in ("progress-done:2", "start-recorded:1", "taken-over:1", "instructions-published:4"):
        failover.start(f"master.{point}")
        failover.killed()

    api = failover.master()
    first = failover.masters[-1]
    assert api.ask(job, "pause") == 200  # so that it does not end before the second one is up
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        other = free.getsockname()[1]
    api = failover.master(port=other)  # a second one, beside the first
    fleet.gone(first, FENCED)
    assert "only one master may run" in first.log.read_text()
    assert api.status(job).state is JobState.PAUSED
    assert api.ask(job, "resume") == 200

    status = api.until(job, "has ended", lambda status: status.state.ended)
    assert status.state is JobState.COMPLETED, status.reason
    for trainer in trainers:
        fleet.ended(trainer)
    assert weights_of(failover.stores, output) == expected
    audit = json.loads(fleet.run("audit", job, "--server", api.url, "--json"))
    assert [finding["holds"] for finding in audit["findings"]] == [True] * 7, audit
    fleet.kill(failover.masters[-1])
    api = failover.master(port=other)
    assert api.status(job).counts == status.counts, "what had ended is known from its history"
    assert api.ask(job, "resume") == 409


@pytest.mark.lane("long")
def test_a_change_of_a_running_job_outlives_trainer_and_master(
    failover: FailoverFleet, videos: Path, tmp_path: Path
) -> None:
    """By the command line; the weights are those of a run in one process whose schedule has the change there. Epochs
    too: the master dies when it has begun the run that has them, and nobody else knows of it."""
    fleet, job, lr = failover.fleet, "changed", 0.001
    output, catalog = f"{failover.root}/runs/{job}", f"{failover.root}/catalog.parquet"
    options: JobOptions = {"epochs": 6, "clips": CLIPS, "budget": BUDGET, "checkpoint": 8}
    api = failover.master("master.change-published:1")
    for arguments in (["decoder"], ["extractor", "run", "--feature", "flow"], ["aggregator"]):
        fleet.start(*arguments)
    trainers = {name: fleet.start("trainer", "--job", job, "--trainer", name) for name in ("rgb", "flow")}
    fewer: JobOptions = {**options, "epochs": 5}
    assert api.start(job_text(job, output=output, catalog=catalog, **fewer)) == 202
    api.until(job, "is under way", lambda status: status.progress.done >= CLIPS)
    assert api.ask(job, "pause") == 200  # so that it does not end before the change is made
    change = [job, f"trainers.rgb.optimizer.lr={lr}", "--json"]
    fleet.run("job", "set", *change, "--server", api.url, status=UNAVAILABLE)  # made known, and not answered
    failover.killed()
    api = failover.master("master.start-recorded:2")  # the first is its own taking over
    assert api.ask(job, "resume") == 200
    status = api.until(job, "has it", lambda status: bool(status.changes and status.changes[0].places))
    fleet.kill(trainers["rgb"])  # until the job has its epochs: it cannot end meanwhile
    again = json.loads(fleet.run("job", "set", *change, "--server", api.url))
    assert len(again["changes"]) == 1, "it is so already"
    assert "6 epochs instead of 5" in fleet.run("job", "set", job, "epochs=6", "--json", "--server", api.url)
    fleet.start("trainer", "--job", job, "--trainer", "rgb")
    failover.killed()
    api = failover.master()
    status = api.until(job, "has ended", lambda status: status.state.ended)
    assert status.state is JobState.COMPLETED, status.reason
    audit = json.loads(fleet.run("audit", job, "--server", api.url, "--json"))
    assert [finding["holds"] for finding in audit["findings"]] == [True] * 7, audit

    place = status.changes[0].places["rgb"]
    build(f"file://{videos}", f"file://{tmp_path}/whole.parquet", ("file:///",), BuildOptions("folders"))
    text = job_text("whole", output=f"file://{tmp_path}/whole", catalog=f"file://{tmp_path}/whole.parquet", **options)
    whole = parse_spec(text)
    rgb = whole.trainers["rgb"]
    update = place.epoch * CLIPS // rgb.batch_size + place.clip // rgb.batch_size
    schedule = {"unit": "updates", "steps": (update,), "gamma": lr / rgb.optimizer.lr}
    rgb = rgb.model_copy(update={"optimizer": rgb.optimizer.model_copy(update=schedule)})
    with Embedded(whole.model_copy(update={"trainers": {**whole.trainers, "rgb": rgb}}), Settings()) as reference:
        complete(reference)
    assert rgb.optimizer.lr * rgb.optimizer.gamma == lr
    assert weights_of(failover.stores, output) == weights_of(Stores(("file:///",)), whole.output)
