"""A small deployment with injected faults: real servers, real worker processes, a job of a second or two.

    test process                                                    other processes
    master ──────────── "master" links ──┐                ┌── "worker" links ── decoders, extractors
    two consumers ── "consumer" links ── Kafka, Redis, S3 ┘

Every link is a proxy (`tests.harness.proxy`). The consumers stand for trainers: they take the clips of their
stream in order and record a digest of each. "The same result" means the same clips, bit for bit, in the same order,
each exactly once. After any fault, `finish` requires the same result, an empty cache, and that all credits are free.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeVar

from numpy.typing import NDArray

from essp.servers.servers import KafkaServer, RedisServer
from essp_common import topics
from essp_common.errors import TransientError
from essp_common.job.position import Position
from essp_common.job.spec import JobSpec, parse_spec
from essp_common.job.status import JobState, JobStatus
from essp_common.messages.control import ControlFeed
from essp_common.pb.v1.messages_pb2 import AGGREGATOR, CheckpointReady, Finished, Progress
from essp_common.runtime.failpoints import VARIABLE
from essp_common.wiring import Adapters, Stores, open_bus, open_cache
from essp_engine.intake.ordered import IntakeOptions, OrderedIntake, PhaseEnd
from essp_engine.video import codec
from essp_master.config import MasterSettings
from essp_master.service import Master
from tests.faults.s3_front import S3Front
from tests.harness.proxy import Proxy
from tests.harness.waiting import LONGEST_S
from tests.integration.fleet import Process

T = TypeVar("T")

SESSION_TIMEOUT_MS = 2000
CONNECT_TIMEOUT_MS = 60_000
"""Long, since many processes start at once on a machine that may be busy with other things."""
CLIPS_AHEAD = "192KiB"
"""Budget of a job: about seven clips, so a job whose consumers stand still is in the midst of it."""

LARGE_AHEAD = "1MiB"

Delivery = tuple[int, int, str]
"""Pass, index, and the digest of the frames (or why there are none)."""

_JOB = """
name: {name}
output: {root}/runs/{name}
epochs: 1
data: {{catalog: "{root}/catalog.parquet"}}
clip: {{frames: 4, resize: {{mode: crop, height: 40, width: 40}}}}
sampling: {{clips_per_epoch: {clips}, clips_per_video: 1, seed: 3}}
streams:
  rgb: {{feature: rgb}}
  flow: {{feature: {feature}, params: {{length: 3}}}}
trainers:
  rgb: {{stream: rgb, batch_size: 4, augment: {{crop: 32, flip: false}}}}
  flow: {{stream: flow, batch_size: 4, augment: {{crop: 32, flip: false}}}}
limits: {{budget: {budget}, ttl_s: {ttl_s}, coupled: {coupled}}}
"""


@dataclass
class Links:
    """The proxies in front of the three servers, as one side sees them."""

    kafka: Proxy
    redis: Proxy
    s3: Proxy

    def all(self) -> tuple[Proxy, ...]:
        return (self.kafka, self.redis, self.s3)


@dataclass
class Deployment:
    """The deployment. One for all tests of the folder; each test has a job of its own."""

    kafka: KafkaServer
    redis: RedisServer
    s3: S3Front
    bucket: str
    folder: Path
    links: dict[str, Links] = field(default_factory=dict)
    processes: list[Process] = field(default_factory=list)
    expected: dict[int, dict[str, list[Delivery]]] = field(default_factory=dict)
    """What an undisturbed job comes to, by clips of an epoch, then by consumer."""
    _started: int = 0

    # --- where things are ---

    def link(self, side: str) -> Links:
        """Proxies for one more side of the deployment."""
        made = Links(Proxy(self.kafka.port, rewrite=True), Proxy(self.redis.port), Proxy(self.s3.port))
        self.links[side] = made
        return made

    def urls(self, side: str) -> dict[str, str]:
        """The settings of a process of this side."""
        links = self.links[side]
        patience = f"session_timeout_ms={SESSION_TIMEOUT_MS}&connect_timeout_ms={CONNECT_TIMEOUT_MS}"
        return {
            "ESSP_BUS": f"kafka://127.0.0.1:{links.kafka.port}?{patience}",
            "ESSP_CACHE": f"redis://127.0.0.1:{links.redis.port}/0?socket_timeout=2",
            "ESSP_STORES": json.dumps([self.store_url(links.s3.port)]),
        }

    def store_url(self, port: int) -> str:
        return f"s3://{self.bucket}?endpoint=http://127.0.0.1:{port}"

    # --- workers ---

    def start(self, *arguments: str, failpoint: str = "", **environment: str) -> Process:
        """Start `essp ARGUMENTS` behind the worker links, armed with a failpoint."""
        self._started += 1
        log = self.folder / f"{self._started:03}-{arguments[0]}.log"
        settings = {"ESSP_DECODER_PROCESSES": "1", "ESSP_EXTRACTOR_LANES": "1", "ESSP_DRAIN_S": f"{LONGEST_S:g}"}
        armed = {VARIABLE: failpoint} if failpoint else {}
        process = Process(list(arguments), os.environ | settings | self.urls("worker") | armed | environment, log)
        self.processes.append(process)
        return process

    def decoder(self, failpoint: str = "", **environment: str) -> Process:
        return self.start("decoder", failpoint=failpoint, **environment)

    def extractor(self, failpoint: str = "", **environment: str) -> Process:
        return self.start("extractor", "run", "--feature", "flow", failpoint=failpoint, **environment)

    @contextmanager
    def working(self, *more: str) -> Iterator[None]:
        """A decoder, an extractor and these services have joined. At the end all processes drain."""
        try:
            for process in [self.decoder(), self.extractor(), *(self.start(name) for name in more)]:
                self.joined(process)
            yield
            for process in list(self.processes):
                self.drain(process)
        finally:
            for process in self.processes:
                process.popen.kill()
                process.popen.wait()

    def joined(self, process: Process) -> Process:
        """Wait until a worker has a share of its group."""
        self.until(f"{process.arguments} has joined", lambda: said(process, r"takes part with [1-9]"))
        return process

    def gone(self, process: Process, status: int | None = None) -> None:
        """Wait until a process and all that it started have ended (with this status), and forget it."""
        self.until("it has ended", lambda: process.popen.poll() is not None or None)
        self.until("what it had started has ended", lambda: not process.members() or None)
        self.processes.remove(process)
        assert status is None or process.popen.returncode == status, process.story()

    def drain(self, process: Process) -> None:
        """Have a worker leave in peace."""
        process.popen.send_signal(signal.SIGTERM)
        self.gone(process, 0)

    def until(self, what: str, look: Callable[[], T | None]) -> T:
        """The first thing but None that `look` finds."""
        return until(what, look, lambda: "\n\n".join(process.story() for process in self.processes))

    # --- jobs ---

    @contextmanager
    def master(self, adapters: Adapters) -> Iterator[Master]:
        """A master of its own, in this process."""
        # What is lost, nobody's patience is to mend. The consumers are tests, of which no heartbeat tells.
        patient = MasterSettings.model_validate({"stall_s": 10 * LONGEST_S, "ready_s": 0})
        master = Master(adapters, patient, "m1", recovers=True)
        thread = threading.Thread(target=master.run, name="master")
        thread.start()
        try:
            yield master
        finally:
            master.drain()
            thread.join(LONGEST_S)

    def adapters(self, side: str) -> Adapters:
        """Connections of this process, as one of that side."""
        urls = self.urls(side)
        bus = open_bus(urls["ESSP_BUS"])
        bus.ensure_topics({topic: topics.partitions(topic) for topic in topics.FIXED})
        return Adapters(bus, open_cache(urls["ESSP_CACHE"]), Stores(tuple(json.loads(urls["ESSP_STORES"]))))

    def spec(
        self, name: str, *, large: bool = False, feature: str = "flow", ttl_s: int = 600, coupled: bool = False
    ) -> JobSpec:
        """The job of all tests. A large one has clips on every partition, so that each worker gets some.

        Not `coupled`, a consumer that lags far behind the other has clips made again for it.
        """
        clips, budget = (topics.DATA_PARTITIONS, LARGE_AHEAD) if large else (12, CLIPS_AHEAD)
        root = f"s3://{self.bucket}"
        fields = {"name": name, "root": root, "clips": clips, "feature": feature, "budget": budget}
        return parse_spec(_JOB.format(**fields, ttl_s=ttl_s, coupled=str(coupled).lower()))

    def keys(self) -> list[str]:
        """What is in Redis now."""
        return re.findall(r"essp:\S+", self.redis.execute("KEYS", "*").decode())


class Run:
    """One job, and its two consumers."""

    def __init__(
        self, deployment: Deployment, master: Master, adapters: Adapters, spec: JobSpec, hold_at: int = 0
    ) -> None:
        """Start it. With `hold_at` the consumers stop after so many clips each, until `hold` or `go`."""
        self.name = spec.name
        self.taken: dict[str, list[Delivery]] = {consumer: [] for consumer in spec.readers()}
        self._deployment, self._master, self._adapters, self._spec = deployment, master, adapters, spec
        self._hold_at = hold_at
        self._errors: list[BaseException] = []
        self._closing = threading.Event()
        self._gate = threading.Condition()
        self._pace_s: dict[str, float] = {}
        master.start(spec)
        control = ControlFeed(adapters.bus)
        try:
            started = control.wait(spec.name, LONGEST_S)
        finally:
            control.close()
        assert started is not None
        self._phases = list(started.snapshot.phases)
        self._threads = [
            threading.Thread(target=self._consume, args=(consumer, stream), name=f"test-{consumer}")
            for consumer, stream in spec.readers().items()
        ]
        for thread in self._threads:
            thread.start()

    def held(self) -> Run:
        """Wait until both consumers stand still, and everybody else has done what the budget allows."""
        self.until("its consumers stand still", lambda: all(len(t) >= self._hold_at for t in self.taken.values()))
        self.until("what was issued is made", self._at_rest)
        return self

    def hold(self, at: int) -> None:
        """Let the consumers go on, up to so many clips each."""
        with self._gate:
            self._hold_at = at
            self._gate.notify_all()

    def go(self) -> None:
        """Let the consumers go on."""
        self.hold(0)

    def pace(self, consumer: str, seconds: float) -> None:
        """Have a consumer take so long over every clip from now on."""
        self._pace_s[consumer] = seconds

    def status(self) -> JobStatus:
        return self._master.status(self.name)

    def ended(self) -> bool:
        """Both consumers have everything."""
        return not any(thread.is_alive() for thread in self._threads)

    def finish(self) -> JobStatus:
        """Let it end, and demand the result of an undisturbed job: nothing lost, nothing twice, nothing left."""
        self.complete()
        assert self.taken == self._deployment.expected[self.clips], self._difference()
        return self.leaves_nothing()

    def _difference(self) -> str:
        """Which deliveries are not the expected ones, and what everybody has to say about it."""
        lines = [f"{self.name} came to something else: {self.status().counts}"]
        for consumer, expected in self._deployment.expected[self.clips].items():
            pairs = zip_longest(self.taken[consumer], expected)
            lines += [f"{consumer}: {mine} instead of {theirs}" for mine, theirs in pairs if mine != theirs]
        return "\n".join([*lines, *(process.story() for process in self._deployment.processes)])

    def complete(self) -> None:
        """Let the consumers come to the end, and the job with them."""
        self.go()
        self.until("its consumers have everything", self.ended)
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        for trainer in self._spec.trainers:
            uri = f"{self._spec.output}/{trainer}"
            self._report(Progress(checkpoint=CheckpointReady(job=self.name, trainer=trainer, uri=uri, final=True)))
        finished = Finished(job=self.name, stage=AGGREGATOR, uri=f"{self._spec.output}/model")
        self._report(Progress(finished=finished))
        self._adapters.bus.flush()
        self.until("it is over", lambda: self.status().state.ended)

    def leaves_nothing(self) -> JobStatus:
        """Wait until nothing of it is in the cache; its credits are back."""
        status = self.status()
        assert status.state is JobState.COMPLETED, status.reason
        assert (status.credits.outstanding_clips, status.credits.outstanding_bytes) == (0, 0)
        self._deployment.until("the cache is empty", lambda: not self._deployment.keys() or None)
        return status

    def close(self) -> None:
        """End the consumers, and the job if it is not over."""
        self._closing.set()
        self.go()
        for thread in self._threads:
            thread.join(LONGEST_S)
        if not self.status().state.ended:
            self._master.stop(self.name)

    def _at_rest(self) -> bool:
        counts = self.status().counts
        return counts.issued == counts.decoded == counts.extracted > self._hold_at

    def until(self, what: str, condition: Callable[[], bool]) -> None:
        def look() -> bool | None:
            status = self.status()
            assert status.state is not JobState.FAILED, status.reason
            return (condition() or bool(self._errors)) or None

        self._deployment.until(f"job {self.name}: {what}", look)

    def _report(self, progress: Progress) -> None:
        progress.job, progress.worker = self.name, "test"
        self._adapters.bus.publish(topics.PROGRESS, self.name.encode(), progress.SerializeToString())

    @property
    def clips(self) -> int:
        """Clips of an epoch."""
        clips = self._spec.sampling.clips_per_epoch
        assert clips is not None
        return clips

    # --- a consumer ---

    def _consume(self, consumer: str, stream: str) -> None:
        try:
            feature = self._spec.streams[stream].feature
            options = IntakeOptions(self.name, consumer, stream, feature)
            bus, cache = self._adapters.bus, self._adapters.cache
            intake = OrderedIntake(bus, cache, options, self._phases, Position(0, 0))
            try:
                while not intake.finished and not self._closing.is_set():
                    self._take(intake, consumer)
            finally:
                intake.close()
        except BaseException as error:  # noqa: BLE001  the test raises it
            self._errors.append(error)

    def _take(self, intake: OrderedIntake, consumer: str) -> None:
        taken = self.taken[consumer]
        with self._gate:
            self._gate.wait_for(lambda: not self._hold_at or len(taken) < self._hold_at)
        item = persistently(lambda: intake.take(0.1), self._closing)
        if item is None or isinstance(item, PhaseEnd):
            return
        what = f"skipped: {item.skipped}" if item.skipped else digest(codec.decode(item.value))
        taken.append((item.phase_index, item.clip.index, what))
        self._closing.wait(self._pace_s.get(consumer, 0.0))
        persistently(lambda: intake.finish([item]), self._closing)


def digest(frames: NDArray[Any]) -> str:
    """Tells clips and features apart."""
    return hashlib.sha256(frames.tobytes()).hexdigest()


def persistently(call: Callable[[], T], closing: threading.Event) -> T | None:
    """What `call` gives, however often a server has to be asked."""
    while not closing.is_set():
        try:
            return call()
        except TransientError as error:
            closing.wait(error.retry_after_s)
    return None


def until(what: str, look: Callable[[], T | None], story: Callable[[], str] = str) -> T:
    """The first thing but None that `look` finds. Fails when time is up."""
    deadline = time.monotonic() + LONGEST_S
    pause = threading.Event()
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"not within {LONGEST_S:g} s: {what}\n\n{story()}"
        pause.wait(0.05)
    return found


def said(process: Process, pattern: str) -> re.Match[str] | None:
    """Where a pattern is in a process's log."""
    return re.search(pattern, process.log.read_text(encoding="utf-8", errors="replace"))
