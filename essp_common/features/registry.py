"""The registry of extractors: all that are installed under the entry-point group `essp.extractors`.

Another package adds a feature with one line of its `pyproject.toml`,

    [project.entry-points."essp.extractors"]
    depth = "our_package.depth:Depth"

and a class with the interface `essp_common.features.port.Extractor`. An extractor is imported only when it is created.
If the import fails, the other extractors still work, and the error names the package.

The registry checks parameters against the class's `Params`, so extractors need no code for it. The `ConfigError` names
the wrong parameter and the existing ones.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints, entry_points
from typing import Any, cast

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from essp_common.errors import ConfigError
from essp_common.features.declared import DeclaredFeature
from essp_common.features.port import ArraySpec, Extractor, FeatureParams, Needs
from essp_common.job.feature_layout import FeatureLayout
from essp_common.validation import requirement, suggested

GROUP = "essp.extractors"
_MEMBERS = ("summary", "Params", "frames_needed", "output", "setup", "extract")


def names() -> list[str]:
    """The names of all installed features, sorted. Some may fail to load."""
    return sorted({entry.name for entry in _installed()})


def create(name: str, params: Mapping[str, Any]) -> Extractor:
    """An extractor with its parameters, not yet set up.

    Raises `ConfigError` for a feature that is not installed or cannot be loaded, and for parameters that are unknown,
    of the wrong type or out of range.
    """
    kind = extractor_class(name)
    return kind(_checked(name, kind.Params, params))


def output_of(
    feature: str, params: Mapping[str, Any], clip: ArraySpec, declared: Mapping[str, DeclaredFeature] | None = None
) -> ArraySpec:
    """Shape and type of a feature for clips `(T, H, W, 3)`. Raises `ConfigError`, also if these are too short.

    `declared`: features whose code is in another image; that image checks their parameters.
    """
    made: Callable[[ArraySpec], ArraySpec]
    elsewhere = _elsewhere(feature, declared)
    if elsewhere is not None:
        needed, made = elsewhere.frames_needed, elsewhere.output.of
    else:
        extractor = create(feature, params)
        needed, made = extractor.frames_needed(), extractor.output
    frames = clip.shape[0]
    if frames < needed:
        raise ConfigError(
            f"{feature} needs clips of {needed} frames, clip.frames is {frames}; set it to {needed} or more"
        )
    return made(clip)


def frames_of(feature: str, params: Mapping[str, Any], declared: Mapping[str, DeclaredFeature] | None = None) -> int:
    """Frames that a clip needs for a feature. Raises `ConfigError` as `output_of` does."""
    elsewhere = _elsewhere(feature, declared)
    return create(feature, params).frames_needed() if elsewhere is None else elsewhere.frames_needed


def layout_of(feature: str, declared: Mapping[str, DeclaredFeature] | None = None) -> FeatureLayout:
    """How to read the values of a feature. Raises `ConfigError` for one that is neither installed nor `declared`."""
    elsewhere = _elsewhere(feature, declared)
    if elsewhere is not None:
        return elsewhere.layout
    layout: FeatureLayout = getattr(extractor_class(feature), "layout", FeatureLayout())
    return layout


def needs_of(feature: str, declared: Mapping[str, DeclaredFeature] | None = None) -> Needs:
    """What a feature is computed from. Raises `ConfigError` for one that is neither installed nor `declared`."""
    if _elsewhere(feature, declared) is not None:
        return "colours"
    needs: Needs = getattr(extractor_class(feature), "needs", "colours")
    return needs


def extractor_class(name: str) -> type[Extractor]:
    """The class that is registered under a name. Raises `ConfigError` if there is none or it does not load."""
    entry = _entry(name)
    try:
        found = entry.load()
    except Exception as error:  # code of another package may raise any error
        raise ConfigError(
            f"extractor {name!r} of {_package(entry)} cannot be loaded ({entry.value}): {type(error).__name__}: {error}"
        ) from error
    missing = [a for a in _MEMBERS if not hasattr(found, a)]
    if not isinstance(found, type) or missing:
        lacks = f"lacks {', '.join(missing)}" if missing else "is not a class"
        raise ConfigError(
            f"extractor {name!r} of {_package(entry)} ({entry.value}) {lacks}; see essp_common.features.port"
        )
    return cast("type[Extractor]", found)


def _elsewhere(feature: str, declared: Mapping[str, DeclaredFeature] | None) -> DeclaredFeature | None:
    """The declaration of a feature whose code is only in another image."""
    return declared[feature] if declared and feature in declared and feature not in names() else None


def _installed() -> EntryPoints:
    """All entries of the group, read again only after a package was installed or removed."""
    changed_ns = []
    for folder in sys.path:
        with suppress(OSError):
            changed_ns.append(os.stat(folder or ".").st_mtime_ns)
    return _installed_at(tuple(sys.path), tuple(changed_ns))


@lru_cache(maxsize=1)
def _installed_at(path: tuple[str, ...], changed_ns: tuple[int, ...]) -> EntryPoints:
    """`entry_points` reads the metadata of every installed package, which takes tens of milliseconds."""
    return entry_points(group=GROUP)


def _entry(name: str) -> EntryPoint:
    found = list(_installed().select(name=name))
    if not found:
        raise ConfigError(f"no extractor {name!r} is installed; {suggested(name, names())}")
    if len({entry.value for entry in found}) > 1:
        claims = ", ".join(f"{_package(entry)} ({entry.value})" for entry in found)
        raise ConfigError(f"several packages register an extractor {name!r}: {claims}; uninstall all but one")
    return found[0]


def _package(entry: EntryPoint) -> str:
    return f"package {entry.dist.name!r}" if entry.dist is not None else "an unnamed package"


def _checked(name: str, kind: type[FeatureParams], params: Mapping[str, Any]) -> FeatureParams:
    try:
        return kind.model_validate(params)
    except ValidationError as error:
        raise ConfigError(_problem(name, kind, error.errors()[0])) from error


def _problem(name: str, kind: type[FeatureParams], found: ErrorDetails) -> str:
    parameter = ".".join(map(str, found["loc"]))
    valid = suggested(parameter, kind.model_fields, "its parameters are: ")
    if found["type"] == "extra_forbidden":
        return f"{name} has no parameter {parameter!r}; {valid}"
    if found["type"] == "missing":
        return f"{name} needs the parameter {parameter!r}; its parameters are: {', '.join(kind.model_fields)}"
    needed = requirement(found)
    if not parameter:
        return f"{name}: {needed}"
    return f"{name}: parameter {parameter} = {found['input']!r}: {needed}; see `essp extractor describe {name}`"
