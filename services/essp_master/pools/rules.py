"""Rules that people gave to pools: bounds of their sizes, or fixed sizes.

They go before what the chart or a registration says, and outlive the master that was told. They are kept in the object
store as numbered documents, each with all rules and the change that made it:

    <ESSP_STATE>/pools/0000000007.json

A change is written before it counts, as the next number, which only one writer can win; so two masters never undo each
other's changes. All documents stay: they say who set what, and when. Without ESSP_STATE rules last as long as the
process.

A document that cannot be read, as one of which a disk holds a half, is never written over: until people restore or
remove it the rules before it hold, and nobody can set others.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from essp_common.errors import ConfigError, Conflict, NotFound
from essp_common.objects.numbered_log import REMEDY, NumberedLog
from essp_common.objects.port import ObjectStore
from essp_common.validation import problems
from essp_engine.registrations import check_bounds

PREFIX = "pools/"


class _Plain(BaseModel):
    model_config = ConfigDict(frozen=True, use_attribute_docstrings=True, extra="forbid")


class PoolRule(_Plain):
    """The bounds of a pool's size, or its size."""

    min: int = Field(1, ge=0, le=1000)
    """Fewest workers."""
    max: int = Field(64, ge=0, le=1000)
    """Most workers."""
    replicas: int | None = Field(None, ge=0, le=1000)
    """A fixed size; null: as the autoscaler decides."""


class _Document(_Plain):
    version: int
    time: datetime
    by: str
    """The name of the token that made this change."""
    pool: str
    """Whose rule it changed."""
    rules: dict[str, PoolRule]


class PoolRules:
    """The rules, by pool. Thread-safe, also between processes. What reads or writes raises what the store raises."""

    def __init__(self, store: ObjectStore | None) -> None:
        """`store`: where they are kept; None: nowhere."""
        self._log = NumberedLog(store, PREFIX, ".json") if store is not None else None
        self._version: int | None = 0 if store is None else None
        """The newest document that was read; None: it is not known which there are."""
        self._rules: Mapping[str, PoolRule] = {}
        self._lock = threading.RLock()
        """Held while the store is read or written. Whoever only asks for a rule that is known waits for neither."""

    @property
    def lasting(self) -> bool:
        """Whether they outlive the process."""
        return self._log is not None

    @property
    def known(self) -> bool:
        """Whether they were read."""
        return self._version is not None

    def of(self, pool: str) -> PoolRule | None:
        """What people said of a pool; None: nothing."""
        if not self.known:
            with suppress(ConfigError):  # whoever follows them is told
                self.follow()
        return self._rules.get(pool)

    def follow(self) -> None:
        """Read what other masters have written meanwhile; only what is new is fetched. Raises `ConfigError` for a
        document that cannot be read; then the rules before it hold."""
        if self._log is None:
            return
        with self._lock:
            version, rules = self._version, self._rules
            if version is None:
                version = max(self._log.newest() - 1, 0)
            number, damage = version, None
            while True:
                number += 1
                try:
                    version, rules, damage = number, _parse(self._log, number).rules, None
                except NotFound:
                    break
                except ConfigError as error:
                    damage = damage or error
            if damage is not None and not self.known:
                rules = _newest_sound(self._log)
            self._rules = rules  # last: what was read in part is not known
            self._version = version
            if damage is not None:
                raise damage

    def set(self, pool: str, rule: PoolRule | None, by: str) -> None:
        """Keep the rule of a pool; None: forget it. It counts once it is written. Raises `ConfigError` for bounds that
        no size lies within."""
        if rule is not None:
            check_bounds(rule.min, rule.max)
        with self._lock:
            while True:
                self.follow()
                rules = {name: known for name, known in self._rules.items() if name != pool}
                if rule is not None:
                    rules[pool] = rule
                if self._log is None:
                    self._rules = rules
                    return
                made = _Document(
                    version=(self._version or 0) + 1, time=datetime.now(UTC), by=by, pool=pool, rules=rules
                )
                try:
                    self._log.write(made.version, (json.dumps(made.model_dump(mode="json"), indent=1) + "\n").encode())
                except Conflict:
                    continue  # another master was first: look at what it wrote
                self._rules = rules
                self._version = made.version
                return


def _newest_sound(log: NumberedLog) -> Mapping[str, PoolRule]:
    """The rules of the newest document that can be read."""
    for number in reversed(log.numbers()):
        with suppress(ConfigError, NotFound):
            return _parse(log, number).rules
    return {}


def _parse(log: NumberedLog, number: int) -> _Document:
    """One document. Raises `NotFound`, and `ConfigError` for what is none."""
    try:
        found = _Document.model_validate_json(log.read(number))
        if found.version != number:
            raise ConfigError(
                f"{log.uri(number)} holds change {found.version} of the rules of pools; {REMEDY}", code="unreadable"
            )
    except ValidationError as error:
        said = "; ".join(map(str, problems(error, _Document)))
        raise ConfigError(f"{log.uri(number)} holds no rules of pools: {said}; {REMEDY}", code="unreadable") from error
    return found
