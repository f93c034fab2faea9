"""The registry of extractors: all that are installed under the entry-point group `essp.extractors`.

Another package adds a feature with one line of its `pyproject.toml`,

    [project.entry-points."essp.extractors"]
    depth = "our_package.depth:Depth"

and a class with the interface `essp_engine.features.port.Extractor`. `essp_common.plugins` says how they are loaded and
how their parameters are checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from pydantic.fields import FieldInfo

from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_common.plugins import Group
from essp_engine.features.declared import DeclaredFeature
from essp_engine.features.port import ArraySpec, Extractor, Needs
from essp_engine.features.reduced import Reduced, ReducedParams, divided

_EXTRACTORS = Group(
    group="essp.extractors",
    noun="extractor",
    members=("summary", "Params", "frames_needed", "output", "setup", "extract"),
    port="essp_engine.features.port",
)

_INSTEAD = {
    "every": "`frames` are evenly spaced over the clip",
    "short_side": "trainers cut out and resize what they see (augment.crop); clip.resize is the size for all streams",
}
"""Parameters of other features -> what a stream of `rgb` has instead."""


def names() -> list[str]:
    """The names of all installed features, sorted. Some may fail to load."""
    return _EXTRACTORS.names()


def create(name: str, params: Mapping[str, Any]) -> Extractor:
    """An extractor with its parameters, not yet set up.

    Raises `ConfigError` for a feature that is not installed or cannot be loaded, and for parameters that are unknown,
    of the wrong type or out of range.
    """
    kind = extractor_class(name)
    common, own = divided(params)
    if name == "rgb" and common:
        raise ConfigError(
            f"rgb has no parameter {min(common)!r}: {_INSTEAD[min(common)]}",
            field=min(common),
            code="unknown",
        )
    extractor = kind(_EXTRACTORS.checked(name, kind.Params, own))
    reduced = _EXTRACTORS.checked(name, ReducedParams, common)
    return extractor if reduced == ReducedParams() else cast("Extractor", Reduced(extractor, reduced))


def fields_of(name: str) -> dict[str, FieldInfo]:
    """The parameters of a feature: its own, and those that all computed features have."""
    own = extractor_class(name).Params.model_fields
    return own if name == "rgb" else own | ReducedParams.model_fields


def describe(name: str) -> dict[str, Any]:
    """A feature's declaration as plain data: name, summary, parameters with defaults, frames needed."""
    extractor = create(name, {})
    return {
        "name": extractor.name,
        "summary": extractor.summary,
        "params": {param: None if f.is_required() else f.default for param, f in fields_of(name).items()},
        "frames_needed": extractor.frames_needed(),
    }


def output_of(
    feature: str,
    params: Mapping[str, Any],
    clip: ArraySpec,
    declared: Mapping[str, DeclaredFeature] | None = None,
    snippets: int = 1,
) -> ArraySpec:
    """Shape and type of a feature for clips `(T, H, W, 3)`. Raises `ConfigError`, also if the clips are too short.

    `declared`: features whose code is in another image; that image checks their parameters. `snippets`: equal parts of
    the T frames; the feature is computed for each.
    """
    needed, made = _geometry(feature, params, declared)
    frames = clip.shape[0] // snippets
    if frames < needed:
        least, in_each = needed * snippets, "" if snippets == 1 else f" in each of {snippets} snippets"
        raise ConfigError(
            f"{feature} needs clips of {needed} frames{in_each}, clip.frames is {clip.shape[0]}; set it to {least} or "
            "more",
            code="range",
        )
    of_one = made(ArraySpec((frames, *clip.shape[1:]), clip.dtype))
    return ArraySpec((snippets * of_one.shape[0], *of_one.shape[1:]), of_one.dtype)


def frames_of(feature: str, params: Mapping[str, Any], declared: Mapping[str, DeclaredFeature] | None = None) -> int:
    """Frames that a clip needs for a feature. Raises `ConfigError` as `output_of` does."""
    return _geometry(feature, params, declared)[0]


def layout_of(feature: str, declared: Mapping[str, DeclaredFeature] | None = None) -> FeatureLayout:
    """How to interpret the values of a feature. Raises `ConfigError` if it is neither installed nor `declared`."""
    elsewhere = _elsewhere(feature, declared)
    if elsewhere is not None:
        return elsewhere.layout
    layout: FeatureLayout = getattr(extractor_class(feature), "layout", FeatureLayout())
    return layout


def needs_of(feature: str, declared: Mapping[str, DeclaredFeature] | None = None) -> Needs:
    """What a feature is computed from. Raises `ConfigError` if it is neither installed nor `declared`."""
    if _elsewhere(feature, declared) is not None:
        return "colours"
    needs: Needs = getattr(extractor_class(feature), "needs", "colours")
    return needs


def extractor_class(name: str) -> type[Extractor]:
    """The class registered under a name. Raises `ConfigError` if it does not exist or fails to load."""
    return cast("type[Extractor]", _EXTRACTORS.load(name))


def _geometry(
    feature: str, params: Mapping[str, Any], declared: Mapping[str, DeclaredFeature] | None
) -> tuple[int, Callable[[ArraySpec], ArraySpec]]:
    """How many frames a clip needs for a feature, and a function from the clip's shape to the feature's."""
    elsewhere = _elsewhere(feature, declared)
    if elsewhere is None:
        extractor = create(feature, params)
        return extractor.frames_needed(), extractor.output
    reduced = _EXTRACTORS.checked(feature, ReducedParams, divided(params)[0])
    return reduced.frames_needed(elsewhere.frames_needed), lambda clip: elsewhere.output.of(reduced.of(clip))


def _elsewhere(feature: str, declared: Mapping[str, DeclaredFeature] | None) -> DeclaredFeature | None:
    """The declaration of a feature whose code is only in another image."""
    return declared[feature] if declared and feature in declared and feature not in names() else None
