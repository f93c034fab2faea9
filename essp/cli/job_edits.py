"""Edits values in the text of a job file, and leaves its comments and everything else as it is.

The text is compared with the wanted document, and the first value that differs is edited, until nothing differs. So
values that trainers share by YAML's aliases (`<<: *trainer`) stay what they were for the other trainers: these then get
a value of their own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import yaml

from essp_common.errors import ConfigError
from essp_common.field_paths import joined
from essp_common.job.documents import read_yaml

_MOST_EDITS = 1000


def with_values(text: str, wanted: Mapping[str, Any]) -> str:
    """The text of a YAML mapping, edited so that it is read as `wanted`. Raises `ConfigError` if `wanted` lacks a field
    of it, because the lines that belong to a field are not known."""
    for _ in range(_MOST_EDITS):
        if (path := _first_difference(read_yaml(text, "the job"), wanted)) is None:
            return text
        text = _edited(text, path, wanted)
    raise ConfigError("these values cannot be written into the file; write it without them, and edit it")


def _first_difference(found: Any, wanted: Any, path: tuple[str, ...] = ()) -> tuple[str, ...] | None:
    if not (isinstance(found, Mapping) and isinstance(wanted, Mapping) and found and wanted):
        same = found == wanted and isinstance(found, bool) == isinstance(wanted, bool)
        return None if same else path
    for name in found:
        if name not in wanted:
            raise ConfigError(
                "cannot be left out here; write the file with it, and remove it there",
                field=joined((*path, name)),
                code="unsupported",
            )
    for name, value in wanted.items():
        place = (*path, name)
        if name not in found:
            return place
        if (inner := _first_difference(found[name], value, place)) is not None:
            return inner
    return None


def _edited(text: str, path: tuple[str, ...], wanted: Any) -> str:
    """The text with the wanted value at this path. Where the path leads through an alias or a missing section, that
    section is written out as a whole."""
    node = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    value = wanted
    for depth, name in enumerate(path):
        value = value[name]
        pair = next(((key, inner) for key, inner in node.value if key.value == name), None)
        if pair is None:
            return _inserted(text, node, name, value)
        key, inner = pair
        aliased = inner.start_mark.index < key.end_mark.index or text[_after_colon(text, key) :].startswith("*")
        if depth < len(path) - 1 and isinstance(inner, yaml.MappingNode) and not aliased:
            node = inner
            continue
        begin = _after_colon(text, key)
        end = begin + len(text[begin:].split()[0].rstrip(",}")) if aliased else _end(inner)
        apart = "" if text[begin - 1] == " " else " "
        return text[:begin] + apart + _flow(value) + text[end:]
    raise AssertionError("a path has names")


def _after_colon(text: str, key: yaml.Node) -> int:
    """Where the value of a key begins; an anchor (`&name`) before it is skipped."""
    place = text.index(":", key.end_mark.index) + 1
    while text[place] == " ":
        place += 1
    if text[place] == "&":
        while text[place] not in " \n":
            place += 1
        while text[place] == " ":
            place += 1
    return place


def _inserted(text: str, node: yaml.MappingNode, name: str, value: Any) -> str:
    if node.flow_style:
        place = node.end_mark.index - 1
        return f"{text[:place]}{', ' if node.value else ''}{_flow(name)}: {_flow(value)}{text[place:]}"
    indent = " " * node.value[0][0].start_mark.column
    place = text.find("\n", _end(node))
    place = len(text) if place < 0 else place
    return f"{text[:place]}\n{indent}{_flow(name)}: {_flow(value)}{text[place:]}"


def _end(node: yaml.Node) -> int:
    """Where the text of a node ends. A block's own mark is behind the comments that follow it."""
    if isinstance(node, yaml.CollectionNode) and not node.flow_style and node.value:
        last = node.value[-1]
        key, value = last if isinstance(last, tuple) else (last, last)
        return max(int(key.end_mark.index), _end(value))
    return int(node.end_mark.index)


def _flow(value: Any) -> str:
    """The value in one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=math.inf, sort_keys=False, allow_unicode=True)
    return str(text).removesuffix("\n").removesuffix("\n...")
