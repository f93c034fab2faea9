"""The control loop of the pools: observes, decides, scales, repairs.

Bounds set by users (`set`) or by a registration take effect at once; the autoscaler decides the rest every few
seconds. Drift and dead workers are repaired as soon as the driver sees them. Every change is recorded with its reason
in a sentence.

The rule book (`rule_book.py`) has the rules of each pool. Its store may block for a minute, and so may the platform.
The store is asked without holding the lock, and users can read pools without it, so neither delays callers that do not
need it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import suppress
from functools import partial

from pydantic import BaseModel, ConfigDict

from essp_common.errors import ConfigError, EsspError, NotFound, PermanentError
from essp_common.quantities import counted
from essp_common.runtime import ids
from essp_common.runtime.conditions import Condition
from essp_common.runtime.troubles import Kind
from essp_engine.registrations import ExtractorRow, TrainerRow
from essp_master.pools.autoscaler import Autoscaler, Decision, Limits, Saturation
from essp_master.pools.load import PoolRates, loads
from essp_master.pools.pool_events import PoolEvent, PoolEvents
from essp_master.pools.port import CannotNow, PoolDriver, PoolSize, TrainingKey
from essp_master.pools.rule_book import PoolRuleBook, Registered
from essp_master.pools.rules import PoolRule
from essp_master.pools.trainer_ranks import TrainerRanks
from essp_master.pools.worker_registry import PoolState, WorkerRegistry
from essp_master.status.pool_demand import PoolDemand

log = logging.getLogger(__name__)

PERIOD_S = 10.0
_SETTLE_S = 0.5
"""Changes come in bursts: one repair covers those within this time."""
_DEAF_S = 10.0
"""A master that has read nothing for this long knows neither rates nor who is busy."""
_SHARED = (Kind.BUS_SILENT, Kind.BUS_STALLED, Kind.CACHE_SILENT)
"""Conditions of servers that all pools use."""


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, extra="forbid")


class PoolView(_Plain):
    """A pool, for users."""

    name: str
    replicas: int
    ready: int
    wanted: int
    """Workers that the master considers right; only a recommendation if something else sets the size."""
    stuck: int
    busy: float
    saturation: str
    reason: str
    held_up: str
    """What keeps requested workers from coming up: no node or quota has room, an image does not exist. Until that is
    over, no workers are added. Empty if nothing is known."""
    rule: PoolRule
    """Its bounds, or its fixed size."""


class Reconciler:
    """Implements `essp_common.runtime.service.Service`; methods for users are thread-safe."""

    name = "pools"

    def __init__(
        self,
        driver: PoolDriver,
        worker_registry: WorkerRegistry,
        jobs: Callable[[], Sequence[PoolDemand]],
        book: PoolRuleBook | None = None,
        trainer_ranks: TrainerRanks | None = None,
        period_s: float = PERIOD_S,
        clock: Callable[[], float] = time.monotonic,
        conditions: Callable[[], Sequence[Condition]] = tuple,
        jobs_known: Callable[[], bool] = lambda: True,
        tell_paused: Callable[[Set[str]], None] = lambda pools: None,
        events: PoolEvents | None = None,
        attempt: Callable[[str, Callable[[], object]], object] = lambda part, work: work(),
    ) -> None:
        """`jobs`: returns their demand. `jobs_known`: whether these are all jobs; until then no ranks are divided.
        `book`: the rules of the pools; None: the bounds that they were created with. `trainer_ranks`: divides the
        ranks; None: the master starts no trainers. `conditions`: returns what keeps ESSP from working. `tell_paused`:
        tells all workers which pools are paused. `events`: keeps what was done; None: until this process ends.
        `attempt`: does a part of the master's work, and handles its unexpected errors (`lifecycle/defects.py`)."""
        self._attempt = attempt
        self._tell_paused = tell_paused
        self._told_paused: Set[str] | None = None
        """What was last announced to workers; None: nothing yet."""
        self._telling = threading.Lock()
        """Held from reading what is paused until it is announced: the newest announcement counts."""
        self._conditions = conditions
        self._jobs_known = jobs_known
        self._driver = driver
        self._registry = worker_registry
        self._jobs = jobs
        self._book = PoolRuleBook() if book is None else book
        self._trainer_ranks = trainer_ranks
        self._period_s = period_s
        self._clock = clock
        self._autoscaler = Autoscaler()
        self._rates = PoolRates()
        self._removed: Set[str] = set()
        self._decisions: dict[str, Decision] = {}
        self._reported: dict[str, tuple[int, int]] = {}
        self._events = events or PoolEvents()
        self._lock = threading.RLock()
        self._refused: dict[str, str] = {}
        self._seen: Sequence[PoolView] = ()
        self._ranks: Mapping[TrainingKey, int] = {}
        self._held_up: set[str] = set()
        """Pools for which an event has reported that workers do not come up."""
        self._draining = threading.Event()
        self._woken = threading.Event()

    # --- the service ---

    def run(self) -> None:
        """Control the pools until drained."""
        try:
            self._driver.start(self._woken.set)
            while not self._draining.is_set():
                next_s = time.monotonic() + self._period_s
                # Cleared before the step: a change during the step wakes the loop again, so none is missed.
                self._woken.clear()
                self._try(self.step)
                while self._is_woken(next_s):  # bounded by `next_s`: repairs must not delay the next step
                    self._woken.clear()
                    self._try(self.repair)
        finally:
            self._events.save()
            self._driver.close()

    def drain(self) -> None:
        """Make `run` return."""
        self._draining.set()
        self._woken.set()

    def repair(self) -> None:
        """Repair deviations from the last decision, without deciding anything new."""
        self._repair(self._book.look_up())

    def _repair(self, registered: Registered | None) -> None:
        if registered is not None:
            # Outside the lock, since it may wait for the store.
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
        """Observe once, and carry out what follows."""
        # Outside the lock, since both may wait for the store.
        registered = self._book.look_up()
        self._events.save()
        self._follow_pauses()
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

    # --- what users ask for ---

    def pools(self) -> list[PoolView]:
        """Return the existing pools, by name."""
        sizes, states = self._driver.sizes(), self._registry.pools(self._clock())
        return [self._view(name, sizes[name], states.get(name, PoolState())) for name in sorted(sizes)]

    def last_seen(self) -> Sequence[PoolView]:
        """Return the pools as last observed; empty if the platform did not answer. Does not block."""
        return self._seen

    def ranks(self) -> Mapping[TrainingKey, int]:
        """Return the ranks that each training had when last observed. Does not block."""
        return self._ranks

    def rule(self, pool: str, size: PoolSize | None = None) -> PoolRule:
        """Return the bounds of a pool: as set by users or a registration, else as created."""
        return self._book.rule(pool, size)

    def set(self, pool: str, rule: PoolRule, by: str) -> PoolRule:
        """Set the bounds of a pool, or a fixed size; they outlive this master. A rule that does not say whether the
        pool is paused leaves that as it is. Returns the whole rule. Raises `NotFound`, `ConfigError`."""
        size = self._existing(pool)
        if "paused" not in rule.model_fields_set:
            rule = rule.model_copy(update={"paused": self._book.rule(pool, size).paused})
        self._book.set(pool, rule, by)
        lasts = "" if self._book.lasting else " until this master ends; ESSP_STATE would keep it"
        self._follow_rule(pool, f"{by} set it to {rule.model_dump_json()}{lasts}")
        return rule

    def pause(self, pool: str, by: str) -> PoolRule:
        """Let the workers of a pool take nothing new. Raises as `set`."""
        return self._set_paused(pool, True, by)

    def resume(self, pool: str, by: str) -> PoolRule:
        """Let the workers of a paused pool work again. Raises as `set`."""
        return self._set_paused(pool, False, by)

    def _set_paused(self, pool: str, paused: bool, by: str) -> PoolRule:
        size = self._existing(pool)
        rule = self._book.rule(pool, size).model_copy(update={"paused": paused})
        if rule == PoolRule(min=size.min, max=size.max):  # users have set nothing else
            self._book.forget(pool, by)
        else:
            self._book.set(pool, rule, by)
        lasts = "" if self._book.lasting or not paused else " until this master ends; ESSP_STATE would keep it"
        self._follow_rule(pool, f"{by} {'paused' if paused else 'resumed'} it{lasts}")
        return rule

    def reset(self, pool: str, by: str) -> None:
        """Remove what users set for a pool: it gets its initial bounds again. Raises `NotFound`."""
        if not self._book.forget(pool, by):
            raise NotFound(f"pool {pool!r} was never changed; it has its original bounds")
        self._follow_rule(pool, f"{by} restored its original bounds")

    def events(self) -> list[PoolEvent]:
        """Return the changes, newest last."""
        return self._events.all()

    # --- internals ---

    def _existing(self, pool: str) -> PoolSize:
        """Return the size of a pool that users may change. Raises `NotFound`, `ConfigError`."""
        sizes = self._driver.sizes()
        if pool not in sizes:
            raise NotFound(f"there is no pool {pool!r}; there are: {', '.join(sorted(sizes)) or 'none'}")
        if ids.is_training(pool):
            raise ConfigError(
                f"{pool}: the master divides ranks itself; ESSP_RANKS sets their number, and `essp job pause` pauses "
                "the job",
                code="unsupported",
            )
        return sizes[pool]

    def _follow_pauses(self) -> None:
        """Tell the workers which pools are paused, if that is new."""
        with self._telling:
            paused = self._book.paused()
            if paused != self._told_paused:
                self._tell_paused(paused)
                self._told_paused = paused

    def _follow_rule(self, pool: str, sentence: str) -> None:
        """Report the new rule of a pool, and apply it."""
        self._follow_pauses()
        with self._lock:
            self._report(pool, sentence)
            if (size := self._driver.sizes().get(pool)) is not None:
                self._keep(pool, size)

    def _divide_ranks(self, jobs: Sequence[PoolDemand], rows: Mapping[str, TrainerRow]) -> None:
        divides = self._trainer_ranks if self._jobs_known() else None
        try:
            for pool, sentence in divides.step(jobs, rows) if divides else ():
                self._report(pool, sentence)
        except (PermanentError, ConfigError) as error:  # the pools are unaffected
            log.warning("trainers: %s; trying again", error)
        self._ranks = divides.shares if divides else {}

    def _keep(self, pool: str, size: PoolSize) -> None:
        """Bring a pool within its bounds. If that is refused, an event says so."""
        if (wanted := self._bounded(pool, size)) != size.replicas:
            state = self._registry.pools(self._clock()).get(pool, PoolState())
            self._carry_out(Decision(pool, Saturation.BALANCED, size.replicas, wanted, "outside its bounds"), state)

    def _tell_of_held_up(self, sizes: Mapping[str, PoolSize]) -> None:
        """Report what keeps workers from coming up, once while it lasts."""
        held_up = {pool: size for pool, size in sizes.items() if size.held_up}
        for pool in sorted(held_up.keys() - self._held_up):
            size = held_up[pool]
            lacking = size.replicas - size.ready
            up = f"{lacking} of {size.replicas} workers are not up: " if lacking > 0 else ""
            self._report(pool, f"{up}{size.held_up}")
        self._held_up = set(held_up)

    def _is_woken(self, until_s: float) -> bool:
        """Wait for something to repair until the next step is due. Returns False if there is nothing."""
        left_s = until_s - time.monotonic()
        return left_s > 0 and self._woken.wait(left_s) and not self._draining.wait(_SETTLE_S)

    def _try(self, what: Callable[[], None]) -> None:
        self._attempt(self.name, partial(self._do, what))

    def _do(self, what: Callable[[], None]) -> None:
        seen: Sequence[PoolView] = ()
        try:
            what()
            seen = self.pools()
        except EsspError as error:
            log.warning("pools: %s; trying again", error)
        finally:
            self._seen = seen

    def _follow_registrations(self, wanted: Mapping[str, ExtractorRow]) -> None:
        for row in self._book.follow(wanted):
            self._add(row)
        removed = self._unregistered(wanted)
        for pool in sorted(removed):
            self._driver.remove(pool)
            if pool not in self._removed:  # it may remain visible for a while
                self._report(pool, "is no longer registered; its workers leave")
        self._removed = removed

    def _unregistered(self, wanted: Mapping[str, ExtractorRow]) -> Set[str]:
        """Return the pools that were created for registrations which no longer exist."""
        pools = {ids.extractor_pool([feature]) for feature in wanted}
        return {pool for pool, size in self._driver.sizes().items() if size.registered and pool not in pools}

    def _forget_rules_of_removed(self, wanted: Mapping[str, ExtractorRow]) -> None:
        for pool in sorted(self._unregistered(wanted) - self._removed):
            with suppress(ConfigError):  # rules that cannot be read stay unchanged
                self._book.forget(pool, "the master")

    def _add(self, row: ExtractorRow) -> None:
        """Ensure a pool for a registration; a refused one does not stop the others."""
        pool = ids.extractor_pool([row.name])
        try:
            self._driver.add_extractor(row)
        except (PermanentError, ConfigError, CannotNow) as error:
            if self._refused.get(pool) != str(error):
                self._refused[pool] = str(error)
                self._report(pool, f"{row.image} cannot be run: {error}")
            return
        self._refused.pop(pool, None)
        self._book.adopt(pool, row)
        self._report(pool, f"{row.image} is registered for {row.name}; at least {row.min} workers")

    def _bounded(self, pool: str, size: PoolSize) -> int:
        """Return the allowed size nearest to the present one. `TrainerRanks` sets the sizes of trainers."""
        if ids.is_training(pool):
            return size.replicas
        limits = self._book.limits(pool, size)
        return min(max(size.replicas, limits.min), limits.max)

    def _growth_limits(self, pool: str, size: PoolSize, states: Mapping[str, PoolState]) -> Limits:
        """Return the autoscaler's bounds. If workers share cores, no more workers than keep those busy. A pool that
        users have made larger stays as large."""
        limits = self._book.limits(pool, size)
        if size.cores is None or self._book.rule(pool, size).replicas is not None:
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
        """Return the pools whose workers cannot work, with the reason. A server trouble of the master affects all of
        them; it is a condition only after a while, but figures that do not change show it at once."""
        present = self._conditions()
        unread_s = self._clock() - self._registry.last_read(self._clock())
        deaf = f"{ids.MASTER}: no reports were read for {unread_s:.0f} s" if unread_s >= _DEAF_S else ""
        shared = next((it.line for it in present if it.kind in _SHARED), deaf)
        own = {it.subject: it.words for it in present if it.kind is not Kind.NO_WORKERS}
        return {pool: own.get(pool, shared) for pool in pools}

    def _carry_out(self, decision: Decision, state: PoolState) -> None:
        if decision.wanted == decision.replicas:
            self._reported.pop(decision.pool, None)
            return
        message = f"{decision.replicas} -> {decision.wanted}: {decision.reason}"
        try:
            self._driver.scale(decision.pool, decision.wanted, state.idlest())
        except (PermanentError, ConfigError, CannotNow) as error:  # the other pools are unaffected
            message = f"{decision.replicas} -> {decision.wanted} was refused: {error}"
        step = (decision.replicas, decision.wanted)
        if self._reported.get(decision.pool) != step:  # a step that had no effect, or was refused, is not repeated
            self._reported[decision.pool] = step
            self._report(decision.pool, message)

    def _report(self, pool: str, message: str) -> None:
        log.info("pool %s: %s", pool, message)
        self._events.add(pool, message)
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
            rule=self._book.rule(name, size),
        )
