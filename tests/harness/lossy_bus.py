"""A bus that loses messages as a broker that went away does: nobody learns of it before the next flush."""

from __future__ import annotations

from essp_common.bus.kafka_clients import Undelivered
from essp_common.bus.memory import MemoryBus


class LossyBus(MemoryBus):
    """In memory."""

    def __init__(self) -> None:
        super().__init__()
        self.loses = 0
        """So many of the next messages are lost."""
        self._lost = 0

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        """As a bus does it."""
        if self.loses:
            self.loses -= 1
            self._lost += 1
        else:
            super().publish(topic, key, value, partition)

    def flush(self, timeout_s: float = 30.0) -> None:
        """Raises `Undelivered` once for what is lost."""
        lost, self._lost = self._lost, 0
        if lost:
            raise Undelivered(f"{lost} messages were not delivered; publish them again")
        super().flush(timeout_s)
