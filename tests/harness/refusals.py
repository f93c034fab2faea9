"""What a `ConfigError` refuses, as data: which fields, and what is wrong with each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from essp_common.errors import ConfigCode, ConfigError


def refused(error: ConfigError) -> list[tuple[str, ConfigCode]]:
    """Field and code of each problem, in the order in which users read them."""
    return [(each.field, each.code) for each in error.parts or (error,)]


@contextmanager
def refusing(field: str, code: ConfigCode, match: str | None = None) -> Iterator[None]:
    """The block raises a `ConfigError` of this field with this code."""
    with pytest.raises(ConfigError, match=match) as caught:
        yield
    assert refused(caught.value) == [(field, code)]
