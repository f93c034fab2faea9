"""What the master has decided and not yet carried out. Nothing is lost while a server does not answer.

Effects are added under the master's lock and carried out, in order, outside of it. If one fails, all effects since the
last flush are carried out again at the next `send`; each is idempotent.

An effect that would fail every time (such as a message that is too large) is given up, so that the effects behind it
are carried out. `refused` names the job that it belonged to. An unexpected exception counts as permanent after three
times in a row.
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
    """Ordered effects. `add` is called under the owner's lock, `send` by any thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._effects: list[tuple[str, Effect]] = []
        self._sending = threading.Lock()
        self._refused: list[tuple[str, PermanentError]] = []
        self._unexpected = 0
        """How often in a row an unexpected exception was raised."""

    def add(self, effect: Effect, job: str = "") -> None:
        """Queue an effect for this job."""
        self._effects.append((job, effect))

    @property
    def empty(self) -> bool:
        """Whether all queued effects have been carried out."""
        return not self._effects

    def refused(self) -> list[tuple[str, PermanentError]]:
        """Return the jobs whose effects were given up, with the errors. Each is returned once."""
        refused, self._refused = self._refused, []
        return refused

    def send(self) -> None:
        """Carry out the queued effects, durably. Raises `TransientError` if a server does not answer."""
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
        """Carry out effects one at a time, to find the one that fails every time."""
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
        """Drain pending delivery errors. When the broker refuses a message, others fail with it. Those messages belong
        to effects that are about to be carried out again, or to the effect that is given up. So their errors must not
        restart the whole batch, in which the same message would be refused again."""
        with suppress(TransientError):
            self._bus.flush()
