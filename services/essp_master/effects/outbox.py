"""What the master has decided and not yet carried out. Nothing is lost while a server does not answer.

Effects are added under the master's lock and carried out, in order, outside of it. If one fails, all since the last
flush are carried out again at the next `send`; each is harmless twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from essp_common.bus.port import Bus

Effect = Callable[[], object]


class Outbox:
    """Effects in order. `add` is called under the owner's lock; `send` by any thread."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._effects: list[Effect] = []
        self._sending = threading.Lock()

    def add(self, effect: Effect) -> None:
        """Have this carried out."""
        self._effects.append(effect)

    @property
    def empty(self) -> bool:
        """All that was added is carried out."""
        return not self._effects

    def send(self) -> None:
        """Carry out what was added, durably. Raises `TransientError` when a server does not answer."""
        with self._sending:
            count = len(self._effects)
            if not count:
                return
            for effect in self._effects[:count]:
                effect()
            self._bus.flush()
            del self._effects[:count]
