"""Every adapter of the bus behaves like a bus, and each in its own way where that is promised."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from essp_common.bus.kafka import KafkaBus
from essp_common.bus.memory import MemoryBus
from essp_common.bus.port import Bus
from essp_common.testing.bus_contract import BusContract


@pytest.mark.usefixtures("no_thread_leaks")
class TestMemoryBus(BusContract):
    @pytest.fixture
    def bus(self) -> Iterator[Bus]:
        bus = MemoryBus.from_url("memory://")
        yield bus
        bus.close()


@pytest.mark.integration
@pytest.mark.usefixtures("no_thread_leaks")
class TestKafkaBus(BusContract):
    @pytest.fixture
    def bus(self, kafka_url: str, no_thread_leaks: None) -> Iterator[Bus]:
        bus = KafkaBus.from_url(kafka_url)
        yield bus
        bus.close()
