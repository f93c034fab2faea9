"""Options that are a number of bytes."""

from __future__ import annotations

from essp_common.errors import ConfigError
from essp_common.quantities import parse_bytes, size


def bytes_between(text: str, option: str, least: int, most: int) -> int:
    """`256MiB` as a number of bytes. Raises `ConfigError` for anything else, and outside these limits."""
    try:
        found = parse_bytes(text)
    except ValueError as error:
        raise ConfigError(str(error), field=option, code="type") from error
    if not isinstance(found, int) or not least <= found <= most:
        raise ConfigError(f"must be between {size(least)} and {size(most)}, got {text}", field=option, code="range")
    return found
