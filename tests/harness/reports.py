"""Lets a failure be reported whatever text is in it: half a surrogate pair would end all workers of pytest-xdist."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


class EncodableReports:
    """A plugin: what a worker sends about a test is text that UTF-8 can hold."""

    @pytest.hookimpl(wrapper=True)
    def pytest_report_to_serializable(self) -> Generator[None, Any, Any]:
        return encodable((yield))


def encodable(data: Any) -> Any:
    """The same, with an escape for each character that cannot be encoded."""
    if isinstance(data, str):
        return data.encode("utf-8", "backslashreplace").decode("utf-8")
    if isinstance(data, dict):
        return {encodable(key): encodable(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return type(data)(encodable(value) for value in data)
    return data
