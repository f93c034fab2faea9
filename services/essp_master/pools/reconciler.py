"""The loop that keeps pools as they should be: looks, decides, scales, repairs.

Bounds set by hand (`set`) or by a registration take effect at once; the autoscaler decides the rest every few seconds.
Drift and dead workers are repaired as soon as the driver sees them. Every change is recorded with its reason in a
sentence.

The store of rules and registrations may let whoever asks it wait for a minute, and so may the platform. The store is
asked without the lock, and people are told of pools without it: neither keeps anybody who does not need it. What it
holds that cannot be read is a condition; pools are kept by what could be read.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict

from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError, TransientError
from essp_common.quantities import counted
from essp_common.runtime import ids
from essp_common.runtime.conditions import Condition, Subject
from essp_common.runtime.troubles import Kind
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.pools.autoscaler import Autoscaler, Decision, Limits, Saturation
from essp_master.pools.load import PoolRates, loads
from essp_master.pools.port import CannotNow, PoolDriver, PoolSize, TrainingKey
from essp_master.pools.rules import PoolRule, PoolRules
from essp_master.pools.trainer_ranks import TrainerRanks
from essp_master.pools.worker_registry import PoolState, WorkerRegistry
from essp_master.status.pool_demand import PoolDemand

log = logging.getLogger(__name__)

PERIOD_S = 10.0
_SETTLE_S = 0.5
"""Changes come in bursts: one look covers those within so long."""
_SILENT_S = 60.0
"""How long a store that did not answer is not asked again for what people said of pools."""
_KEPT = 2000
_SHARED = (Kind.BUS_SILENT, Kind.BUS_STALLED, Kind.CACHE_SILENT)
"""Conditions of servers that all pools use."""


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, extra="forbid")


class PoolView(_Plain):
    """A pool, for people."""

    name: str
    replicas: int
    ready: int
    wanted: int
    """Workers that the master holds right; where something else sets the size, that is advice."""
    stuck: int
    busy: float
    saturation: str
    reason: str
    held_up: str
    """What keeps workers that were asked for from coming up: no node or no quota has room, an image is not there. Until
    it is over none is added. Empty: nothing that is known."""
    rule: PoolRule
    """Its bounds, or its fixed size."""


class PoolEvent(_Plain):
    """A change of a pool."""

    time: datetime
    pool: str
    message: str


@dataclass(frozen=True, slots=True)
class _Registered:
    extractors: Mapping[str, ExtractorRow]
    """By feature."""
    trainers: Mapping[str, TrainerRow]
    """By name; empty where the master starts none."""


class Reconciler:
    """Implements `essp_common.runtime.service.Service`; what people call is thread-safe."""

    name = "pools"

    def __init__(
        self,
        driver: PoolDriver,
        worker_registry: WorkerRegistry,
        jobs: Callable[[], Sequence[PoolDemand]],
        extractors: Callable[[], Mapping[str, ExtractorRow]] = dict,
        trainer_ranks: TrainerRanks | None = None,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
        conditions: Callable[[], Sequence[Condition]] = tuple,
        jobs_known: Callable[[], bool] = lambda: True,
        rules: PoolRules | None = None,
        trainers: Callable[[], Mapping[str, TrainerRow]] = dict,
    ) -> None:
        """`jobs`: their demand. `jobs_known`: whether these are all; until then no ranks are divided. `extractors`,
        `trainers`: registered ones. `trainer_ranks`: divides the ranks; None: the master starts no trainers.
        `conditions`: what keeps ESSP from working. `rules`: what people said of pools, also to masters before; None:
        nothing yet."""
        self._conditions = conditions
        self._jobs_known = jobs_known
        self._driver = driver
        self._registry = worker_registry
        self._jobs = jobs
        self._extractors = extractors
        self._trainers = trainers
        self._trainer_ranks = trainer_ranks
        self._period_s = period_s
        self._clock = clock
        self._autoscaler = Autoscaler()
        self._rates = PoolRates()
        self._rules = rules or PoolRules(None)
        self._of_registrations: dict[str, PoolRule] = {}
        self._registered: dict[str, ExtractorRow] = {}
        self._wanted: _Registered | None = None
        """What is registered, as it was read last; None: it never was."""
        self._damaged: tuple[str, ...] = ()
        """What in the store cannot be read, and what to do."""
        self._look_up_s = 0.0
        """Not before this is the store asked again that did not answer."""
        self._removed: Set[str] = set()
        self._decisions: dict[str, Decision] = {}
        self._reported: dict[str, tuple[int, int]] = {}
        self._events: deque[PoolEvent] = deque(maxlen=_KEPT)
        self._lock = threading.RLock()
        self._refused: dict[str, str] = {}
        self._seen: Sequence[PoolView] = ()
        self._ranks: Mapping[TrainingKey, int] = {}
        self._held_up: set[str] = set()
        """Pools of which it was reported that workers do not come up."""
        self._draining = threading.Event()
        self._woken = threading.Event()

    # --- the service ---

    def run(self) -> None:
        """Keep pools in shape until drained."""
        try:
            self._driver.start(self._woken.set)
            while not self._draining.is_set():
                next_s = time.monotonic() + self._period_s
                self._woken.clear()
                self._try(self.step)
                while self._is_woken(next_s):  # however often: the next step is not to wait for it
                    self._woken.clear()
                    self._try(self.repair)
        finally:
            self._driver.close()

    def drain(self) -> None:
        """Let `run` return."""
        self._draining.set()
        self._woken.set()

    def repair(self) -> None:
        """Repair what differs from the last decision; decide nothing else."""
        self._repair(self._look_up())

    def _repair(self, registered: _Registered | None) -> None:
        if registered is not None:
            self._forget_rules_of_removed(registered.extractors)
        with self._lock:
            if registered is not None:
                self._follow_registrations(registered.extractors)
            for sentence in self._driver.repair():
                self._report("", sentence)
            sizes = self._driver.sizes()
            self._tell_of_held_up(sizes)
            for pool, size in sizes.items():
                self._keep(pool, size)

    def step(self) -> None:
        """Look once, and do what is to be done."""
        registered = self._look_up()
        self._repair(registered)
        with self._lock:
            now_s = self._clock()
            jobs = self._jobs()
            if registered is not None:
                self._divide_ranks(jobs, registered.trainers)
            sizes, states = self._driver.sizes(), self._registry.pools(now_s)
            self._rates.note(jobs, now_s)
            measured = loads(jobs, sizes, states, self._rates.per_s(now_s), self._hindered(sizes))
            found = [(load, self._growth_limits(load.name, sizes[load.name], states)) for load in measured]
            for decision in self._autoscaler.decide(found, now_s):
                self._decisions[decision.pool] = decision
                self._carry_out(decision, states.get(decision.pool, PoolState()))

    # --- what people ask for ---

    def pools(self) -> list[PoolView]:
        """The pools there are, by name."""
        sizes, states = self._driver.sizes(), self._registry.pools(self._clock())
        return [self._view(name, sizes[name], states.get(name, PoolState())) for name in sorted(sizes)]

    def last_seen(self) -> Sequence[PoolView]:
        """The pools as they were at the last look; none if the platform did not answer it. Waits for nothing."""
        return self._seen

    def ranks(self) -> Mapping[TrainingKey, int]:
        """The ranks that each training had at the last look. Waits for nothing."""
        return self._ranks

    def rule(self, pool: str, size: PoolSize | None = None) -> PoolRule:
        """The bounds of a pool: as people or a registration set them, else as it was made."""
        made = PoolRule() if size is None else PoolRule(min=size.min, max=size.max)
        return self._rules.of(pool) or self._of_registrations.get(pool, made)

    def set(self, pool: str, rule: PoolRule, by: str) -> None:
        """Set the bounds of a pool, or a fixed size; they outlive this master. Raises `NotFound`, `ConfigError`."""
        sizes = self._driver.sizes()
        if pool not in sizes:
            raise NotFound(f"there is no pool {pool!r}; there are: {', '.join(sorted(sizes)) or 'none'}")
        if ids.is_training(pool):
            raise ConfigError(f"{pool}: the master divides ranks itself; ESSP_RANKS sets their number")
        self._rules.set(pool, rule, by)
        lasts = "" if self._rules.lasting else " until this master ends; ESSP_STATE would keep it"
        self._follow_rule(pool, f"{by} set it to {rule.model_dump_json()}{lasts}")

    def reset(self, pool: str, by: str) -> None:
        """Forget what people said of a pool: it gets the bounds that it was made with. Raises `NotFound`."""
        if self._rules.of(pool) is None:
            raise NotFound(f"nobody has set pool {pool!r}; it has the bounds that it was made with")
        self._rules.set(pool, None, by)
        self._follow_rule(pool, f"{by} gave it back the bounds that it was made with")

    def troubles(self) -> Mapping[Subject, str]:
        """What was written for pools and cannot be read. Waits for nothing."""
        if not self._damaged:
            return {}
        meanwhile = "until then pools are kept by what could be read, and no such setting can be changed"
        return {(Kind.STATE_DAMAGED, ids.MASTER): f"{'; '.join(self._damaged)}; {meanwhile}"}

    def events(self) -> list[PoolEvent]:
        """Changes, newest last."""
        return list(self._events)

    # --- within ---

    def _follow_rule(self, pool: str, sentence: str) -> None:
        """Tell of another rule of a pool, and keep the pool to it."""
        with self._lock:
            self._report(pool, sentence)
            if (size := self._driver.sizes().get(pool)) is not None:
                self._keep(pool, size)

    def _divide_ranks(self, jobs: Sequence[PoolDemand], rows: Mapping[str, TrainerRow]) -> None:
        divides = self._trainer_ranks if self._jobs_known() else None
        try:
            for sentence in divides.step(jobs, rows) if divides else ():
                self._report("", sentence)
        except (PermanentError, ConfigError) as error:  # pools are no worse for it
            log.warning("trainers: %s; trying again", error)
        self._ranks = divides.shares if divides else {}

    def _keep(self, pool: str, size: PoolSize) -> None:
        """Bring a pool within its bounds. Where that is refused, an event says so."""
        if (wanted := self._bounded(pool, size)) != size.replicas:
            state = self._registry.pools(self._clock()).get(pool, PoolState())
            self._carry_out(Decision(pool, Saturation.BALANCED, size.replicas, wanted, "outside its bounds"), state)

    def _tell_of_held_up(self, sizes: Mapping[str, PoolSize]) -> None:
        """Report what keeps workers from coming up, once for as long as it lasts."""
        held_up = {pool: size for pool, size in sizes.items() if size.held_up}
        for pool in sorted(held_up.keys() - self._held_up):
            size = held_up[pool]
            lacking = size.replicas - size.ready
            up = f"{lacking} of {size.replicas} workers are not up: " if lacking > 0 else ""
            self._report(pool, f"{up}{size.held_up}")
        self._held_up = set(held_up)

    def _is_woken(self, until_s: float) -> bool:
        """Wait for something to repair before the next step; False: there is nothing."""
        left_s = until_s - time.monotonic()
        return left_s > 0 and self._woken.wait(left_s) and not self._draining.wait(_SETTLE_S)

    def _try(self, what: Callable[[], None]) -> None:
        try:
            what()
            self._seen = self.pools()
        except EsspError as error:
            self._seen = ()
            log.warning("pools: %s; trying again", error)

    def _look_up(self) -> _Registered | None:
        """Read what people said of pools, and what is registered. While the store does not answer, or what it holds
        cannot be read, what was read last holds. None: what is registered was never read."""
        if self._wanted is None or self._clock() >= self._look_up_s:
            try:
                self._damaged = tuple(filter(None, map(_damage, (self._rules.follow, self._read_registered))))
            except TransientError as error:
                if self._wanted is None and not self._damaged:
                    raise
                self._look_up_s = self._clock() + _SILENT_S
                log.warning("pools: %s; what was registered and set until now holds", error)
        return self._wanted

    def _read_registered(self) -> None:
        trainers = self._trainers() if self._trainer_ranks else {}
        self._wanted = _Registered(dict(self._extractors()), dict(trainers))

    def _follow_registrations(self, wanted: Mapping[str, ExtractorRow]) -> None:
        for feature, row in wanted.items():
            if self._registered.get(feature) != row:
                self._add(feature, row)
        for feature in set(self._registered) - set(wanted):
            del self._registered[feature]
            self._of_registrations.pop(ids.extractor_pool([feature]), None)
        removed = self._unregistered(wanted)
        for pool in sorted(removed):
            self._driver.remove(pool)
            if pool not in self._removed:  # it may be seen for a while yet
                self._report(pool, "is no longer registered; its workers leave")
        self._removed = removed

    def _unregistered(self, wanted: Mapping[str, ExtractorRow]) -> Set[str]:
        """The pools that were made for what is registered no more."""
        pools = {ids.extractor_pool([feature]) for feature in wanted}
        return {pool for pool, size in self._driver.sizes().items() if size.registered and pool not in pools}

    def _forget_rules_of_removed(self, wanted: Mapping[str, ExtractorRow]) -> None:
        for pool in sorted(self._unregistered(wanted) - self._removed):
            if self._rules.of(pool) is not None:
                with suppress(ConfigError):  # rules that cannot be read are kept as they are
                    self._rules.set(pool, None, "the master")

    def _add(self, feature: str, row: ExtractorRow) -> None:
        """Have a pool for what is registered; one that is refused does not stop the others."""
        pool = ids.extractor_pool([feature])
        try:
            self._driver.add_extractor(row)
        except (PermanentError, ConfigError, CannotNow) as error:
            if self._refused.get(feature) != str(error):
                self._refused[feature] = str(error)
                self._report(pool, f"{row.image} cannot be run: {error}")
            return
        self._refused.pop(feature, None)
        self._registered[feature] = row
        self._of_registrations[pool] = PoolRule(min=row.min, max=row.max)
        self._report(pool, f"{row.image} is registered for {feature}; at least {row.min} workers")

    def _bounded(self, pool: str, size: PoolSize) -> int:
        """The allowed size that is nearest to the present one. `TrainerRanks` sets the size of trainers."""
        if ids.is_training(pool):
            return size.replicas
        limits = self._limits(pool, size)
        return min(max(size.replicas, limits.min), limits.max)

    def _limits(self, pool: str, size: PoolSize) -> Limits:
        rule = self.rule(pool, size)
        if rule.replicas is not None:
            return Limits(min=rule.replicas, max=rule.replicas, max_because=f"its size is fixed at {rule.replicas}")
        return Limits(min=min(rule.min, rule.max), max=rule.max)

    def _growth_limits(self, pool: str, size: PoolSize, states: Mapping[str, PoolState]) -> Limits:
        """The bounds within which the autoscaler decides: where workers share cores, no more than keep these busy. A
        pool that people have made larger stays as large."""
        limits = self._limits(pool, size)
        if size.cores is None or self.rule(pool, size).replicas is not None:
            return limits
        lanes = states[pool].lanes if pool in states else None
        most = max(1, size.cores // (lanes or size.cores))
        allowed = max(most, limits.min, min(size.replicas, limits.max))
        if allowed >= limits.max:
            return limits
        busy = f"{counted(allowed, 'worker')} {'keeps' if allowed == 1 else 'keep'}"
        why = f"{busy} the {size.cores} cores of this machine busy, so no more are added, though the bounds allow it"
        return Limits(min=limits.min, max=allowed, max_because=why)

    def _hindered(self, pools: Iterable[str]) -> dict[str, str]:
        """The pools whose workers cannot work, and why. What the master meets at a server, all of them do."""
        present = self._conditions()
        shared = next((it.line for it in present if it.kind in _SHARED), "")
        own = {it.subject: it.words for it in present if it.kind is not Kind.NO_WORKERS}
        return {pool: own.get(pool, shared) for pool in pools}

    def _carry_out(self, decision: Decision, state: PoolState) -> None:
        if decision.wanted == decision.replicas:
            self._reported.pop(decision.pool, None)
            return
        message = f"{decision.replicas} -> {decision.wanted}: {decision.reason}"
        try:
            self._driver.scale(decision.pool, decision.wanted, state.idlest())
        except (PermanentError, ConfigError, CannotNow) as error:  # the other pools are no worse for it
            message = f"{decision.replicas} -> {decision.wanted} was refused: {error}"
        step = (decision.replicas, decision.wanted)
        if self._reported.get(decision.pool) != step:  # what was not followed, or was refused, is not repeated
            self._reported[decision.pool] = step
            self._report(decision.pool, message)

    def _report(self, pool: str, message: str) -> None:
        log.info("pool %s: %s", pool, message)
        self._events.append(PoolEvent(time=datetime.now(UTC), pool=pool, message=message))
        if pool:
            self._driver.tell(pool, message)

    def _view(self, name: str, size: PoolSize, state: PoolState) -> PoolView:
        decision = self._decisions.get(name)
        return PoolView(
            name=name,
            replicas=size.replicas,
            ready=size.ready,
            wanted=decision.wanted if decision else size.replicas,
            stuck=state.stuck,
            busy=state.busy,
            saturation=decision.saturation if decision else "",
            reason=decision.reason if decision else "",
            held_up=size.held_up,
            rule=self.rule(name, size),
        )


def _damage(read: Callable[[], None]) -> str:
    """Why something cannot be read; empty: it can."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return ""
