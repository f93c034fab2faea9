"""What a `ConfigError` refuses, as data: which fields, and what is wrong with each."""

from __future__ import annotations

from essp_common.errors import ConfigCode, ConfigError


def refused(error: ConfigError) -> list[tuple[str, ConfigCode]]:
    """Field and code of each problem, in the order in which users read them."""
    return [(each.field, each.code) for each in error.parts or (error,)]
