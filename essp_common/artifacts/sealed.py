"""JSON documents that contain their own digest, so that damaged numbers are detected.

The digest (`sha256`) covers all other fields, including unknown ones, independent of order and spacing. Such documents
say which weights and scores belong together; they are not meant to be edited.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, TypeVar

from pydantic import BaseModel

_DIGEST = "sha256"

M = TypeVar("M", bound=BaseModel)


def sealed(document: BaseModel) -> bytes:
    """The document as stored, with its digest."""
    content = json.loads(document.model_dump_json())
    return (json.dumps({**content, _DIGEST: _digest(content)}, indent=1) + "\n").encode()


def unsealed(data: bytes, kind: type[M]) -> M:
    """The inverse of `sealed`. Raises `ValueError`; for wrong fields it is a `ValidationError`."""
    try:
        content = json.loads(data)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(content, dict) or content.pop(_DIGEST, None) != _digest(content):
        raise ValueError(f"its {_DIGEST} does not match the rest, so it is damaged, or was changed by hand")
    return kind.model_validate_json(json.dumps(content))


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
