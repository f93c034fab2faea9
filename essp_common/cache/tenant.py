"""One tenant's part of a frame cache: keys that begin with its name.

Room is shared: `usage` covers the whole cache, and other tenants can fill it.
"""

from __future__ import annotations

from collections.abc import Sequence

from essp_common.cache.port import Buffer, CacheUsage, FrameCache, Part, Summed, of_tenant
from essp_common.runtime.troubles import Troubles


class TenantCache:
    """Implements `essp_common.cache.port.FrameCache` over another one."""

    def __init__(self, cache: FrameCache, tenant: str) -> None:
        self._cache = cache
        self._prefix = of_tenant(tenant, "")

    def put(self, key: str, value: Buffer | Summed, consumers: Sequence[str], ttl_s: float) -> None:
        """Store under the tenant's key."""
        self._cache.put(self._prefix + key, value, consumers, ttl_s)

    def get(self, key: str, parts: Sequence[Part] = ()) -> Buffer:
        """Read the tenant's key."""
        return self._cache.get(self._prefix + key, parts)

    def holds(self, key: str) -> bool:
        """Whether the tenant's key is present."""
        return self._cache.holds(self._prefix + key)

    def ack(self, key: str, consumer: str) -> bool:
        """Ack the tenant's key."""
        return self._cache.ack(self._prefix + key, consumer)

    def ack_all(self, keys: Sequence[str], consumer: str) -> int:
        """Ack the tenant's keys."""
        return self._cache.ack_all([self._prefix + key for key in keys], consumer)

    def usage(self) -> CacheUsage:
        """Return the usage of all tenants together."""
        return self._cache.usage()

    def purge(self, prefix: str) -> int:
        """Drop only keys of this tenant."""
        return self._cache.purge(self._prefix + prefix)

    def troubles(self) -> Troubles:
        """Return the troubles of the underlying cache."""
        return self._cache.troubles()

    def close(self) -> None:
        """Close the underlying cache."""
        self._cache.close()
