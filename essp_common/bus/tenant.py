"""One tenant's part of a bus: topics and consumer groups that begin with its name.

Tenants share brokers without interfering: the decoders of `vision` read `vision.essp.seeds` in the group
`vision.decoder`. Callers use topic names without the prefix, in records too; errors, and the broker's tools, show full
names.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from essp_common.bus.port import Bus, Record, Subscription
from essp_common.runtime.troubles import Troubles
from essp_common.topics import KEPT, of_tenant


class TenantBus:
    """Implements `essp_common.bus.port.Bus` over another one."""

    def __init__(self, bus: Bus, tenant: str) -> None:
        self._bus = bus
        self._tenant = tenant

    @property
    def partitions(self) -> int:
        """Those of the underlying bus."""
        return self._bus.partitions

    def ensure_topics(self, partitions: Mapping[str, int], kept: Collection[str] = KEPT, grow: bool = False) -> None:
        """Create the tenant's topics."""
        whole = {self._whole(topic): count for topic, count in partitions.items()}
        self._bus.ensure_topics(whole, {self._whole(topic) for topic in kept}, grow)

    def publish(self, topic: str, key: bytes, value: bytes, partition: int | None = None) -> None:
        """Queue a message to the tenant's topic."""
        self._bus.publish(self._whole(topic), key, value, partition)

    def flush(self, timeout_s: float = 30.0) -> None:
        """Wait for everything that was published."""
        self._bus.flush(timeout_s)

    def subscribe(
        self, topics: Sequence[str], group: str | None, partitions: Sequence[int] | None = None
    ) -> Subscription:
        """Join the tenant's group on the tenant's topics."""
        whole = None if group is None else self._whole(group)
        found = self._bus.subscribe([self._whole(topic) for topic in topics], whole, partitions)
        return _TenantSubscription(found, self._whole(""))

    def backlog(self, topic: str, group: str) -> int:
        """Return how much of the tenant's topic the tenant's group has not committed."""
        return self._bus.backlog(self._whole(topic), self._whole(group))

    def held(self, topic: str) -> Sequence[range]:
        """Return the offsets in the tenant's topic."""
        return self._bus.held(self._whole(topic))

    def troubles(self) -> Troubles:
        """Return the troubles of the underlying bus."""
        return self._bus.troubles()

    def close(self) -> None:
        """Close the underlying bus."""
        self._bus.close()

    def _whole(self, name: str) -> str:
        return of_tenant(self._tenant, name)


class _TenantSubscription:
    """A subscription whose records have topics without the tenant's prefix."""

    def __init__(self, subscription: Subscription, prefix: str) -> None:
        self._subscription = subscription
        self._prefix = prefix

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        found = self._subscription.poll(max_records, timeout_s)
        return [replace(record, topic=record.topic.removeprefix(self._prefix)) for record in found]

    def done(self, record: Record) -> None:
        self._subscription.done(replace(record, topic=self._prefix + record.topic))

    def pause(self) -> None:
        self._subscription.pause()

    def resume(self) -> None:
        self._subscription.resume()

    @property
    def partitions(self) -> int:
        return self._subscription.partitions

    def owned(self, topic: str) -> frozenset[int]:
        return self._subscription.owned(self._prefix + topic)

    def close(self) -> None:
        self._subscription.close()
