"""The open registry of extractors: whatever is installed under the entry-point group `essp.extractors`.

Another package adds a feature with one line of its `pyproject.toml`,

    [project.entry-points."essp.extractors"]
    depth = "our_package.depth:Depth"

and a class that follows `essp_common.features.port.Extractor`. Nothing is imported until a feature is created, so
an extractor that fails to import is an error of that one alone, which says whose it is.

Parameters are checked here against the annotations of the class's `__init__` (`Literal`, `Annotated` with pydantic
constraints), so that extractors need no code for it: `ConfigError` names the parameter and those that exist.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast, get_type_hints

from pydantic import TypeAdapter, ValidationError

from essp_common.errors import ConfigError
from essp_common.features.declared import DeclaredFeature
from essp_common.features.port import ArraySpec, Extractor
from essp_common.validation import requirement

GROUP = "essp.extractors"


def names() -> list[str]:
    """Every feature that is installed, whether or not it can be loaded, sorted."""
    return sorted({entry.name for entry in entry_points(group=GROUP)})


def create(name: str, params: Mapping[str, Any]) -> Extractor:
    """An extractor with its parameters, not yet set up.

    Raises `ConfigError` for a feature that is not installed or cannot be loaded, and for parameters that are unknown,
    of the wrong type or out of range.
    """
    factory = extractor_class(name)
    return factory(**_checked(name, factory, params))


def output_of(
    feature: str, params: Mapping[str, Any], clip: ArraySpec, declared: Mapping[str, DeclaredFeature] | None = None
) -> ArraySpec:
    """What a feature makes of clips of this shape `(T, H, W, 3)`. Raises `ConfigError`, also for clips too short.

    `declared`: features whose code is not here; their parameters are checked where it is.
    """
    made: Callable[[ArraySpec], ArraySpec]
    if declared and feature in declared and feature not in names():
        needed, made = declared[feature].frames_needed, declared[feature].output.of
    else:
        extractor = create(feature, params)
        needed, made = extractor.frames_needed(), extractor.output
    frames = clip.shape[0]
    if frames < needed:
        raise ConfigError(
            f"{feature} needs clips of {needed} frames, clip.frames is {frames}; set it to {needed} or more"
        )
    return made(clip)


def extractor_class(name: str) -> type[Extractor]:
    """The class that is registered under a name. Raises `ConfigError`."""
    entry = _entry(name)
    try:
        found = entry.load()
    except Exception as error:  # a foreign package may fail in any way
        raise ConfigError(
            f"extractor {name!r} of {_package(entry)} cannot be loaded ({entry.value}): {type(error).__name__}: {error}"
        ) from error
    missing = [a for a in ("summary", "frames_needed", "output", "setup", "extract") if not hasattr(found, a)]
    if not isinstance(found, type) or missing:
        lacks = f"lacks {', '.join(missing)}" if missing else "is not a class"
        raise ConfigError(
            f"extractor {name!r} of {_package(entry)} ({entry.value}) {lacks}; see essp_common.features.port"
        )
    return cast("type[Extractor]", found)


def _entry(name: str) -> EntryPoint:
    found = list(entry_points(group=GROUP, name=name))
    if not found:
        raise ConfigError(f"no extractor {name!r} is installed; there are: {', '.join(names()) or 'none'}")
    if len({entry.value for entry in found}) > 1:
        claims = ", ".join(f"{_package(entry)} ({entry.value})" for entry in found)
        raise ConfigError(f"more than one package calls its extractor {name!r}: {claims}; uninstall all but one")
    return found[0]


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name!r}" if entry.dist is not None else "an unnamed package"


def _checked(name: str, factory: type[Extractor], params: Mapping[str, Any]) -> dict[str, Any]:
    signature = inspect.signature(factory).parameters
    named = {key: p for key, p in signature.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    valid = ", ".join(named) or "none"
    open_ended = any(p.kind is p.VAR_KEYWORD for p in signature.values())
    for key in params:
        if key not in named and not open_ended:
            raise ConfigError(f"{name} has no parameter {key!r}; its parameters are: {valid}")
    for key, parameter in named.items():
        if parameter.default is parameter.empty and key not in params:
            raise ConfigError(f"{name} needs the parameter {key!r}; its parameters are: {valid}")
    hints = get_type_hints(factory.__init__, include_extras=True)
    return {key: _validated(name, key, value, hints.get(key, Any)) for key, value in params.items()}


def _validated(name: str, key: str, value: Any, hint: Any) -> Any:
    try:
        return TypeAdapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        needed = requirement(error.errors()[0])
        raise ConfigError(
            f"{name}: parameter {key} = {value!r}: {needed}; see `essp extractor describe {name}`"
        ) from error
