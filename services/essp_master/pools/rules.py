"""Rules that users set for pools: bounds of their sizes, or fixed sizes.

They take precedence over the chart and registrations, and outlive the master that received them. They are kept in the
object store as numbered documents, each with all rules and the change that led to it:

    <ESSP_STATE>/pools/0000000007.json

A change counts once it is written under the next number, which only one writer can take; so two masters never undo each
other's changes. All documents stay: they record who set what, and when. Without ESSP_STATE, rules last as long as the
process.

An unreadable document, such as one that was only half written, is never overwritten: until users restore or remove it,
the previous rules apply, and no one can set others.
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
    """The bounds of a pool's size, or its fixed size."""

    min: int = Field(1, ge=0, le=1000)
    """Fewest workers."""
    max: int = Field(64, ge=0, le=1000)
    """Most workers."""
    replicas: int | None = Field(None, ge=0, le=1000)
    """A fixed size; null: the autoscaler decides."""
    paused: bool = False
    """Whether its workers finish what they have and take nothing new. They stay."""


class _Document(_Plain):
    version: int
    time: datetime
    by: str
    """The name of the token that made this change."""
    pool: str
    """The pool whose rule it changed."""
    rules: dict[str, PoolRule]


class PoolRules:
    """The rules, by pool. Thread-safe, also between processes. Methods that read or write raise what the store
    raises."""

    def __init__(self, store: ObjectStore | None) -> None:
        """`store`: where they are kept; None: only in memory."""
        self._log = NumberedLog(store, PREFIX, ".json") if store is not None else None
        self._version: int | None = 0 if store is None else None
        """The newest document that was read; None if none was read yet."""
        self._rules: Mapping[str, PoolRule] = {}
        self._lock = threading.RLock()
        """Held while the store is read or written. Reading an already known rule needs neither."""

    @property
    def lasting(self) -> bool:
        """Whether the rules outlive the process."""
        return self._log is not None

    @property
    def known(self) -> bool:
        """Whether the rules have been read."""
        return self._version is not None

    def of(self, pool: str) -> PoolRule | None:
        """Return the rule that users set for a pool, or None."""
        if not self.known:
            with suppress(ConfigError):  # the caller of `follow` reports it
                self.follow()
        return self._rules.get(pool)

    def paused(self) -> dict[str, PoolRule]:
        """Return the rules of the pools that users have paused, as last read."""
        return {pool: rule for pool, rule in self._rules.items() if rule.paused}

    def follow(self) -> None:
        """Read what other masters have written since; only new documents are fetched. Raises `ConfigError` for an
        unreadable document; then the previous rules apply."""
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
            self._rules = rules  # last: if reading fails halfway, nothing counts as known
            self._version = version
            if damage is not None:
                raise damage

    def set(self, pool: str, rule: PoolRule | None, by: str) -> None:
        """Store the rule of a pool; None removes it. It counts once it is written. Raises `ConfigError` for bounds that
        no size satisfies."""
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
                    continue  # another master was faster: read what it wrote
                self._rules = rules
                self._version = made.version
                return


def _newest_sound(log: NumberedLog) -> Mapping[str, PoolRule]:
    """Return the rules of the newest readable document."""
    for number in reversed(log.numbers()):
        with suppress(ConfigError, NotFound):
            return _parse(log, number).rules
    return {}


def _parse(log: NumberedLog, number: int) -> _Document:
    """Read one document. Raises `NotFound`, and `ConfigError` if it is invalid."""
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
