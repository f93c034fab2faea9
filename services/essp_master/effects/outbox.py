"""What the master has decided and not yet carried out. Nothing is lost while a server does not answer.

Effects are added under the master's lock and carried out, in order, outside of it. If one fails, all since the last
flush are carried out again at the next `send`; each is harmless twice.

An effect that will fail each time (a message that is too large) is given up, so that those behind it are carried out.
`refused` names the job whose effect it was. An error that nobody expected counts as such when it has come three times.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress

from essp_common.bus.port import Bus
from essp_common.errors import PermanentError, TransientError, Unavailable
from essp_common.failures import reason_of
from essp_common.runtime import threads
from essp_engine.worker.loop import unexpected

log = logging.getLogger(__name__)

_TRIES = 3

Effect = Callable[[], object]


class Outbox:
    """Effects in order. `add` is called under the owner's lock; `send` by any thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._effects: list[tuple[str, Effect]] = []
        self._sending = threading.Lock()
        self._refused: list[tuple[str, PermanentError]] = []
        self._unexpected = 0
        """How often in a row an error came that nobody expected."""

    def add(self, effect: Effect, job: str = "") -> None:
        """Have this carried out, for this job."""
        self._effects.append((job, effect))

    @property
    def empty(self) -> bool:
        """All that was added is carried out."""
        return not self._effects

    def refused(self) -> list[tuple[str, PermanentError]]:
        """The jobs of effects that were given up, and why. Each is given once."""
        refused, self._refused = self._refused, []
        return refused

    def send(self) -> None:
        """Carry out what was added, durably. Raises `TransientError` when a server does not answer."""
        with self._sending:
            count = len(self._effects)
            if not count:
                return
            try:
                for _, effect in self._effects[:count]:
                    effect()
                self._bus.flush()
            except TransientError:
                raise
            except PermanentError:
                self._send_singly(count)
            except Exception as error:
                self._unexpected += 1
                if self._unexpected < _TRIES:
                    threads.unexpected("outbox", error)
                    raise Unavailable(f"what was decided cannot be carried out: {reason_of(error)}", 1.0) from error
                self._send_singly(count)
            else:
                del self._effects[:count]
            self._unexpected = 0

    def _send_singly(self, count: int) -> None:
        """Find out which effect it is that fails each time."""
        self._hear_of_losses()
        for _ in range(count):
            job, effect = self._effects[0]
            try:
                effect()
                self._bus.flush()
            except TransientError:
                raise
            except Exception as error:
                log.exception("job %s: given up: %s", job, error, extra={"job_id": job})
                self._refused.append((job, error if isinstance(error, PermanentError) else unexpected(error)))
                self._hear_of_losses()
            del self._effects[0]

    def _hear_of_losses(self) -> None:
        """A message that the broker refuses takes others with it. They are of effects that are carried out again now,
        or of the one that is given up: no reason to begin anew with all, of which one would be refused again."""
        with suppress(TransientError):
            self._bus.flush()
