"""Answers a request that is repeated with the same `Idempotency-Key` with the first answer; nothing happens twice.

Answers are remembered for a day, in this process; after a restart of the master, the state of the job answers (409: it
is running). Failures are not remembered, so a corrected request can use the same key. Follows
draft-ietf-httpapi-idempotency-key-header: the same key with a different request is refused. A repeated request waits a
limited time for the answer to the first one, so a client that lost its connection still gets it. If that takes longer,
the client is told to ask again (503 with Retry-After; the draft's 409 reads as if the state did not allow it).
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

from essp_common.errors import ConfigError, Unavailable

AnswerT = TypeVar("AnswerT")
KEPT_S = 24 * 3600.0
PATIENCE_S = 20.0
"""How long a repeated request waits for the first answer; shorter than the timeout of clients."""
_MOST = 10_000


@dataclass
class _Entry:
    asked: str
    since_s: float
    answer: bytes | None = None
    """Compressed: the status of a job with hundreds of epochs takes up to a megabyte as objects, and there may be
    thousands of answers."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the first request was answered or has failed."""


class Answers(Generic[AnswerT]):
    """The answers of one operation, by key. Thread-safe."""

    def __init__(self, kind: type[AnswerT], clock: Callable[[], float] = time.monotonic) -> None:
        """`kind`: the type of an answer."""
        self._kind = TypeAdapter(kind)
        self._clock = clock
        self._entries: dict[str, _Entry] = {}
        self._lock = threading.Lock()

    def once(self, key: str | None, asked: str, act: Callable[[], AnswerT]) -> AnswerT:
        """Return the first result of `act` for this key; without a key, call `act` every time. `asked`: fingerprint of
        the request.

        Raises `ConfigError` if the key came with a different request, and `Unavailable` if the first request is still
        under way after `PATIENCE_S`.
        """
        if key is None:
            return act()
        while (known := self._begin(key, asked)) is not None:
            if not known.over.wait(PATIENCE_S):
                raise Unavailable(
                    "the request with this Idempotency-Key is still being answered; ask again with the same"
                )
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
        """Return the entry of the first request, or None if this request is the first."""
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
        """Drop expired answers, and the oldest ones if there are too many. Requests under way stay."""
        for key in [k for k, e in self._entries.items() if e.answer is not None and now_s - e.since_s > KEPT_S]:
            del self._entries[key]
        done = [key for key, entry in self._entries.items() if entry.answer is not None]
        for key in done[: max(0, len(self._entries) - _MOST)]:
            del self._entries[key]


def fingerprint(*parts: bytes | str) -> str:
    """Return a digest that differs between different requests."""
    digest = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
