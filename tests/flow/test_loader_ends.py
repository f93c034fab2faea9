"""However a loop over a loader ends, and whenever it is stopped: nothing of it is left, and nobody waits for ever."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import essp
from essp.embedded.composition import Embedded
from essp.loops.clips import JobClips
from essp.loops.feed import Feed
from essp.loops.membership import Membership
from essp.loops.running_job import OwnJob
from tests.harness import launcher
from tests.harness.leaks import Holdings
from tests.harness.loops import CLIP, loader, taken
from tests.harness.waiting import LONGEST_S, until
from tests.lanes import often

pytestmark = pytest.mark.lane("promises")


def test_a_closed_loader_holds_no_frames(catalog: Path) -> None:
    """Not even until the garbage collector comes: they are memory, and a file descriptor."""
    before = Holdings.now()
    gc.collect()
    gc.disable()
    try:
        clips = loader(catalog)
        batches = iter(clips)
        next(batches)
        held = {target for _, target in Holdings.now().without(before).files}
        clips.close()
        left = {target for _, target in Holdings.now().without(before).files}
    finally:
        gc.enable()
    assert "/memfd:essp-clips" in held - left


def test_an_iteration_is_over_once_the_loader_is_elsewhere(catalog: Path) -> None:
    """It said that the job is running, or went on and left a state that named the wrong epoch."""
    with loader(catalog) as clips:
        for meanwhile in (
            clips.close,
            lambda: clips.set_epoch(5),
            lambda: clips.load_state_dict(clips.state_dict()),
            lambda: next(iter(clips)),
        ):
            batches = iter(clips)
            next(batches)
            meanwhile()
            state = clips.state_dict()
            with pytest.raises(essp.ConfigError, match="this iteration is over"):
                next(batches)
            assert clips.state_dict() == state


def test_who_waits_for_a_batch_hears_of_the_end(catalog: Path) -> None:
    """A thread that had begun to wait did so for ever."""
    decoding, go_on = Event(), Event()

    def late(frames: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
        decoding.set()
        go_on.wait(LONGEST_S)
        return frames

    with loader(catalog, transform=late) as clips, ThreadPoolExecutor(2) as pool:
        waiting = pool.submit(next, iter(clips))
        assert decoding.wait(LONGEST_S)
        closing = pool.submit(clips.close)
        try:
            with pytest.raises(essp.ConfigError, match="this iteration is over"):
                waiting.result(LONGEST_S)
        finally:
            go_on.set()
        closing.result(LONGEST_S)


def test_a_loader_that_is_closed_while_it_starts_leaves_nothing(catalog: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was started then stayed until the loader was dropped."""
    clips = loader(catalog)
    start = essp.Loader._clips_from

    def closed_meanwhile(*arguments: Any) -> Any:
        started = start(*arguments)
        clips.close()
        return started

    monkeypatch.setattr(essp.Loader, "_clips_from", closed_meanwhile)
    with pytest.raises(essp.ConfigError, match="this iteration is over"):
        next(iter(clips))
    assert clips._feed is None


def test_a_loader_that_is_closed_as_it_has_started_waits_for_nothing(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that closed it saw nothing to close, and the other one waited for a batch."""
    clips = loader(catalog)

    class Started(Feed):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            clips.close()

        def next(self) -> Any:
            pytest.fail("it waits")

    monkeypatch.setattr("essp.api.loader.Feed", Started)
    with pytest.raises(essp.ConfigError, match="this iteration is over"):
        next(iter(clips))
    assert clips._feed is None


def test_a_loop_that_breaks_leaves_nothing_and_goes_on_with_the_next_epoch(catalog: Path) -> None:
    clips = loader(catalog)
    for _ in clips:
        break
    assert clips.state_dict()["clip"] == 4

    def fail() -> None:
        for batch in clips:
            raise ValueError(f"in epoch {batch.meta['epoch'][0]}")

    with pytest.raises(ValueError, match="in epoch 1"):
        fail()
    clips.set_epoch(0)
    again = iter(clips)
    assert next(again).meta["epoch"] == [0] * 4
    again.close()  # type: ignore[attr-defined]
    clips.close()


_LOOP = """
import json, os, sys, essp

catalog, state, log, steps = sys.argv[1:]
loader = essp.Loader(
    catalog, clip=essp.Clip(4, 2, 40), batch_size=2,
    sampling=essp.Sampling(clips_per_epoch=10), limits=essp.Limits(decoders=1),
)
if os.path.exists(state):
    loader.load_state_dict(json.load(open(state)))
for batch in loader:
    with open(log, "a") as lines:
        print(*batch.meta["index"], int(batch.frames.sum()), file=lines, flush=True)
    with open(state + ".new", "w") as file:
        json.dump(loader.state_dict(), file)
    os.replace(state + ".new", state)
    steps = int(steps) - 1
    if not steps:
        os.kill(os.getpid(), 9)
"""


@pytest.mark.processes
def test_a_loop_killed_twice_has_each_clip_once(catalog: Path, tmp_path: Path) -> None:
    """A script without the guard of `__main__`, which a killed process cannot tidy up after."""
    script = tmp_path / "loop.py"
    script.write_text(_LOOP)
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    ends = []
    for steps in ("2", "1", "9"):
        command = [*launcher.python(), str(script), str(catalog), str(tmp_path / "state"), str(tmp_path / "log"), steps]
        ends.append(subprocess.run(command, env=environment, check=False).returncode)
    assert ends == [-signal.SIGKILL, -signal.SIGKILL, 0]
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    assert [int(index) for line in lines for index in line[:-1]] == list(range(10))
    assert json.loads((tmp_path / "state").read_text())["epoch"] == 1
    with essp.Loader(
        catalog, clip=CLIP, batch_size=2, sampling=essp.Sampling(clips_per_epoch=10), limits=essp.Limits(decoders=1)
    ) as clips:
        assert [int(line[-1]) for line in lines] == [int(batch.frames.sum()) for batch in clips]


_LEAVING = """
import sys, threading, essp
from essp.loops.running_job import OwnJob

end = OwnJob._end

def told(job):
    print([thread.name for thread in threading.enumerate() if thread.name.startswith(("essp-intake", "essp-loop"))])
    end(job)

OwnJob._end = told
loader = essp.Loader(
    sys.argv[1], clip=essp.Clip(frames=4, stride=2, size=40), batch_size=2, limits=essp.Limits(decoders=1),
)
batches = iter(loader)
next(batches)
"""


@pytest.mark.processes
def test_a_loop_that_nobody_closes_leaves_before_its_job_ends(catalog: Path) -> None:
    """In the middle of an epoch. Else its threads would ask a bus that is closed, and say so in the log."""
    command = [*launcher.python(), "-c", _LEAVING, str(catalog)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "[]\n", "")


_FORKING = """
import multiprocessing, sys, essp

def train():
    global batches
    batches = iter(essp.Loader(
        sys.argv[1], clip=essp.Clip(frames=4, stride=2, size=40), batch_size=2, limits=essp.Limits(decoders=1),
    ))
    next(batches)

child = multiprocessing.get_context("fork").Process(target=train)
child.start()
child.join()
sys.exit(child.exitcode)
"""


@pytest.mark.processes
def test_a_loop_of_a_forked_process_leaves_no_folder(catalog: Path, tmp_path: Path) -> None:
    """Such a process calls no `atexit`."""
    command = [*launcher.python(), "-c", _FORKING, str(catalog)]
    subprocess.run(command, check=True, env=os.environ | {"TMPDIR": str(tmp_path)})
    assert not list(tmp_path.iterdir())


THREADS = (
    "essp-control master decoder essp-intake-loop essp-device-feed-loop "
    "essp-deadletter essp-embedded essp-conditions essp-cache-watch essp-heart workers decoder-lane-0 "
    "essp-loop-consumer.loop"
)
"""Those of a loop and its job; first one of each part, in the order in which they begin."""


@pytest.mark.processes
@pytest.mark.parametrize("name", often(THREADS.split(), 5))
def test_a_job_that_starts_half_way_leaves_nothing_behind(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """The check after each test looks for threads, processes and files."""
    start = threading.Thread.start

    def refused(thread: threading.Thread) -> None:
        if thread.name == name:
            raise RuntimeError("can't start new thread")
        start(thread)

    clips = loader(catalog)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            next(iter(clips))
    assert len(taken(clips)) == 10, "it begins again"
    clips.close()


BEGINS = [(Feed, "__init__"), (OwnJob, "__init__"), (Membership, "__init__"), (JobClips, "__init__")]

ENDS = [(Embedded, "close"), (Membership, "leave"), (Feed, "close"), (JobClips, "close"), (OwnJob, "close")]


@pytest.mark.processes
@pytest.mark.parametrize(
    ("owner", "name"),
    often(BEGINS, 2) + often(ENDS, 2),
    ids=[f"{owner.__name__}.{name}" for owner, name in BEGINS + ENDS],
)
def test_interrupts_while_it_begins_or_ends_leave_nothing_behind(
    catalog: Path, monkeypatch: pytest.MonkeyPatch, owner: type, name: str
) -> None:
    """As Ctrl-C in a notebook, pressed twice: the process lives on. The check after each test looks what has stayed."""
    call = getattr(owner, name)
    left = [True]

    def interrupt() -> None:
        if left:
            left.pop()
            os.kill(os.getpid(), signal.SIGINT)

    def interrupted(*arguments: Any) -> None:
        if name != "__init__":
            interrupt()
        call(*arguments)
        interrupt()

    clips = loader(catalog)
    batches = iter(clips)
    monkeypatch.setattr(owner, name, interrupted)
    with pytest.raises(KeyboardInterrupt), clips:
        next(batches)
    assert not left
    assert len(taken(clips)) == 10, "it begins again"
    clips.close()


def test_an_iteration_that_ends_in_a_thread_of_the_loader_leaves_nothing(
    catalog: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the garbage collector finds it there: that thread would have to wait for itself."""
    held: list[Iterator[essp.Batch]] = []
    go_on, dropped = Event(), Event()
    numbers = count()

    def dropping(frames: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
        if next(numbers) >= 4:
            go_on.wait(LONGEST_S)
            held.clear()
            dropped.set()
        return frames

    clips = loader(catalog, transform=dropping)
    held.append(iter(clips))
    next(held[0])
    go_on.set()
    assert dropped.wait(LONGEST_S)
    until(lambda: clips._feed is None)


_RAISING = """
import sys, essp

def train():
    clips = essp.Loader(
        sys.argv[1], clip=essp.Clip(4, 2, 40), batch_size=4,
        sampling=essp.Sampling(clips_per_epoch=100), limits=essp.Limits(decoders=1),
    )
    batches = iter(clips)
    for batch in batches:
        raise ZeroDivisionError

train()
"""


@pytest.mark.processes
def test_a_traceback_that_holds_an_iteration_does_not_keep_the_process(catalog: Path) -> None:
    """It is freed when the interpreter ends, where no other thread runs any more."""
    ended = subprocess.run(
        [*launcher.python(), "-c", _RAISING, str(catalog)],
        check=False,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == "ZeroDivisionError"
