"""Paging of lists. A page token names the last item of a page, so items added in the meantime shift nothing."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Sequence
from typing import TypeVar

from essp_common.errors import ConfigError

PAGE_SIZE = 50
PAGE_SIZE_MOST = 500
ItemT = TypeVar("ItemT")
Key = tuple[str, str]


def page(items: Sequence[ItemT], key: Callable[[ItemT], Key], size: int, token: str) -> tuple[list[ItemT], str | None]:
    """Return up to `size` items in descending order of `key` after the one that `token` names, and the token of the
    next page. Raises `ConfigError` for a token that this API did not issue.
    """
    ordered = sorted(items, key=key, reverse=True)
    if token:
        last = _read(token)
        ordered = [item for item in ordered if key(item) < last]
    taken = ordered[:size]
    return taken, _write(key(taken[-1])) if len(ordered) > size else None


def _write(key: Key) -> str:
    return base64.urlsafe_b64encode(json.dumps(key).encode()).decode()


def _read(token: str) -> Key:
    try:
        first, second = json.loads(base64.urlsafe_b64decode(token.encode()))
        if isinstance(first, str) and isinstance(second, str):
            return first, second
    except (ValueError, TypeError, binascii.Error):
        pass
    raise ConfigError("is not one that this API gave; leave it out to begin again", field="page_token")
