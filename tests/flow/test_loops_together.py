"""Several loops over one loader: each has every clip once, each clip is decoded once, and none holds another up."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest

import essp
from tests.harness.loops import loader, taken
from tests.harness.refused import refused
from tests.harness.waiting import LONGEST_S

pytestmark = pytest.mark.lane("promises")


def run_together(loops: Sequence[essp.Loader], take: Callable[[int, essp.Loader], Any]) -> list[Any]:
    """What `take` gives for each loop, in threads that run at once."""
    with ThreadPoolExecutor(len(loops)) as pool:
        return list(pool.map(take, range(len(loops)), loops))


def in_step(barrier: Barrier, batches: essp.Loader) -> Iterator[essp.Batch]:
    """Batches of one of several loops, none of which goes ahead of the others: on a busy machine one of them might not
    run for so long that it is left behind."""
    for batch in batches:
        barrier.wait(LONGEST_S)
        yield batch


def test_several_loops_share_each_decode(catalog: Path) -> None:
    barrier = Barrier(3)
    with loader(catalog, loops=3, clips_per_epoch=40) as first:
        loops = [first, first.another(), first.another()]
        with refused("limits.loops", "range"):
            first.another()
        epochs = run_together(loops, lambda _, clips: (taken(in_step(barrier, clips)), taken(in_step(barrier, clips))))
        counts = first._source._job.status().counts  # type: ignore[attr-defined]
        for clips in loops[1:]:
            clips.close()
    assert epochs[0] == epochs[1] == epochs[2]
    assert [len(epoch) for epoch in epochs[0]] == [40, 40]
    assert counts.redecoded == 0
    with loader(catalog, clips_per_epoch=40) as alone:
        assert taken(alone) == epochs[0][0]


def test_loops_in_turn_and_late_ones_have_each_clip_once(catalog: Path) -> None:
    with loader(catalog, loops=3, clips_per_epoch=60) as first:
        whole = taken(first)
        batches = iter(first)
        begun = taken([next(batches), next(batches)])
        late = first.another()
        epoch = taken(late)  # while the first one waits
        assert begun + taken(batches) == epoch
        assert [entry[:2] for entry in epoch] == [(1, index) for index in range(60)]
        later = first.another()
        later.set_epoch(2)
        part = []
        for batch in later:
            part += taken([batch])
            if len(part) == 20:
                break
        state = later.state_dict()
        second = taken(first)
        later.load_state_dict(state)
        assert part + taken(later) == second
        assert taken(late) == second
        later.set_epoch(0)
        assert taken(later) == whole
        for clips in (late, later):
            clips.close()


def test_a_loop_that_stops_taking_holds_nobody_up(catalog: Path) -> None:
    with loader(catalog, loops=2, clips_per_epoch=100) as first:
        slow = first.another()
        batches = iter(slow)
        begun = taken([next(batches)])
        whole = taken(first)
        assert begun + taken(batches) == whole
        slow.close()
        assert len(taken(first)) == 100


def test_a_loop_that_is_dropped_gives_back_what_it_had(catalog: Path) -> None:
    with loader(catalog, loops=2, clips_per_epoch=100) as first:
        other = first.another()
        next(iter(other))
        del other
        gc.collect()
        assert len(taken(first)) == 100
        again = first.another()  # its name is free again
        assert len(taken(again)) == 100
        again.close()


@pytest.mark.processes
def test_a_loop_that_comes_half_way_is_none_of_the_job(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job waited for it, and went on telling it of all that changed."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == "essp-loop-consumer.loop-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    with loader(catalog, loops=2, clips_per_epoch=100) as first:
        batches = iter(first)
        next(batches)
        other = first.another()
        job = first._source._job  # type: ignore[attr-defined]
        heard = list(job.control._listeners)
        with monkeypatch.context() as patched:
            patched.setattr(threading.Thread, "start", refused)
            with pytest.raises(RuntimeError, match="can't start new thread"):
                next(iter(other))
        assert job.control._listeners == heard
        assert len(taken(batches)) == 96
