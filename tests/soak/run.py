"""The soak: job after job on a real deployment while processes are killed, drained, frozen and doubled, the cache is
emptied, and strange records come over the bus (`killer.py`).

Every job has the same specification, so each has to come to the weights of one undisturbed run, to the bit, which
shows that every clip was trained exactly once by the weights that survived. The faults go on from the first job's start
until time is up; the job that runs then is brought to its end. The master is hit like everybody else.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from essp.account import account_of
from essp.audit.invariants import Finding, check
from essp.audit.plan import planned
from essp.catalog.build import BuildOptions, build
from essp.embedded.composition import Embedded
from essp.servers.servers import free_port
from essp_common import topics
from essp_common.artifacts.history import History
from essp_common.errors import EsspError
from essp_common.job.spec import parse_spec
from essp_common.job.status import JobState, JobStatus
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.harness.journeys import job_text, make_videos, weights_of
from tests.soak.deployment import BUCKET, COUNTED, Client, Servers, await_start, servers, start_pools, until
from tests.soak.killer import Fault, FaultKind, faults
from tests.soak.supervisor import Supervisor
from tests.soak.verdict import Figures, Round, traffic

TRAINERS = ("rgb", "flow")
_LOOK_S = 0.1
_SAMPLE_S = 0.5
_TELL_S = 5.0
_END_S = 600.0
"""After the last fault a job has to end within this time."""
_EMPTY_S = 120.0


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """How long, and how hard."""

    seconds: float
    """Faults are made for so long; what runs then is brought to its end."""
    seed: int
    mean_interval_s: float
    """Between two faults, over all processes."""
    epochs: int = 2
    clips: int = 32
    budget_bytes: int = 256 * 2**10


Tell = Callable[[str], None]


def soak(options: SoakOptions, folder: Path, tell: Tell) -> Figures:
    """Run it. `folder` takes videos and logs; `tell` is given lines for people."""
    figures = Figures(seed=options.seed, budget_bytes=options.budget_bytes)
    videos = folder / "videos"
    make_videos(videos)
    tell("an undisturbed run, to compare with")
    figures.expected_weights = _undisturbed(options, videos, folder)
    with servers(folder) as found:
        catalog = found.upload(videos)
        supervisor = Supervisor(found.environment(), folder)
        try:
            _Soak(options, found, supervisor, figures, tell).run(catalog)
        finally:
            supervisor.close()
        figures.traffic = traffic(found.records(COUNTED))
    return figures


class _Soak:
    def __init__(
        self, options: SoakOptions, found: Servers, supervisor: Supervisor, figures: Figures, tell: Tell
    ) -> None:
        self._options = options
        self._servers = found
        self._supervisor = supervisor
        self._figures = figures
        self._tell = tell
        self._port = free_port()
        self._client = Client(self._port)
        self._faults: Iterator[Fault] = iter(())
        self._next: Fault | None = None
        self._began_s = self._told_s = self._sampled_s = time.monotonic()

    def run(self, catalog: str) -> None:
        """Jobs and faults until time is up, then an orderly end."""
        pools = start_pools(self._supervisor, self._port)
        trainers = [f"trainer.{name}" for name in TRAINERS]
        processes = (*pools, *trainers)
        victims: dict[FaultKind, Sequence[str]] = {
            "kill": processes,
            "term": processes,
            "stop": processes,
            "twin": trainers,
            "flush": ["redis"],
            "poison": [topics.SEEDS, topics.CLIPS, topics.features("flow"), topics.PROGRESS, topics.CONTROL],
        }
        self._faults = faults(self._options.seed, self._options.mean_interval_s, victims)
        self._next = next(self._faults)
        await_start(self._supervisor, pools)
        self._began_s = self._told_s = self._sampled_s = time.monotonic()
        try:
            number = 0
            while number == 0 or self._elapsed_s < self._options.seconds:
                number += 1
                done = self._job(f"soak-{number}", catalog)
                self._figures.rounds.append(done)
                self._tell(f"{done.job}: {done.state} after {done.seconds:.0f} s {done.reason}")
                if done.state != JobState.COMPLETED:
                    break
        finally:
            self._supervisor.drain()
            self._client.close()
            until(self._supervisor, lambda: not self._supervisor.left(), _EMPTY_S)
            figures, supervisor = self._figures, self._supervisor
            figures.seconds = self._elapsed_s
            figures.faults, figures.restarts = supervisor.faults, supervisor.restarts
            figures.unasked, figures.processes_left = supervisor.unasked, supervisor.left()

    @property
    def _elapsed_s(self) -> float:
        return time.monotonic() - self._began_s

    def _job(self, name: str, catalog: str) -> Round:
        """One job from its start to its end."""
        began = time.monotonic()
        output = f"s3://{BUCKET}/runs/{name}"
        text = _text(self._options, name, output, catalog)
        for trainer in TRAINERS:
            arguments = ("trainer", "--job", name, "--trainer", trainer)
            self._supervisor.start(f"trainer.{trainer}", *arguments, ends=True)
        status: JobStatus | None = None
        asked = False
        limit = self._options.seconds + _END_S
        while (status is None or not status.state.ended) and self._elapsed_s < limit:
            asked = asked or self._client.start(text)
            self._disturb()
            status = self._sample(name) or status
            time.sleep(_LOOK_S)
        return self._ended(name, output, status, time.monotonic() - began)

    def _ended(self, name: str, output: str, status: JobStatus | None, seconds: float) -> Round:
        """What came of a job; nothing is hit meanwhile, and its trainers leave."""
        self._supervisor.wake()
        state, reason = (status.state, status.reason) if status is not None else (JobState.PENDING, "never started")
        if status is not None and not status.state.ended:
            reason = f"not over in time: {status.progress.model_dump_json()} {status.counts.model_dump_json()}"
        until(self._supervisor, lambda: not self._servers.keys() and not self._supervisor.twins(), _EMPTY_S)
        self._supervisor.forget("trainer.")
        stores = Stores((self._servers.store,))
        try:
            weights = weights_of(stores, output) if state is JobState.COMPLETED else {}
        except EsspError as error:
            weights, reason = {}, str(error)
        findings: list[Finding] = []

        def audited() -> bool:  # the history is written a moment after what it tells of
            findings[:] = _audit(stores, output, self._client.status(name))
            return bool(findings) and all(finding.holds is not False for finding in findings)

        until(self._supervisor, audited, _EMPTY_S)
        return Round(
            job=name,
            seconds=seconds,
            state=state,
            reason=reason,
            weights=weights,
            clips=sum(passed.clips for passed in status.phases) if status is not None else 0,
            skipped=sum(passed.skipped for passed in status.phases) if status is not None else 0,
            keys_left=self._servers.keys(),
            audited=sum(finding.holds is not None for finding in findings),
            broken=[f"{f.invariant}: {'; '.join(f.violations)}" for f in findings if f.holds is False],
        )

    def _disturb(self) -> None:
        """Make the faults that are due, and repair what they broke."""
        while self._next is not None and self._elapsed_s >= self._next.at_s:
            fault = self._next
            following = next(self._faults)
            self._next = following if following.at_s < self._options.seconds else None
            if self._make(fault):
                lasting = f" for {fault.frozen_s:.1f} s" if fault.kind == "stop" else ""
                self._tell(f"{self._elapsed_s:6.1f} s  {fault.kind} {fault.victim}{lasting}")
        self._supervisor.tend()

    def _make(self, fault: Fault) -> bool:
        """Make a fault; False if what it is aimed at is not there now."""
        if fault.kind == "flush":
            self._servers.empty_redis()
        elif fault.kind == "poison":
            self._servers.publish(fault.victim, fault.record)
        else:
            return self._supervisor.hit(fault)
        self._supervisor.count(fault)
        return True

    def _sample(self, name: str) -> JobStatus | None:
        """The job's status from time to time, and what there is in memory."""
        now = time.monotonic()
        if now - self._sampled_s < _SAMPLE_S:
            return None
        self._sampled_s = now
        self._figures.redis_bytes = max(self._figures.redis_bytes, self._servers.value_bytes())
        status = self._client.status(name)
        if status is not None:
            outstanding = status.credits.outstanding_bytes
            self._figures.outstanding_bytes = max(self._figures.outstanding_bytes, outstanding)
            if now - self._told_s >= _TELL_S:
                self._told_s = now
                self._tell(_line(name, status, self._elapsed_s, self._options.seconds))
        return status


def _audit(stores: Stores, output: str, status: JobStatus | None) -> list[Finding]:
    """What `essp audit` says of a job; nothing while its history cannot be read."""
    try:
        account = account_of(History(stores.under(output)).read())
        if not account.runs:
            return []
        return check(account, planned(account.runs[-1].spec, stores), status, round(time.time() * 1000))
    except EsspError:
        return []


def _line(name: str, status: JobStatus, elapsed_s: float, seconds: float) -> str:
    """How far it is."""
    progress, counts = status.progress, status.counts
    eta = "-" if progress.eta_s is None else f"{progress.eta_s:.0f} s"
    return (
        f"{elapsed_s:6.1f} s of {seconds:.0f}: {name} {progress.done}/{progress.total}, ETA {eta}, "
        f"issued {counts.issued}, again {counts.reissued}, outstanding {status.credits.outstanding_bytes} bytes"
    )


def _text(options: SoakOptions, name: str, output: str, catalog: str) -> str:
    return job_text(
        name,
        output=output,
        catalog=catalog,
        epochs=options.epochs,
        clips=options.clips,
        budget=options.budget_bytes,
        checkpoint=8,
    )


def _undisturbed(options: SoakOptions, videos: Path, folder: Path) -> dict[str, str]:
    """Trainer -> weights of the same job, in this process, over memory."""
    catalog, output = f"file://{folder}/catalog.parquet", f"file://{folder}/undisturbed"
    build(f"file://{videos}", catalog, ("file:///",), BuildOptions("folders"))
    spec = parse_spec(_text(options, "undisturbed", output, catalog))
    with Embedded(spec, Settings()) as job:
        while not job.ended(_LOOK_S):
            pass
        status = job.status()
    if status.state is not JobState.COMPLETED:
        raise EsspError(f"the undisturbed run is {status.state}: {status.reason}")
    return weights_of(Stores(("file:///",)), output)
