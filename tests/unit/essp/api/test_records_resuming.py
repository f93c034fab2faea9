"""A loop over `essp.Records` goes on where it stopped, on any number of ranks, and only one of them at a time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

import essp
from essp.api.arguments import Frames
from essp.records.pieces import Pieces
from essp_common.errors import ConfigError
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S
from tests.lanes import across, often
from tests.unit.essp.api.numbered_records import MEMORIES, RECORDS, SIDE, taken


@pytest.mark.parametrize(("kind", "memory"), often(across(["raw", "mixed"], MEMORIES), 3))
def test_a_loop_goes_on_where_it_stopped(kind: str, memory: Any, request: pytest.FixtureRequest) -> None:
    path = request.getfixturevalue(kind)
    options: dict[str, Any] = {"batch_size": 8, "size": SIDE, "memory": memory}
    with essp.Records(path, **options) as loader:
        whole = taken(loader) + taken(loader)
    for batches in (0, 3, 7, 9):
        shown: list[int] = []
        with essp.Records(path, **options) as loader:
            while batches:
                for batch in loader:
                    shown += taken(iter([batch]))
                    batches -= 1
                    if not batches:
                        break
                state = loader.state_dict()
            state = loader.state_dict()
        with essp.Records(path, **options) as again:
            again.load_state_dict(state)
            while again.epoch < 2:
                shown += taken(again)
        assert shown == whole


@pytest.mark.parametrize("kind", ["raw", "mixed"])
def test_ranks_share_an_epoch_and_a_state_goes_to_another_number_of_them(
    kind: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(kind)
    with essp.Records(path, batch_size=6, size=SIDE) as alone:
        whole = taken(alone)
    shares, states = [], []
    for rank in range(2):
        with essp.Records(path, batch_size=3, size=SIDE, rank=rank, world_size=2) as share:
            shares.append(taken(share))
            share.set_epoch(0)
            next(iter(share))
            states.append(share.state_dict())
    assert sorted(shares[0] + shares[1]) == list(range(RECORDS))
    assert [one for pair in zip(*shares, strict=True) for one in pair] == whole
    assert states[0] == states[1]
    with essp.Records(path, batch_size=6, size=SIDE) as alone:
        alone.load_state_dict(states[0])
        assert taken(alone) == whole[6:]


@given(
    before=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    after=st.tuples(st.integers(1, 4), st.integers(1, 9)),
    steps=st.integers(0, RECORDS),
    drop_last=st.booleans(),
)
def test_a_state_goes_to_any_number_of_ranks_and_any_size_of_batches(
    raw: Path, before: tuple[int, int], after: tuple[int, int], steps: int, drop_last: bool
) -> None:
    """Which show the rest of the epoch, but for less than a step of theirs."""
    shown: list[int] = []
    ranks, batch_size = before
    options: dict[str, Any] = {"drop_last": drop_last}
    for rank in range(ranks):
        with essp.Records(raw, batch_size=batch_size, rank=rank, world_size=ranks, **options) as loader:
            batches, state = iter(loader), loader.state_dict()
            for batch in itertools.islice(batches, min(steps, len(loader))):
                shown += taken(iter([batch]))
                state = loader.state_dict()
    ranks, batch_size = after
    assume(state["epoch"] or state["clip"] % ranks == 0)
    for rank in range(ranks):
        with essp.Records(raw, batch_size=batch_size, rank=rank, world_size=ranks, **options) as loader:
            loader.load_state_dict(state)
            shown += taken(loader) if loader.epoch == 0 else []
    assert len(set(shown)) == len(shown)
    left = RECORDS - len(shown)
    assert left < (before[0] if state["epoch"] else ranks * batch_size if drop_last else ranks)


def begin_another(loader: essp.Records) -> None:
    next(iter(loader))


def go_back(loader: essp.Records) -> None:
    loader.load_state_dict({**loader.state_dict(), "clip": 0})


@pytest.mark.parametrize(
    ("meanwhile", "first"),
    [
        (lambda loader: loader.close(), (0, 8)),
        (begin_another, (1, 8)),
        (go_back, (0, 0)),
        (lambda loader: loader.set_epoch(5), (5, 0)),
        (lambda loader: loader.set_epoch(0), (0, 0)),
    ],
)
def test_an_iteration_is_over_once_the_loader_is_elsewhere(
    raw: Path, meanwhile: Callable[[essp.Records], None], first: tuple[int, int]
) -> None:
    """And leaves the place of the loader as it is. It waited for ever, or the state was that of neither place."""
    with essp.Records(raw, batch_size=8) as loader:
        batches = iter(loader)
        next(batches)
        meanwhile(loader)
        with pytest.raises(ConfigError, match="this iteration is over"):
            next(batches)
        assert next(batches, None) is None
        state = loader.state_dict()
        assert (state["epoch"], state["clip"]) == first


def test_who_waits_for_records_hears_of_the_end(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that had begun to wait was never woken."""
    reading, go_on = Event(), Event()
    read = Pieces._read

    def late(*arguments: Any) -> Any:
        if arguments[2]:  # not the first piece of the epoch
            reading.set()
            go_on.wait(LONGEST_S)
        return read(*arguments)

    monkeypatch.setattr(Pieces, "_read", late)
    with essp.Records(raw, batch_size=8) as loader, ThreadPoolExecutor(2) as pool:
        batches = iter(loader)
        next(batches)
        assert reading.wait(LONGEST_S)
        waiting = pool.submit(next, batches)
        closing = pool.submit(loader.close)
        with pytest.raises(ConfigError, match="this iteration is over"):
            waiting.result(LONGEST_S)
        go_on.set()
        closing.result(LONGEST_S)


def test_who_waits_for_images_hears_of_the_end(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It got the error of a pool of threads that is no more."""
    making, go_on = Event(), Event()
    shutdown = ThreadPoolExecutor.shutdown

    def late(image: Frames, random: np.random.Generator) -> Frames:
        making.set()
        go_on.wait(LONGEST_S)
        return image

    def and_go_on(pool: ThreadPoolExecutor, wait: bool = True, **options: Any) -> None:
        shutdown(pool, False, **options)
        go_on.set()
        shutdown(pool, wait)

    monkeypatch.setattr(ThreadPoolExecutor, "shutdown", and_go_on)
    with essp.Records(raw, batch_size=8, transform=late) as loader, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(next, iter(loader))
        assert making.wait(LONGEST_S)
        closing = pool.submit(loader.close)
        with pytest.raises(ConfigError, match="this iteration is over"):
            waiting.result(LONGEST_S)
        closing.result(LONGEST_S)


@pytest.mark.processes
def test_a_fork_begins_an_iteration_of_its_own(raw: Path) -> None:
    with essp.Records(raw, batch_size=8) as loader:
        batches = iter(loader)
        shown = taken(iter([next(batches)]))
        ours, theirs = os.pipe()
        if not (child := os.fork()):
            found = b"nothing"
            try:
                next(batches)
            except ConfigError:
                found = b"over, then %d" % len(taken(loader))
            os.write(theirs, found)
            os._exit(0)
        os.waitpid(child, 0)
        assert os.read(ours, 99) == b"over, then 50"
        os.close(ours)
        os.close(theirs)
        assert sorted(shown + taken(batches)) == list(range(RECORDS))


@pytest.mark.parametrize("world_size", [1, 2])
def test_a_state_at_the_end_of_an_epoch_goes_on_with_the_next_one(raw: Path, world_size: int) -> None:
    """Also where the last clips are too few for a batch, and are left out."""
    options: dict[str, Any] = {"batch_size": 8, "drop_last": True, "rank": 0, "world_size": world_size}
    with essp.Records(raw, **options) as loader:
        loader.load_state_dict(loader.state_dict() | {"clip": RECORDS})
        assert loader.epoch == 1
        with refused("state", "range"):
            loader.load_state_dict(loader.state_dict() | {"clip": RECORDS + world_size})


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("others", [1, 3, 4])
def test_a_state_at_the_end_of_an_epoch_goes_to_any_number_of_ranks(raw: Path, ranks: int, others: int) -> None:
    """Which have more records an epoch, or fewer."""
    with essp.Records(raw, batch_size=8, rank=0, world_size=ranks) as loader:
        for _ in loader:
            state = loader.state_dict()
    with essp.Records(raw, batch_size=8, rank=others - 1, world_size=others) as loader:
        loader.load_state_dict(state)
        assert next(iter(loader)).meta["epoch"] == [1] * 8
        loader.load_state_dict(state | {"epoch": 0, "clip": RECORDS})  # as earlier releases say it
        assert loader.epoch == 1


def test_a_state_has_whole_numbers(raw: Path) -> None:
    loader = essp.Records(raw)
    good = loader.state_dict()
    for name in good:
        for value in (1.5, 8.0, "1", None, b"1", float("nan")):
            with refused("state", "type"):
                loader.load_state_dict({**good, name: value})  # type: ignore[dict-item]
    for wrong in (None, [1], torch.tensor(1), np.zeros(3)):
        with refused("state", "type"):
            loader.load_state_dict(wrong)  # type: ignore[arg-type]
    loader.load_state_dict({name: torch.tensor(value) for name, value in good.items()})  # type: ignore[misc]
    assert loader.state_dict() == good


def test_the_state_of_other_records_is_refused(raw: Path, mixed: Path) -> None:
    state = essp.Records(raw).state_dict()
    for other in (
        essp.Records(mixed, size=SIDE),
        essp.Records(raw, sampling=essp.RecordSampling(seed=1)),
        essp.Records(raw, sampling=essp.RecordSampling(replacement=True)),
    ):
        with refused("state", "conflict"):
            other.load_state_dict(state)
