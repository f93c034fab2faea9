"""Several views of one event in a loader: their clips and transforms by name, and their frames in a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from essp.api.arguments import Transform, function_of, plain
from essp.api.loader_arguments import CLIP_NAMES, Clip, checked_group
from essp_common.catalog.rows import Rows
from essp_common.catalog.view import CatalogView
from essp_common.errors import ConfigError
from essp_common.field_names import Names
from essp_common.job.clip_spec import ClipSpec
from essp_common.validation import shown, suggested
from essp_engine.planning.moments import Moments

Clips = Clip | Mapping[str, Clip]
"""The clip of the only view, or of each view by its name."""
Transforms = Transform | Mapping[str, Transform]
"""The transform of each view, or one for all of them."""

_OF_THE_FIRST = ("part", "snippets")
_WHOLE = ("spread", "max_frames")
_RATES = ("fps", "every_s", "seconds")


def section_of(clip: Clips) -> dict[str, Any]:
    """The `clip` of a job. Raises `ConfigError`."""
    if not isinstance(clip, Mapping):
        checked_group("clip", clip, Clip)
        return clip._job_section()
    if not clip:
        raise ConfigError(
            "is empty; give the clip of each view, as in clip={'top': essp.Clip(...)}", field="clip", code="missing"
        )
    for name, own in clip.items():
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{shown(name)} is not the name of a view", field="clip", code="type")
        checked_group(f"clip.{name}", own, Clip)
        if whole := next((field for field in _WHOLE if getattr(own, field) is not None), None):
            raise ConfigError(
                "clips of several views have a rate or a stride; leave it out",
                field=f"clip.{name}.{whole}",
                code="conflict",
            )
    first, *further = clip
    section = clip[first]._job_section()
    views: dict[str, Any] = {first: {}}
    for name in further:
        section_of_view = clip[name]._job_section()
        for field in _OF_THE_FIRST:
            if plain(section_of_view.pop(field)) != plain(getattr(Clip(), field)):
                raise ConfigError(
                    f"only the first view, {first}, has it, because all views show the same moments; leave it out",
                    field=f"clip.{name}.{field}",
                    code="conflict",
                )
        if clip[name].stride == 1 and section_of_view.keys() & set(_RATES):
            del section_of_view["stride"]
        views[name] = section_of_view
    if clip[first].snippets != 1:
        raise ConfigError(
            "clips of several views are one piece; use 1", field=f"clip.{first}.snippets", code="conflict"
        )
    return {**section, "views": views}


def names_of(clip: Clips) -> Names:
    """What a loader calls the fields of the clips of its job."""
    if not isinstance(clip, Mapping):
        return {"clip.views": "clip"}
    own = {name.removeprefix("clip."): argument.removeprefix("clip.") for name, argument in CLIP_NAMES.items()}
    places = {view: f"clip.{view}" for view in clip}
    return {
        "clip.views": "clip",
        **{f"clip.views.{view}": place for view, place in places.items()},
        **{f"clip.views.{view}.{name}": f"{place}.{own[name]}" for view, place in places.items() for name in own},
    }


def transforms_of(transform: Transforms | None, views: Sequence[str]) -> tuple[Transform | None, ...]:
    """The transform of each view (of the only one, if it has no name). Raises `ConfigError`."""
    if not isinstance(transform, Mapping):
        return (function_of("transform", transform),) * max(1, len(views))
    for name in transform:
        if name not in views:
            known = (
                suggested(str(name), views, "views: ") if views else "the loader has one clip for all; give a function"
            )
            raise ConfigError(f"there is no view {name!r}; {known}", field="transform", code="unknown")
    return tuple(function_of(f"transform.{name}", transform.get(name)) for name in views)


class Shots:
    """The frame numbers of each view of a clip."""

    def __init__(self, view: CatalogView, clip: ClipSpec) -> None:
        self._first, *self._others = clip.views
        self._rows = view.rows
        self._further: dict[str, Rows] = {name: view.further[name] for name in self._others}
        self._steps = range(0, clip.frames * clip.stride, clip.stride)
        self._timed = view.timed(clip) if clip.by_time else None
        self._moments = Moments(view, clip)

    def frame_numbers(self, video: int, first_frame: int) -> dict[str, list[int]]:
        """View -> the numbers of its frames in its file, for a clip of a video of the split."""
        last = self._rows.number("last_frame", video)
        steps = self._steps if self._timed is None else self._timed.offsets(video, first_frame)
        numbers = {self._first: [min(first_frame + step, last) for step in steps]}
        return numbers | dict(zip(self._others, self._moments.frames(video, first_frame), strict=True))

    def uris(self, video: int) -> dict[str, str]:
        """View -> the URI of its file."""
        further = {name: rows.text("uri", video) for name, rows in self._further.items()}
        return {self._first: self._rows.text("uri", video)} | further
