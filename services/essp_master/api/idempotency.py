"""A request that is repeated with the same `Idempotency-Key` gets the first answer again, and nothing happens twice.

Answers are remembered for a day, in this process; after a restart of the master the state of the job answers (409: it
runs). Failures are not remembered, so a corrected request can use the same key. Follows
draft-ietf-httpapi-idempotency-key-header: the same key with another request is refused. A repeated request waits for
the answer of the first one, for a while; so a client that has lost its connection still gets the answer.
"""

from __future__ import annotations

import hashlib
import threading
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from pydantic import TypeAdapter

from essp_common.errors import ConfigError, Conflict

AnswerT = TypeVar("AnswerT")
KEPT_S = 24 * 3600.0
PATIENCE_S = 20.0
"""How long a repeated request waits for the answer of the first; less than clients wait for it."""
_MOST = 10_000


@dataclass
class _Entry:
    asked: str
    since_s: float
    answer: bytes | None = None
    """Packed: the status of a job with hundreds of epochs is most of a megabyte of objects, and there may be thousands
    of answers."""
    over: threading.Event = field(default_factory=threading.Event)
    """The first request was answered, or it failed."""


class Answers(Generic[AnswerT]):
    """The answers of one operation, by key. Thread-safe."""

    def __init__(self, kind: type[AnswerT], clock: Callable[[], float] = time.monotonic) -> None:
        """`kind`: what an answer is."""
        self._kind = TypeAdapter(kind)
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def once(self, key: str | None, asked: str, act: Callable[[], AnswerT]) -> AnswerT:
        """What `act` gave the first time. `asked`: fingerprint of the request; `key` None: act in any case.

        Raises `ConfigError` for a key that came with another request, `Conflict` while the first one is under way.
        """
        if key is None:
            return act()
        while (known := self._begin(key, asked)) is not None:
            if not known.over.wait(PATIENCE_S):
                raise Conflict("the request with this Idempotency-Key is still being answered; wait for it")
            if known.answer is not None:
                return self._kind.validate_json(zlib.decompress(known.answer))
        return self._act(key, act)

    def _act(self, key: str, act: Callable[[], AnswerT]) -> AnswerT:
        entry = self._entries[key]
        try:
            answer = act()
            entry.answer = zlib.compress(self._kind.dump_json(answer))
            return answer
        except BaseException:
            with self._lock:
                del self._entries[key]
            raise
        finally:
            entry.over.set()

    def _begin(self, key: str, asked: str) -> _Entry | None:
        """The request that came first; None: it is this one."""
        now_s = self._clock()
        with self._lock:
            self._forget(now_s)
            entry = self._entries.get(key)
            if entry is None:
                self._entries[key] = _Entry(asked, now_s)
            elif entry.asked != asked:
                raise ConfigError(
                    "was sent before with another request; take a new one", field="Idempotency-Key", code="conflict"
                )
            return entry

    def _forget(self, now_s: float) -> None:
        """Drop what is too old, and the oldest when there are too many; what is under way stays."""
        for key in [k for k, e in self._entries.items() if e.answer is not None and now_s - e.since_s > KEPT_S]:
            del self._entries[key]
        done = [key for key, entry in self._entries.items() if entry.answer is not None]
        for key in done[: max(0, len(self._entries) - _MOST)]:
            del self._entries[key]


def fingerprint(*parts: bytes | str) -> str:
    """A digest that differs between different requests."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
