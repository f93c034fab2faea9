"""Reading the files of a catalog by the decoders of a cluster: `essp catalog build --connect`.

`PoolProber` replaces `essp_engine.decoding.probing.Prober` in a build. It publishes requests to the decoders'
topic and takes their answers from the frame cache (`essp_engine/decoding/probe_answers.py`). Decoders run the same code
on each file, so the catalog is the same, byte for byte, for any number of decoders, and in any order of answers.

A decoder that dies loses nothing: the bus delivers its message to another one. If no answer comes for a while, requests
are published again, because the cache may have lost the answers. While some come, the others wait for their turn, which
can take hours; published again, they would only keep decoders from new ones. A build that dies continues from its
journal, like any other.
"""

from __future__ import annotations

import logging
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice

from essp_common import topics
from essp_common.cache.port import job_prefix
from essp_common.errors import CacheMiss, NotFound, Unavailable
from essp_common.runtime.ids import DECODER
from essp_common.wiring import Adapters
from essp_engine.decoding.probe_answers import Answer, request
from essp_engine.decoding.probing import Outcome, ProbeOptions

_OUTSTANDING = 2 * topics.DATA_PARTITIONS
"""Requests that wait for an answer: enough for one decoder per partition, and one more request each."""
_FILES, _QUICK_FILES = 1, 16
"""Files of a request. A quick build takes some milliseconds for one."""
_LOOK_S = 0.05
"""How often to look for answers while there are none."""
_AGAIN_S = 300.0
"""The least time without any answer after which requests are published again."""
_OF_TIMEOUT = 2.5
"""The same as a multiple of the processor time that a file may take: decoders may share their cores."""
_HINT_S = 30.0
_log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Asked:
    """A request that waits for its answer."""

    uris: tuple[str, ...]
    key: str
    asked_s: float


class PoolProber:
    """Has decoders read files. A context manager; used from one thread."""

    def __init__(
        self,
        adapters: Adapters,
        options: ProbeOptions,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`adapters`: the bus, cache and stores of the decoders; they stay open."""
        self._adapters = adapters
        self._options = options
        self._clock = clock
        self._sleep = sleep
        self._again_s = max(_AGAIN_S, _OF_TIMEOUT * options.timeout_s)
        self._silent_s = options.hung_s + self._again_s  # a decoder with a file that hangs answers after `hung_s`
        self._job = f"catalog-{uuid.uuid4().hex}"
        self._consumer = f"build-{uuid.uuid4().hex}"
        self._numbers = 0
        self._asked: dict[str, _Asked] = {}
        """By key."""

    def __enter__(self) -> PoolProber:
        return self

    def __exit__(self, *_: object) -> None:
        """Abandon what was asked for, and free the answers."""
        self._asked.clear()
        try:
            self._adapters.cache.purge(job_prefix(self._job))
        except Unavailable as error:
            _log.warning("answers of decoders stay in the cache until they expire: %s", error)

    def read(self, uris: Iterable[str]) -> Iterator[Outcome]:
        """The outcome of each file, in order of completion.

        Raises `Unavailable` when a store does not answer, or no decoder does.
        """
        files = _FILES if not self._options.quick else _QUICK_FILES
        waiting = iter(uris)
        again: deque[tuple[str, ...]] = deque()
        heard_s, hinted = self._clock(), False
        while True:
            while len(self._asked) < _OUTSTANDING and (
                batch := again.popleft() if again else tuple(islice(waiting, files))
            ):
                self._ask(batch)
            if not self._asked:
                return
            answers = [(asked, answer) for asked in tuple(self._asked.values()) if (answer := self._answer(asked))]
            for asked, answer in answers:
                heard_s = self._clock()
                yield from self._take(asked, answer, again)
            if not answers:
                silent_s = self._clock() - heard_s
                if silent_s > self._silent_s:
                    raise Unavailable(
                        f"no decoder has answered for {silent_s:.0f} s; check that some run: essp decoder"
                    )
                if silent_s > _HINT_S and not hinted:
                    hinted = True
                    backlog = self._adapters.bus.backlog(topics.SEEDS, DECODER)
                    _log.warning("no decoder has answered for %g s; %d messages wait for them", _HINT_S, backlog)
                self._repeat(heard_s)
                self._sleep(_LOOK_S)

    def _ask(self, uris: tuple[str, ...]) -> None:
        self._numbers += 1
        key = f"{job_prefix(self._job)}{{{self._numbers}}}"
        asked = self._asked[key] = _Asked(uris, key, self._clock())
        self._publish(asked)

    def _publish(self, asked: _Asked) -> None:
        message = request(self._job, asked.key, self._consumer, asked.uris, self._options).SerializeToString()
        self._adapters.bus.publish(topics.SEEDS, asked.key.encode(), message)

    def _repeat(self, heard_s: float) -> None:
        """Publish requests again whose answers may be lost. `heard_s`: the time of the last answer."""
        now_s = self._clock()
        for asked in self._asked.values():
            if now_s - max(heard_s, asked.asked_s) > self._again_s:
                asked.asked_s = now_s
                self._publish(asked)
        self._adapters.bus.flush()

    def _answer(self, asked: _Asked) -> Answer | None:
        cache = self._adapters.cache
        try:
            if not cache.holds(asked.key):
                return None
            return Answer.unpacked(cache.get(asked.key))
        except CacheMiss:
            return None

    def _take(self, asked: _Asked, answer: Answer, again: deque[tuple[str, ...]]) -> Iterator[Outcome]:
        """The outcomes in an answer. Files without one are to be asked for `again`."""
        del self._asked[asked.key]
        if answer.unavailable:
            raise Unavailable(answer.unavailable)
        if answer.rejected and len(asked.uris) == 1:
            yield Outcome(asked.uris[0], {}, answer.rejected)
        elif answer.rejected:  # because of one of them
            again.extend((uri,) for uri in asked.uris)
        else:
            missing = dict.fromkeys(asked.uris)
            for outcome in answer.outcomes:
                self._check_seen(outcome)
                missing.pop(outcome.uri, None)
                yield outcome
            if missing:
                again.append(tuple(missing))
        self._adapters.cache.ack(asked.key, self._consumer)

    def _check_seen(self, outcome: Outcome) -> None:
        """Raise `Unavailable` if a decoder does not find a file that this process finds."""
        if outcome.error is None or not outcome.error.startswith("vanished:"):
            return
        try:
            store, key = self._adapters.stores.resolve(outcome.uri, video=True)
            store.head(key)
        except NotFound:
            return
        raise Unavailable(
            f"a decoder does not find {outcome.uri}, but this process does; give all decoders the same folders"
        )
