"""What holds for pools: the rules that people set, and what is registered, as the store said last.

The store may let whoever asks it wait for a minute, so nobody asks it under a lock, and one that did not answer is left
alone for a while; what was read last holds meanwhile. So it does where the store holds something that cannot be read,
which is a condition.
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
"""How long a store that did not answer is not asked again for what people said of pools."""


@dataclass(frozen=True, slots=True)
class Registered:
    """What is registered."""

    extractors: Mapping[str, ExtractorRow]
    """By feature."""
    trainers: Mapping[str, TrainerRow]
    """By name; empty where the master starts none."""


class PoolRuleBook:
    """The bounds of each pool. `follow` and `adopt` are called from one thread at a time, the rest is thread-safe."""

    def __init__(
        self,
        rules: PoolRules | None = None,
        extractors: Callable[[], Mapping[str, ExtractorRow]] = dict,
        trainers: Callable[[], Mapping[str, TrainerRow]] = dict,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`rules`: what people set, also while earlier masters led; None: nothing yet. `extractors`, `trainers`: the
        registered ones."""
        self._rules = rules or PoolRules(None)
        self._extractors = extractors
        self._trainers = trainers
        self._clock = clock
        self._registered: Registered | None = None
        """As it was read last; None: it never was."""
        self._adopted: dict[str, ExtractorRow] = {}
        """By the pool that was made for it."""
        self._damaged: tuple[str, ...] = ()
        """What in the store cannot be read, and what to do."""
        self._look_up_s = 0.0
        """A store that did not answer is not asked again before this."""

    @property
    def lasting(self) -> bool:
        """Whether rules outlive the process."""
        return self._rules.lasting

    def look_up(self) -> Registered | None:
        """Read what people set, and what is registered; None: the latter could never be read.

        Raises `TransientError` where the store does not answer, and never has.
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
        """The bounds of a pool: as people or a registration set them, else as it was made."""
        if (said := self._rules.of(pool)) is not None:
            return said
        made = self._adopted.get(pool) or size
        return PoolRule() if made is None else PoolRule(min=made.min, max=made.max)

    def limits(self, pool: str, size: PoolSize) -> Limits:
        """The sizes that the rule of a pool allows."""
        rule = self.rule(pool, size)
        if rule.replicas is not None:
            return Limits(min=rule.replicas, max=rule.replicas, max_because=f"its size is fixed at {rule.replicas}")
        return Limits(min=min(rule.min, rule.max), max=rule.max)

    def set(self, pool: str, rule: PoolRule, by: str) -> None:
        """Keep what people set. Raises `ConfigError`, and what the store raises."""
        self._rules.set(pool, rule, by)

    def forget(self, pool: str, by: str) -> bool:
        """Forget what people set; False: there is nothing to forget. Raises as `set`."""
        if self._rules.of(pool) is None:
            return False
        self._rules.set(pool, None, by)
        return True

    def follow(self, extractors: Mapping[str, ExtractorRow]) -> list[ExtractorRow]:
        """Forget the bounds of extractors that are no longer registered. The rows that are new or have changed, of
        which pools are to be made."""
        rows = {ids.extractor_pool([feature]): row for feature, row in extractors.items()}
        self._adopted = {pool: row for pool, row in self._adopted.items() if pool in rows}
        return [row for pool, row in rows.items() if self._adopted.get(pool) != row]

    def adopt(self, pool: str, row: ExtractorRow) -> None:
        """A pool was made for this row, whose bounds count from now on."""
        self._adopted[pool] = row

    def troubles(self) -> Mapping[Subject, str]:
        """What was written for pools and cannot be read. Waits for nothing."""
        if not self._damaged:
            return {}
        meanwhile = "until then pools are kept by what could be read, and no such setting can be changed"
        return {(Kind.STATE_DAMAGED, ids.MASTER): f"{'; '.join(self._damaged)}; {meanwhile}"}

    def _read_registered(self) -> None:
        self._registered = Registered(dict(self._extractors()), dict(self._trainers()))


def _damage(read: Callable[[], None]) -> str:
    """Why something cannot be read; empty: it can."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return ""
