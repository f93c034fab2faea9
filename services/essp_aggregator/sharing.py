"""Shares a long search among all aggregators.

    the one that fuses     scores ─▶ the job's output; a message for each candidate ─▶ essp.searches
    each, this one too     its partitions of essp.searches; tries those candidates in child processes ─▶ job's output
    the one that fuses     waits for all results, and removes them

A message is committed once its result is stored, so another aggregator gets those of one that dies. A result depends on
scores and candidate alone, so it does not matter if two aggregators try the same one. So candidates are announced again
if nothing happens for long: an aggregator that does not know the job yet drops them. If the one that fuses dies, its
successor finds the results that are there: the folder is named by a digest of the scores and candidates.
"""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence

from essp_aggregator.fusion import Aligned, Trial
from essp_aggregator.load import AggregatorLoad
from essp_aggregator.search import Progress, Search, TrialPool, work
from essp_aggregator.search_child import packed, unpacked
from essp_aggregator.shared_scores import SharedScores
from essp_common import topics
from essp_common.artifacts import layout
from essp_common.bus.port import Bus, Record
from essp_common.bus.reading import batches
from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError, Unavailable
from essp_common.failures import reason_of, shortened
from essp_common.job.spec import stored_spec
from essp_common.messages.control import ControlFeed
from essp_common.messages.parsing import BadMessage, parsed, refuse
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import TryCandidate
from essp_common.runtime import ids
from essp_common.runtime.retry import Outage
from essp_common.wiring import Adapters
from essp_engine.aggregation import registry
from essp_engine.aggregation.candidates import Candidate

log = logging.getLogger(__name__)

_WORTH = 10**9
"""In numbers read. A smaller search is over before others have read the scores."""
_LOOK_S = 0.5
"""How often results are looked for."""
_AGAIN_S = 300.0
"""Without a new result for this long, the candidates that lack one are announced again."""
_POLL_S, _POLL_RECORDS = 0.2, 64
_KNOWN_S = 10.0
"""How long to wait for the command of a job whose candidate has arrived."""
_HEADER_BYTES = 8


class SharedSearch:
    """Tries the candidates of one job, together with other aggregators if that takes long."""

    def __init__(
        self,
        bus: Bus,
        output: ObjectStore,
        job: str,
        fence: int,
        alone: Search,
        load: AggregatorLoad,
        leave: Callable[[float], bool],
        is_over: Callable[[], bool],
    ) -> None:
        """`alone`: for a search that is not worth sharing. `load`: gets the number of candidates that wait. `leave`:
        waits this number of seconds, and returns whether this process is draining. `is_over`: whether the job has
        ended, so that its candidates are not tried."""
        self._bus = bus
        self._output = output
        self._job = job
        self._fence = fence
        self._alone = alone
        self._load = load
        self._leave = leave
        self._is_over = is_over

    def __call__(self, candidates: Sequence[Candidate], scores: Aligned) -> list[Trial]:
        """Try the candidates; return their results in the same order. Raises what `Search` raises; `Unavailable` if
        this process is draining, or if another aggregator has removed the scores; `PermanentError` if the job has ended
        meanwhile."""
        if len(candidates) < 2 or sum(work(candidate, scores) for candidate in candidates) < _WORTH:
            return self._alone(candidates, scores)
        with SharedScores(scores) as shared:
            data = shared.data
        named = json.dumps([[one.name, one.params] for one in candidates], sort_keys=True)
        search = hashlib.sha256(data + named.encode()).hexdigest()[:16]
        prefix = f"{layout.SEARCHES}{search}/"
        self._output.put(f"{prefix}scores", data)
        self._publish(dict(enumerate(candidates)), search)
        log.info(
            "job %s: shares %d candidates with all aggregators", self._job, len(candidates), extra={"job_id": self._job}
        )
        wanted = [_key(prefix, number) for number in range(len(candidates))]
        try:
            self._wait_for(candidates, search)
        finally:
            self._load.waiting = 0
        results = [self._output.get(key) for key in wanted]
        for key in (*wanted, f"{prefix}scores"):  # failures too: the next run of the job tries again
            self._output.delete(key)
        return [_read(result, one) for result, one in zip(results, candidates, strict=True)]

    def _wait_for(self, candidates: Sequence[Candidate], search: str) -> None:
        """Wait for the results of these candidates. Raises as `__call__`."""
        prefix = f"{layout.SEARCHES}{search}/"
        most, quiet_s = 0, 0.0
        while True:
            found = {info.key for info in self._output.list(prefix)}
            missing = {n: one for n, one in enumerate(candidates) if _key(prefix, n) not in found}
            self._load.waiting = len(missing)
            if not missing:
                return
            if f"{prefix}scores" not in found:
                raise Unavailable(f"another aggregator has ended the same search of job {self._job}")
            if self._is_over():
                raise PermanentError("it has ended during the search for the best strategy")
            if len(found) > most:
                most, quiet_s = len(found), 0.0
            elif quiet_s >= _AGAIN_S:
                self._publish(missing, search)
                quiet_s = 0.0
            if self._leave(_LOOK_S):
                raise Unavailable(f"the search of job {self._job} is left to another aggregator")
            quiet_s += _LOOK_S

    def _publish(self, candidates: Mapping[int, Candidate], search: str) -> None:
        """`candidates`: by their numbers."""
        for number, one in candidates.items():
            message = TryCandidate(
                job=self._job,
                fence=self._fence,
                search=search,
                number=number,
                strategy=one.name,
                params_json=json.dumps(one.params),
            )
            partition = topics.spread(number, self._bus.partitions)
            self._bus.publish(topics.SEARCHES, str(number).encode(), message.SerializeToString(), partition)
        self._bus.flush()


class Helper:
    """Tries the candidates of searches that fall to this process, until drained. Runs in its own thread."""

    def __init__(self, adapters: Adapters, processes: int, load: AggregatorLoad, draining: threading.Event) -> None:
        """`processes`: the maximum number of candidates at a time."""
        self._adapters = adapters
        self._processes = processes
        self._load = load
        self._draining = draining

    def run(self, control: ControlFeed) -> None:
        """Try candidates until drained."""
        subscription = self._adapters.bus.subscribe([topics.SEARCHES], ids.SEARCHES)
        try:
            for records in batches(subscription, self._draining, ids.SEARCHES, _POLL_RECORDS, _POLL_S):
                is_paused = control.is_paused(ids.AGGREGATOR)
                (subscription.pause if is_paused else subscription.resume)()
                if is_paused and not records:
                    self._draining.wait(_POLL_S)
                asked = [(record, message) for record in records if (message := _parsed(record)) is not None]
                for search in dict.fromkeys((m.job, m.search) for _, m in asked):
                    if not self._try([m for _, m in asked if (m.job, m.search) == search], control):
                        return
                for record in records:
                    subscription.done(record)
        finally:
            subscription.close()

    def _try(self, asked: Sequence[TryCandidate], control: ControlFeed) -> bool:
        """Try candidates of one search, waiting out any outage. Returns False if drained before that."""
        outage = Outage(ids.SEARCHES, self._draining.wait)
        while True:
            with outage:
                try:
                    with self._load.working():
                        self._answer(asked, control)
                except ConfigError as error:  # of this job: the process continues with other jobs
                    log.warning("job %s: its candidates cannot be tried here: %s", shortened(asked[0].job), error)
                return True
            if self._draining.is_set():
                return False

    def _answer(self, asked: Sequence[TryCandidate], control: ControlFeed) -> None:
        job = asked[0].job
        command = control.latest(job) or control.wait(job, _KNOWN_S)
        if command is None or control.ended(job, asked[0].fence):
            return  # no one waits for these results
        output = self._adapters.stores.under(stored_spec(command.snapshot.spec_json, f"job {job}").output)
        prefix = f"{layout.SEARCHES}{asked[0].search}/"
        try:
            data = output.get(f"{prefix}scores")
        except NotFound:
            return  # the search is over
        with SharedScores.copied(data) as shared:
            del data
            while asked := _untried(asked, output, prefix):
                if self._draining.is_set():
                    raise Unavailable("this aggregator is leaving")
                self._answer_some(asked[: self._processes], shared, output, prefix)

    def _answer_some(
        self, asked: Sequence[TryCandidate], shared: SharedScores, output: ObjectStore, prefix: str
    ) -> None:
        for message, result in zip(asked, self._results(asked, shared), strict=True):
            output.put(_key(prefix, message.number), result)

    def _results(self, asked: Sequence[TryCandidate], shared: SharedScores) -> list[bytes]:
        """The results of some candidates, or why they failed. Raises `Unavailable`."""
        try:
            pool = TrialPool(
                [_candidate(message) for message in asked],
                shared,
                Progress(asked[0].job, [1] * len(asked), time.monotonic),
            )
            pool.try_all(self._processes, asked[0].job)
            return [_written(pool.trials[number]) for number in range(len(asked))]
        except Unavailable:
            raise
        except Exception as error:
            if len(asked) > 1:  # each by itself, to find out which of them fails
                return [result for message in asked for result in self._results([message], shared)]
            of_scores = isinstance(error, ValueError)
            if not of_scores and not isinstance(error, EsspError):
                log.exception("job %s: a candidate failed with an unexpected error", asked[0].job)
            return [_bytes({"error": str(error) if of_scores else reason_of(error), "scores": of_scores}, b"")]


def _key(prefix: str, number: int) -> str:
    """The key of the result of a candidate."""
    return f"{prefix}{number:010d}"


def _untried(asked: Sequence[TryCandidate], output: ObjectStore, prefix: str) -> list[TryCandidate]:
    """Those without a result. Others may have one: from an aggregator that has lost its share to this one before it
    committed, or that has just come and has taken over a part of this one's share."""
    stored = {info.key for info in output.list(prefix)}
    return [message for message in asked if _key(prefix, message.number) not in stored]


def _candidate(message: TryCandidate) -> Candidate:
    params = json.loads(message.params_json)
    return Candidate(message.strategy, params, registry.create(message.strategy, params))


def _written(trial: Trial) -> bytes:
    said, data = packed(trial)
    return _bytes(json.loads(said), data)


def _bytes(said: dict[str, object], data: bytes) -> bytes:
    header = json.dumps(said).encode()
    return len(header).to_bytes(_HEADER_BYTES, "big") + header + data


def _read(result: bytes, candidate: Candidate) -> Trial:
    """A result as it was written. Raises `ValueError` for scores that do not fit together, and `PermanentError` for a
    candidate that has failed."""
    length = int.from_bytes(result[:_HEADER_BYTES], "big")
    said = json.loads(result[_HEADER_BYTES : _HEADER_BYTES + length])
    if "error" in said:
        raise ValueError(said["error"]) if said["scores"] else PermanentError(said["error"])
    return unpacked(said, result[_HEADER_BYTES + length :])


def _parsed(record: Record) -> TryCandidate | None:
    try:
        return parsed(TryCandidate, record)
    except (BadMessage, ConfigError) as error:
        refuse(ids.SEARCHES, record, error)
        return None
