"""Lists in JSON: Something-Something, ActivityNet, and data sets in their formats.

Something-Something   [{"id": "7", "template": "Holding [something]", "label": ...}], a file a split
ActivityNet           {"database": {ID: {"subset": "training", "annotations": [{"segment": [s, e], "label": ...}]}}}
                      (also HACS and THUMOS14 in this format)

Raises `ConfigError` for JSON in any other format.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isfinite
from pathlib import PurePosixPath
from typing import Any

import numpy as np

from essp.catalog.entry import Entry, Segment
from essp.catalog.found import Found, few
from essp.catalog.layout import Layout
from essp_common.catalog.split_names import SPLIT_NAMES, canonical_split
from essp_common.errors import ConfigError

_WORDS = re.compile(r"[a-z]+")
_OF_A_LIST = re.compile(r"(?<=.)((data)?(list|set|split)|data)s?$")
"""What may follow the split in a word such as `testlist`."""
_SOMETHING = re.compile(r"(something-something|sth).*\.json|(train|validation|test)\.json")
_LARGEST_GUESS = 256 * 2**20
"""The largest JSON file, in bytes, that is read to see whether it is a list."""


def split_named(name: str) -> str:
    """The split in a file name such as `kinetics_val_list.txt` or `testlist.txt`; empty: there is no split in it."""
    words = [_OF_A_LIST.sub("", word) for word in _WORDS.findall(PurePosixPath(name).stem.lower())]
    splits = [canonical_split(word) if word in SPLIT_NAMES else "" for word in words]
    if ("train", "validation") in pairwise(splits) and "test" not in splits:  # for `train_val`, as in `canonical_split`
        return "train"
    return next((split for split in reversed(splits) if split), "")


# --- Something-Something ---


def is_something(found: Found) -> str:
    lists = _something_lists(found)
    return f"{few(lists)}: JSON lists of id and template" if lists else ""


def something(found: Found) -> Iterator[Entry]:
    """A class is a template without its brackets. The sentence and the words in the brackets are in the metadata."""
    lists = _something_lists(found)
    if not lists:
        raise ConfigError(f"{found.uri}: there is no JSON list of objects with `id` and `template` or `label`")
    for key in lists:
        split = split_named(key) or "train"
        for number, row in enumerate(found.json(key), 1):
            if not isinstance(row, dict) or "id" not in row:
                raise ConfigError(f"{found.store.uri(key)}: entry {number} has no `id`")
            name, label = name_in(row["id"]), name_in(row.get("template", row.get("label")))
            if not name:
                raise ConfigError(f"{found.store.uri(key)}: the `id` of entry {number} is neither text nor a number")
            class_name = label.replace("[", "").replace("]", "")
            info = found.called(name)
            if info is None:
                yield found.missing(name, key, class_name, split, [name])
                continue
            meta = {"sentence" if k == "label" else k: v for k, v in row.items() if k not in ("id", "template")}
            given = row.get("template", row.get("label"))
            lacks = "" if class_name else f"{key} has no template for it"
            error = None if given is None or isinstance(given, str) or not lacks else f"unlabelled: {lacks}"
            yield found.entry(info, class_name, split, meta=meta, unlabelled=lacks, error=error)


def name_in(value: Any) -> str:
    """A name that is text or a whole number; empty for anything else."""
    return str(value).strip() if isinstance(value, str | int) and not isinstance(value, bool) else ""


def _something_lists(found: Found) -> list[str]:
    keys = found.with_suffix(".json")
    if not found.given:
        keys = [key for key in keys if _SOMETHING.fullmatch(PurePosixPath(key).name.lower())]
    return [key for key in keys if _is_list_of_ids(_json_or_none(found, key))]


def _is_list_of_ids(document: Any) -> bool:
    first = document[0] if isinstance(document, list) and document else None
    return isinstance(first, dict) and "id" in first and not ("path" in first or "file" in first)


# --- ActivityNet ---


def is_activitynet(found: Found) -> str:
    lists = _databases(found)
    return f"{few(lists)}: JSON with a `database` of videos and their segments" if lists else ""


def activitynet(found: Found) -> Iterator[Entry]:
    """A row for each segment. Its spans are all segments that overlap it, so that each frame has all its labels."""
    lists = _databases(found)
    if not lists:
        raise ConfigError(f"{found.uri}: there is no JSON file with a `database` of videos and their annotations")
    for key in lists:
        for name, video in found.json(key)["database"].items():
            if not isinstance(video, dict):
                raise ConfigError(f"{found.store.uri(key)}: the value of {name} is not an object")
            yield from _video(found, key, name, video)


def _video(found: Found, key: str, name: str, video: Mapping[str, Any]) -> Iterator[Entry]:
    subset = name_in(video.get("subset", "train"))
    split, called = canonical_split(subset), (f"v_{name}", name)
    info = found.called(*called)
    if info is None:
        yield found.missing(name, key, "", split, called)
        return
    meta = {k: v for k, v in video.items() if k not in ("annotations", "subset")}
    annotations = video.get("annotations") or []
    error = None
    if not subset:
        error = f"split: `subset` in {key} is not a name"
    elif not isinstance(annotations, list):
        error = f"segment: `annotations` in {key} is not a list"
    if error is not None:
        yield found.entry(info, "", split, meta=meta, error=error)
        return
    if not annotations:
        yield found.entry(info, "", split, meta=meta, unlabelled=f"{key} has no annotation for it")
        return
    spans = []
    for place, annotation in enumerate(annotations, 1):
        try:
            spans.append((annotation, *_span(annotation)))
        except ValueError as wrong:
            label = name_in(annotation.get("label")) if isinstance(annotation, dict) else ""
            entry = found.entry(info, label, split, meta=meta, error=f"segment: annotation {place} in {key}: {wrong}")
            yield replace(entry, id=f"{entry.id}#annotation {place}")
    near = _Near([(segment, label) for _, segment, label in spans])
    seen: set[tuple[Segment, str]] = set()
    segments: set[Segment] = set()
    for annotation, segment, label in spans:
        more = {k: v for k, v in annotation.items() if k not in ("segment", "label")}
        entry = found.entry(info, label, split, segment=segment, spans=near.of(segment), meta={**meta, **more})
        # Each has a separate id, even if several actions happen at the same time.
        own = f"{entry.id}#{segment}:{label}" if segment in segments else f"{entry.id}#{segment}"
        twice = "doubled: the list has it more than once" if (segment, label) in seen else None
        yield replace(entry, id=own, error=twice)
        seen.add((segment, label))
        segments.add(segment)


def _span(annotation: Any) -> tuple[Segment, str]:
    """The segment and label of an annotation. Raises `ValueError`."""
    try:
        start, end = map(_seconds, _list_in(annotation["segment"]))
        label = name_in(annotation["label"])
    except (KeyError, TypeError, ValueError, OverflowError):
        label = ""
    if not label:
        raise ValueError("`segment` is not a pair of numbers, or `label` is not a name")
    if not (0 <= start < end and isfinite(end)):
        raise ValueError(f"{start:g} to {end:g} contains no frame")
    return Segment(start, end, "s"), label


def _list_in(value: Any) -> list[Any]:
    """Raises `ValueError` if the value is not a list: text can be indexed, too."""
    if not isinstance(value, list):
        raise ValueError(f"{value!r} is not a list")
    return value


def _seconds(value: Any) -> float:
    """Raises `ValueError` if the value is not a number. A number that is written as text is accepted."""
    if not isinstance(value, int | float | str) or isinstance(value, bool):
        raise ValueError(f"{value!r} is not a number")
    return float(value)


class _Near:
    """The spans of a video, searchable by overlap."""

    def __init__(self, spans: Sequence[tuple[Segment, str]]) -> None:
        self._spans = spans
        self._starts = np.array([segment.start for segment, _ in spans])
        self._ends = np.array([segment.end for segment, _ in spans], np.float64)

    def of(self, segment: Segment) -> tuple[tuple[Segment, str], ...]:
        """The spans that overlap a segment, itself included, in the order of the list."""
        overlap = (self._starts < (segment.end or 0.0)) & (self._ends > segment.start)
        return tuple(self._spans[place] for place in np.flatnonzero(overlap).tolist())


def _databases(found: Found) -> list[str]:
    keys = found.with_suffix(".json")
    return [key for key in keys if _has_database(_json_or_none(found, key))]


def _has_database(document: Any) -> bool:
    return isinstance(document, dict) and isinstance(document.get("database"), dict)


def _json_or_none(found: Found, key: str) -> Any:
    """The content of a JSON file; None if it is not JSON or too large to read."""
    if found.store.head(key).size_bytes > _LARGEST_GUESS:
        return None
    try:
        return found.json(key)
    except ConfigError:
        if found.given:
            raise
        return None


SOMETHING = Layout("something", "JSON lists of id and template", is_something, something)
ACTIVITYNET = Layout("activitynet", "JSON with a `database` of videos and their segments", is_activitynet, activitynet)
