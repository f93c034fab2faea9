"""The interface of a service for its callers: a `main.py`, the embedded composition, a test.

`build(..., adapters)` of each service returns one of these; `run` blocks in the caller's thread.
"""

from __future__ import annotations

from typing import Protocol


class Service(Protocol):
    """A running part of ESSP."""

    name: str

    def run(self) -> None:
        """Work until drained or finished. Raises the error that stopped it otherwise."""

    def drain(self) -> None:
        """Accept no new work, finish the current work, and make `run` return. Thread-safe, idempotent."""
