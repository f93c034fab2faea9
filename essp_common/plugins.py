"""What packages register under an entry-point group: classes, such as features (`essp.extractors`), networks, losses.

If a job names code by its path (`our_package.nets:TINY`), no registration is needed, but the package must be one that
the owner of the machine allows.

Another package registers its own with one line in its `pyproject.toml`. It is imported only when used. If the import
fails, the others still work, and the error names the package. Parameters are validated against the class's `Params`, so
the classes need no code for that; the `ConfigError` names the wrong parameter and the valid ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from essp_common.errors import ConfigError
from essp_common.validation import code_of, requirement, suggested

P = TypeVar("P", bound=BaseModel)


@dataclass(frozen=True)
class Group:
    """What is registered under one entry-point group."""

    group: str
    noun: str
    """The word for one of them in messages; for classes also their command: `essp NOUN describe`."""
    members: tuple[str, ...]
    """Attributes that each must have."""
    port: str
    """The module or documentation page that defines the interface."""
    kind: str = "class"
    """`class`; or `function`: anything callable; or `object`: anything with the attributes in `members`."""
    own: Mapping[str, str] = field(default_factory=dict)
    """Name -> `module:Class` of the built-in ones, available even without installed metadata."""

    def names(self) -> list[str]:
        """All names, sorted. Some may fail to load."""
        return sorted({*self.own, *(entry.name for entry in _installed(self.group))})

    def load(self, name: str, code: Sequence[str] = ()) -> Any:
        """The object registered under this name, or found at this path in one of the packages of `code`.

        Raises `ConfigError` if it does not exist or fails to load.
        """
        entry = EntryPoint(self.allowed(name, code), name, self.group) if is_path(name) else self._entry(name)
        try:
            found = entry.load()
        except Exception as error:  # code of another package may raise any error
            if is_path(name):
                raise ConfigError(
                    f"{self.noun} {name!r} cannot be loaded: {type(error).__name__}: {error}; its package must be "
                    "installed, or be on PYTHONPATH, wherever trainers and predictors run",
                    code="unreadable",
                ) from error
            raise ConfigError(
                f"{self.noun} {name!r} of {_package(entry)} cannot be loaded ({entry.value}): "
                f"{type(error).__name__}: {error}",
                code="unreadable",
            ) from error
        missing = [a for a in self.members if not hasattr(found, a)]
        if missing or not self._is_one(found):
            lacks = f"lacks {', '.join(missing)}" if missing else f"is not a {self.kind}"
            raise ConfigError(
                f"{self.noun} {name!r} of {_package(entry)} ({entry.value}) {lacks}; see {self.port}",
                code="unsupported",
            )
        return found

    def allowed(self, path: str, code: Sequence[str]) -> str:
        """Return a path, `package.module:NAME`. Raises `ConfigError` if it is not in one of the packages or modules of
        `code`. Imports nothing."""
        module = path.partition(":")[0]
        if not any(f"{module}.".startswith(f"{package}.") for package in code):
            allows = f"allows {', '.join(code)} alone" if code else "allows none"
            package = module.partition(".")[0]
            raise ConfigError(
                f"{self.noun} {path!r} is code of a package that is not allowed here: ESSP_CODE {allows}. If you trust "
                f"it, set ESSP_CODE='[\"{package}\"]' wherever master, trainers and predictors run, or have the "
                f"package register the {self.noun} under {self.group}",
                code="refused",
            )
        return path

    def checked(self, name: str, kind: type[P], params: Mapping[str, Any]) -> P:
        """The validated parameters of a class. Raises `ConfigError` for unknown ones, wrong types and values out of
        range."""
        try:
            return kind.model_validate(params)
        except ValidationError as error:
            raise self._problem(name, kind, error.errors()[0]) from error

    def _is_one(self, found: Any) -> bool:
        if self.kind == "class":
            return isinstance(found, type)
        return self.kind == "object" or callable(found)

    def _entry(self, name: str) -> EntryPoint:
        found = list(_installed(self.group).select(name=name))
        if name in self.own:
            found.append(EntryPoint(name, self.own[name], self.group))
        if not found:
            raise ConfigError(f"no {self.noun} {name!r} is installed; {suggested(name, self.names())}", code="unknown")
        if len({entry.value for entry in found}) > 1:
            claims = ", ".join(f"{_package(entry)} ({entry.value})" for entry in found)
            raise ConfigError(
                f"several packages register the {self.noun} {name!r}: {claims}; uninstall all but one", code="conflict"
            )
        return found[0]

    def _problem(self, name: str, kind: type[BaseModel], found: ErrorDetails) -> ConfigError:
        parameter = ".".join(map(str, found["loc"]))
        valid = suggested(parameter, kind.model_fields, "its parameters are: ")
        if found["type"] == "extra_forbidden":
            return ConfigError(f"{name} has no parameter {parameter!r}; {valid}", field=parameter, code="unknown")
        if found["type"] == "missing":
            needed = f"{name} needs the parameter {parameter!r}; its parameters are: {', '.join(kind.model_fields)}"
            return ConfigError(needed, field=parameter, code="missing")
        needed = requirement(found)
        if not parameter:
            return ConfigError(f"{name}: {needed}")
        return ConfigError(
            f"{needed}, got {found['input']!r}; see `essp {self.noun} describe {name}`",
            field=parameter,
            code=code_of(found["type"]),
        )


def is_path(name: str) -> bool:
    """Whether a name is the path of an object in a package, not a registered name."""
    return ":" in name


def _installed(group: str) -> EntryPoints:
    """All entries of the group, read again only after a package was installed or removed."""
    changed_ns = []
    for folder in sys.path:
        with suppress(OSError):
            changed_ns.append(os.stat(folder or ".").st_mtime_ns)
    return _installed_at(group, tuple(sys.path), tuple(changed_ns))


@lru_cache(maxsize=4)
def _installed_at(group: str, path: tuple[str, ...], changed_ns: tuple[int, ...]) -> EntryPoints:
    """Cached, because `entry_points` reads the metadata of every installed package, which takes tens of
    milliseconds."""
    return entry_points(group=group)


def _package(entry: EntryPoint) -> str:
    if entry.dist is not None:
        return f"package {entry.dist.name!r}"
    return "ESSP" if entry.value.startswith("essp_engine.") else "an unnamed package"
