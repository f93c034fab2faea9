"""The rules that users set for pools, and the registrations, as last read from the store.

The store may block for a minute, so it is never asked under a lock, and one that did not answer is left alone for a
while; meanwhile the values read last apply. The same holds if the store contains something unreadable, which is a
condition.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from essp_common.errors import ConfigError, TransientError
from essp_common.runtime import ids
from essp_common.runtime.conditions import Subject
from essp_common.runtime.troubles import Kind
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.pools.autoscaler import Limits
from essp_master.pools.port import PoolSize
from essp_master.pools.rules import PoolRule, PoolRules

log = logging.getLogger(__name__)

_SILENT_S = 60.0
"""How long a store that did not answer is not asked again."""


@dataclass(frozen=True, slots=True)
class Registered:
    """The registrations."""

    extractors: Mapping[str, ExtractorRow]
    """By feature."""
    trainers: Mapping[str, TrainerRow]
    """By name; empty if the master starts no trainers."""


class PoolRuleBook:
    """The bounds of each pool. `follow` and `adopt` are called from one thread at a time; the rest is thread-safe."""

    def __init__(
        self,
        rules: PoolRules | None = None,
        extractors: Callable[[], Mapping[str, ExtractorRow]] = dict,
        trainers: Callable[[], Mapping[str, TrainerRow]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rules`: what users set, also under earlier masters; None: nothing yet. `extractors`, `trainers`: return the
        registered ones."""
        self._rules = rules or PoolRules(None)
        self._extractors = extractors
        self._trainers = trainers
        self._clock = clock
        self._registered: Registered | None = None
        """As last read; None if it was never read."""
        self._adopted: dict[str, ExtractorRow] = {}
        """By the pool that was created for the row."""
        self._damaged: tuple[str, ...] = ()
        """What in the store cannot be read, with a remedy."""
        self._look_up_s = 0.0
        """A store that did not answer is not asked again before this time."""

    @property
    def lasting(self) -> bool:
        """Whether rules outlive the process."""
        return self._rules.lasting

    def look_up(self) -> Registered | None:
        """Read what users set, and the registrations. Returns None if the latter could never be read.

        Raises `TransientError` if the store does not answer and never has.
        """
        if self._registered is None or self._clock() >= self._look_up_s:
            try:
                self._damaged = tuple(filter(None, map(_damage, (self._rules.follow, self._read_registered))))
            except TransientError as error:
                if self._registered is None and not self._damaged:
                    raise
                self._look_up_s = self._clock() + _SILENT_S
                log.warning("pools: %s; what was registered and set until now holds", error)
        return self._registered

    def rule(self, pool: str, size: PoolSize | None = None) -> PoolRule:
        """Return the bounds of a pool: as set by users or a registration, else as created."""
        if (said := self._rules.of(pool)) is not None:
            return said
        made = self._adopted.get(pool) or size
        return PoolRule() if made is None else PoolRule(min=made.min, max=made.max)

    def limits(self, pool: str, size: PoolSize) -> Limits:
        """Return the sizes that the rule of a pool allows."""
        rule = self.rule(pool, size)
        if rule.replicas is not None:
            return Limits(min=rule.replicas, max=rule.replicas, max_because=f"its size is fixed at {rule.replicas}")
        return Limits(min=min(rule.min, rule.max), max=rule.max)

    def paused(self) -> frozenset[str]:
        """Return the pools that users have paused. Does not block."""
        return frozenset(self._rules.paused())

    def set(self, pool: str, rule: PoolRule, by: str) -> None:
        """Store a rule that users set. Raises `ConfigError`, and what the store raises."""
        self._rules.set(pool, rule, by)

    def forget(self, pool: str, by: str) -> bool:
        """Remove what users set. Returns False if there is nothing to remove. Raises as `set`."""
        if self._rules.of(pool) is None:
            return False
        self._rules.set(pool, None, by)
        return True

    def follow(self, extractors: Mapping[str, ExtractorRow]) -> list[ExtractorRow]:
        """Drop the bounds of extractors that are no longer registered. Returns the new and changed rows, for which
        pools must be created."""
        rows = {ids.extractor_pool([feature]): row for feature, row in extractors.items()}
        self._adopted = {pool: row for pool, row in self._adopted.items() if pool in rows}
        return [row for pool, row in rows.items() if self._adopted.get(pool) != row]

    def adopt(self, pool: str, row: ExtractorRow) -> None:
        """A pool was created for this row, whose bounds apply from now on."""
        self._adopted[pool] = row

    def troubles(self) -> Mapping[Subject, str]:
        """Return the pools that are paused, and what was written for pools and cannot be read. Does not block."""
        found: dict[Subject, str] = {
            (Kind.PAUSED, pool): f"the pool is paused, and takes nothing new; essp pool resume {pool}"
            for pool in sorted(self.paused())
        }
        if self._damaged:
            meanwhile = "until then pools are kept by what could be read, and no such setting can be changed"
            found[Kind.STATE_DAMAGED, ids.MASTER] = f"{'; '.join(self._damaged)}; {meanwhile}"
        return found

    def _read_registered(self) -> None:
        self._registered = Registered(dict(self._extractors()), dict(self._trainers()))


def _damage(read: Callable[[], None]) -> str:
    """Return why something cannot be read; empty if it can."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return ""
