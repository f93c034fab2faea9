"""Asserts which field an error of settings names, and with which code; its text is for people and may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from pydantic import BaseModel, ValidationError

from essp_common.errors import ConfigError
from essp_common.validation import problems

Refusal = tuple[str, str]
"""The field, and the code."""


@contextmanager
def refused(field: str, code: str = "invalid") -> Iterator[pytest.ExceptionInfo[Exception]]:
    """Within this block a `ConfigError` is raised about this field, or a document has exactly this problem."""
    with pytest.raises((ConfigError, ValidationError)) as caught:
        yield caught
    assert refusals(caught.value) == [(field, code)], caught.value


def refusals(error: Exception) -> list[Refusal]:
    """What an error refuses, in the order in which people read it."""
    if isinstance(error, ValidationError):
        error = ConfigError.together(problems(error, BaseModel))
    assert isinstance(error, ConfigError)
    return [(part.field, part.code) for part in error.parts or (error,)]
