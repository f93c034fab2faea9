"""What saves came to: of several that are over at once, the newest that is durable, and what went wrong last."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from typing import Any

import pytest

from essp_common.errors import EsspError, Fenced, Unavailable
from essp_trainer.checkpoints.save_queue import Saved, Saves

AWAY = Unavailable("the store is away")
DURABLE: dict[str, Any] = {"4": "4", "8": "8"}
SUPERSEDED, FAILED = {"8": None}, {"8": AWAY}


class Store:
    """Stages at once, and copies to what it is told."""

    def __init__(self, outcomes: Mapping[str, str | EsspError | None]) -> None:
        self._outcomes = outcomes

    def stage(self, snapshot: str) -> str:
        return snapshot

    def copy(self, staged: str) -> str | None:
        outcome = self._outcomes[staged]
        if isinstance(outcome, EsspError):
            raise outcome
        return outcome


@pytest.mark.parametrize(
    ("outcomes", "saved"),
    [
        (DURABLE, ("8", None)),
        (DURABLE | SUPERSEDED, ("4", None)),
        (DURABLE | FAILED, ("4", AWAY)),
        ({"4": AWAY, "8": "8"}, ("8", None)),
        ({"4": AWAY} | SUPERSEDED, (None, AWAY)),
    ],
)
def test_of_saves_that_are_over_at_once(outcomes: Mapping[str, Any], saved: tuple[Any, Any]) -> None:
    with closing(Saves(Store(outcomes))) as saves:  # type: ignore[arg-type]
        for snapshot in outcomes:
            saves.begin(snapshot)  # type: ignore[arg-type]
        saves.wait()
        assert saves.take() == Saved(*saved)
        assert not saves.under_way


def test_a_process_that_was_taken_over_is_told_whatever_else_there_is() -> None:
    with closing(Saves(Store({"4": Fenced("taken over"), "8": AWAY}))) as saves:  # type: ignore[arg-type]
        for snapshot in ("4", "8"):
            saves.begin(snapshot)  # type: ignore[arg-type]
        saves.wait()
        with pytest.raises(Fenced):
            saves.take()
