"""Reads files for the builds of catalogs (`essp_engine/decoding/probe_answers.py`), between the clips of jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence

from essp_common.bus.port import Record
from essp_common.cache.port import FrameCache
from essp_common.errors import EsspError, NotFound, TransientError
from essp_common.pb.v1.messages_pb2 import Probe
from essp_common.runtime.failpoints import failpoint
from essp_common.wiring import Stores
from essp_engine.decoding.probe_answers import TTL_S, Answer, options_of
from essp_engine.decoding.probing import Outcome, ProbeOptions, Prober

_MESSAGE_S = 60.0
"""After this time, a message is answered without its remaining files: a longer one would keep clips waiting, and a
decoder that works for too long counts as hanging."""
_IDLE_S = 60.0
"""How long a child process waits for the next file."""


class Probes:
    """The probes of one lane. Used from one thread."""

    def __init__(self, cache: FrameCache, roots: Sequence[str], worker: str) -> None:
        """`roots`: the stores of this decoder."""
        self._cache = cache
        self._roots = tuple(roots)
        self._stores = Stores(roots)
        self._worker = worker
        self._prober: tuple[ProbeOptions, Prober] | None = None
        self._used_s = 0.0
        self._held: tuple[str, bytes] | None = None
        """The key and the value of an answer for which the cache had no room."""

    def handle(self, record: Record, probe: Probe) -> None:
        """Read the files, and put the answer into the cache."""
        if self._held is None or self._held[0] != probe.key:
            self._held = probe.key, self._answer(probe).packed()
            failpoint("decoder.probed")
        self._put(probe, self._held[1])
        self._held = None

    def reject(self, probe: Probe, error: EsspError) -> None:
        """Answer a message that could not be processed."""
        self._held = None
        self.close()
        if isinstance(error, TransientError):
            self._put(probe, Answer(unavailable=str(error)).packed())
        else:
            self._put(probe, Answer(rejected=f"{error.kind}: {error}").packed())

    def rest(self) -> None:
        """There is other work: end a child process that has been idle for long."""
        if self._prober is not None and time.monotonic() - self._used_s > _IDLE_S:
            self.close()

    def close(self) -> None:
        """End the child process."""
        if self._prober is not None:
            self._prober[1].__exit__()
            self._prober = None

    def _put(self, probe: Probe, value: bytes) -> None:
        self._cache.put(probe.key, value, [probe.consumer], TTL_S)

    def _answer(self, probe: Probe) -> Answer:
        for uri in probe.uris:
            try:
                self._stores.resolve(uri, video=True)
            except NotFound as error:
                return Answer(unavailable=f"the decoder {self._worker} cannot read the videos: {error}")
        outcomes: list[Outcome] = []
        ends_s = time.monotonic() + _MESSAGE_S
        try:
            prober = self._ready(options_of(probe))
            for uri in probe.uris:
                if outcomes and time.monotonic() >= ends_s:
                    break
                outcomes += prober.read([uri])
        except BaseException:
            self.close()
            raise
        finally:
            self._used_s = time.monotonic()
        return Answer(outcomes)

    def _ready(self, options: ProbeOptions) -> Prober:
        if self._prober is None or self._prober[0] != options:
            self.close()
            self._prober = options, Prober(self._roots, options, keep=True)
        return self._prober[1]
