"""What Hugging Face's `datasets` says about the columns of a table, in the metadata of its schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

_KEY = b"huggingface"


def class_names(schema: Any) -> Mapping[str, tuple[str, ...]]:
    """Column -> the names of its class labels, which the rows have as numbers. `schema`: of pyarrow."""
    found = {}
    for column, feature in _features(schema).items():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else feature
        inner = inner[0] if isinstance(inner, list) and inner else inner
        names = inner.get("names") if isinstance(inner, dict) and inner.get("_type") == "ClassLabel" else None
        if isinstance(names, list):
            found[column] = tuple(map(str, names))
    return found


def video_columns(schema: Any) -> tuple[str, ...]:
    """The columns that are declared as videos."""
    return tuple(
        column
        for column, feature in _features(schema).items()
        if isinstance(feature, dict) and feature.get("_type") == "Video"
    )


def holds_bytes(kind: Any) -> bool:
    """Whether values of this type of pyarrow are bytes, or have bytes in them, such as videos and pictures."""
    if pa.types.is_struct(kind):
        return any(holds_bytes(field.type) for field in kind)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return holds_bytes(kind.value_type)
    return _is_binary(kind)


def byte_columns(schema: Any) -> Mapping[str, str]:
    """The columns that hold files, as bytes or as `{bytes, path}` -> the path of the bytes in the file's columns."""
    found = {}
    for field in schema:
        inner = {each.name: each.type for each in field.type} if pa.types.is_struct(field.type) else {}
        if _is_binary(field.type):
            found[field.name] = field.name
        elif _is_binary(inner.get("bytes", pa.null())):
            found[field.name] = f"{field.name}.bytes"
    return found


def _is_binary(kind: Any) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _features(schema: Any) -> Mapping[str, Any]:
    try:
        said = json.loads((schema.metadata or {}).get(_KEY, b"{}"))
        features = said["info"]["features"]
    except (ValueError, KeyError, TypeError):
        return {}
    return features if isinstance(features, dict) else {}
