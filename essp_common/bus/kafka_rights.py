"""What the broker refuses this process for lack of a password or a permission.

At the start of a process, the person who started it must fix that: `ConfigError`. Something that has worked before was
revoked, perhaps by mistake, and may be granted again: `Denied`. Then work waits, and `words` reports what was refused.
No record is blamed.

A right that is missing from the start may show in a thread that only reports, or in the answer to a message. So readers
and publishers call what they do `vital`: if that is refused in the first minute, and has never worked, `check` raises
the `ConfigError` in the thread that reads for the service, and the process ends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from essp_common.bus.kafka_clients import Denied, mapped
from essp_common.errors import ConfigError
from essp_common.runtime.refusals import Refusals

_LOGIN = "log in"
_START_S = 60.0
"""How long a process counts as just started."""
ANYTHING = ""
"""Has begun as soon as any call has succeeded."""


class Rights:
    """The broker's refusals, by call. Thread-safe."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._until_s = clock() + _START_S
        self._vital: set[str] = set()
        """Calls without which the process cannot work, and that have not succeeded yet."""
        self._missing: Denied | None = None
        self._refusals = Refusals(clock)
        self._begun: set[str] = set()
        """Calls that have succeeded at least once."""

    @contextmanager
    def needed(self, call: str, start: str = ANYTHING) -> Iterator[None]:
        """Convert kafka-python's errors into ESSP's within this block. A call that is denied before `start` has ever
        succeeded is reported to the user."""
        try:
            with mapped(call):
                yield
        except Denied as error:
            if error.call != call:  # from a nested call, which has recorded it
                raise
            self.denied(error)
            if start not in self._begun:
                raise ConfigError(str(error), code="refused") from error.__cause__
            raise

    @contextmanager
    def asked(self, call: str) -> Iterator[None]:
        """Like `needed`, for a call that counts as granted if it completes."""
        with self.needed(call):
            yield
        self.granted(call)

    def granted(self, call: str) -> None:
        """Note that the broker has carried out this call."""
        self.begun(ANYTHING)
        self._vital.discard(call)
        self._refusals.works(call)

    def begun(self, start: str) -> None:
        """From now on, a denial of this means that it was revoked."""
        self._begun.add(start)

    def denied(self, error: Denied) -> None:
        """Note that the broker has refused a call."""
        if error.call in self._vital and self._clock() < self._until_s:
            self._missing = error
        self._refusals.refused(error.call, str(error))

    def vital(self, call: str) -> None:
        """The process cannot work without this call, which it makes for the first time."""
        self._vital.add(call)

    def check(self) -> None:
        """Raise `ConfigError` if a vital call was refused at the start of the process."""
        if self._missing is not None:
            raise ConfigError(str(self._missing), code="refused") from self._missing

    def login(self, refused: BaseException | None) -> None:
        """Note a login of a client, or its error. The client retries by itself; nothing else may report it."""
        if refused is None:
            self._refusals.works(_LOGIN)
        else:
            self.denied(Denied(_LOGIN, refused))

    @property
    def words(self) -> str:
        """The last refusal, with a remedy; empty if nothing is refused."""
        return self._refusals.words
