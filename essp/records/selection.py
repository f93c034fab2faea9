"""Selects records of a version by their keys and labels."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from essp_common.errors import ConfigError
from essp_common.records.reader import RecordReader

NO_LABEL = "(none)"
"""The name for records without a label."""
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")


def keys_of(text: str) -> range:
    """Parse `17` or `0-99`, both ends included. Raises `ConfigError`."""
    found = _RANGE.fullmatch(text.strip())
    first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
    if first > last:
        raise ConfigError(f"{text!r}: write a key or a range, as in 17 or 0-99", field="--keys", code="type")
    return range(first, last + 1)


def selected(reader: RecordReader, keys: Sequence[range], labels: Sequence[str]) -> list[range]:
    """The keys of all records that are in one of the ranges and have one of the labels; an empty sequence means any.

    Raises `ConfigError` for unknown keys and labels. Records that cannot be read are found by their keys.
    """
    version = reader.version
    for one in keys:
        if one.stop > version.next_key:
            raise ConfigError(f"{one.stop - 1} is not among 0 to {version.next_key - 1}", field="--keys", code="range")
    chosen = np.zeros(version.next_key, np.bool_)
    for one in keys or [range(version.next_key)]:
        chosen[one.start : one.stop] = True
    if labels:
        wanted = [_position(reader.classes, label) for label in labels]
        labelled = np.zeros_like(chosen)
        labelled[reader.table["key"][np.isin(reader.table["label"], wanted)].astype(np.int64)] = True
        chosen &= labelled
    for first, end in version.deleted:
        chosen[first:end] = False
    edges = np.flatnonzero(np.diff(chosen, prepend=False, append=False)).tolist()
    return [range(first, end) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def _position(classes: Sequence[str], label: str) -> int:
    if label in classes:
        return classes.index(label)
    if label == NO_LABEL:
        return -1
    some = ", ".join(classes[:5]) + (", ..." if len(classes) > 5 else "")
    raise ConfigError(
        f"{label!r}: there is no such class; the {len(classes)} are: {some}", field="--label", code="unknown"
    )
