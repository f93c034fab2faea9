"""What is fitted at the end of a training phase takes minutes: who leaves in the middle of it loses no clip."""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from essp_common.artifacts import checkpoint
from essp_common.errors import PermanentError
from essp_common.job.position import Position
from essp_common.pb.v1.messages_pb2 import TRAIN, Control
from essp_common.runtime import child_process
from essp_common.runtime.child_process import ChildProcess
from essp_engine.encoders.fitting import Tell
from essp_trainer.model import fits
from essp_trainer.model.fit_child import FITS
from essp_trainer.model.fit_messages import Arrays, Request
from essp_trainer.model.fits import FitLeft, fitted
from tests.harness.training_jobs import Running, Stage, final_weights, last_training_state
from tests.harness.waiting import LONGEST_S
from tests.unit.essp_trainer import test_encoding, test_probing

pytestmark = pytest.mark.lane("promises")

Make = Callable[[Path], Stage]
SPAN = "the span of its vectors"


def encoder(path: Path) -> Stage:
    return test_encoding.stage_of(test_encoding.job(path, epochs=2, samples=60))


def probe(path: Path) -> Stage:
    return test_probing.stage_of(test_probing.job(path))


def to_the_end(stage: Stage) -> Stage:
    manifest = checkpoint.read_latest(stage.store, "one")
    start = Position(0, 0) if manifest is None else manifest.position
    stage.command(Control.START)
    stage.feed(position for position in stage.every_position() if position >= start)
    with Running(stage) as running:
        running.join()
    assert running.error is None
    return stage


class Endless:
    """From now on the fit of this name takes its first step again and again, until it is left or let go."""

    def __init__(self, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = threading.Event()
        self.over = threading.Event()
        self._what = what
        for name, fit in FITS.items():
            monkeypatch.setitem(FITS, name, self._held(fit))

    def _held(self, fit: Callable[..., Arrays]) -> Callable[..., Arrays]:
        def held(arrays: Arrays, settings: Any, tell: Tell) -> Arrays:
            def again(what: str, done: int, most: int) -> None:
                deadline = time.monotonic() + LONGEST_S
                try:
                    while what == self._what and not self.over.is_set():
                        assert time.monotonic() < deadline
                        self.begun.set()
                        tell(what, done, most)
                    tell(what, done, most)
                except FitLeft:  # of another rank, maybe, that has not come so far
                    self.over.set()
                    raise

            return fit(arrays, settings, again)

        return held


def left_in(stage: Stage, what: str, leave: Callable[[Running], None], ranks: int = 1) -> Position:
    """Train until this fit, and leave there. Returns where its checkpoint is."""
    with pytest.MonkeyPatch.context() as patch:
        endless = Endless(what, patch)
        stage.command(Control.START)
        stage.feed(position for position in stage.every_position() if position[0] == 0)
        with Running(stage, ranks) as running:
            assert endless.begun.wait(LONGEST_S)
            leave(running)
            running.join()
    assert not running.errors
    manifest = checkpoint.read_latest(stage.store, "one")
    assert manifest is not None
    return manifest.position


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (encoder, "centres"),
        (encoder, "a mixture of Gaussians"),
        (encoder, "a linear classifier"),
        (probe, "a linear classifier"),
    ],
)
@pytest.mark.parametrize("command", [None, Control.STOP])
def test_who_leaves_a_fit_saves_its_clips_and_begins_it_anew(
    tmp_path: Path, make: Make, what: str, command: Control.Command | None
) -> None:
    """Drained, as by Ctrl-C, or because the job is stopped: what follows is as if it had never been left."""
    whole, left = to_the_end(make(tmp_path / "whole")), make(tmp_path / "left")

    def leave(running: Running) -> None:
        if command is None:
            running.trainers[0].drain()
        else:
            left.command(command)

    assert left_in(left, what, leave) == (0, 12)
    resumed = to_the_end(make(tmp_path / "left"))
    assert final_weights(resumed) == final_weights(whole)
    assert last_training_state(resumed) == last_training_state(whole)
    assert all(report.purpose != TRAIN or report.epoch for report in resumed.reports("trained"))


@pytest.mark.parametrize("drained", [0, 1])
def test_all_ranks_leave_a_fit_if_one_is_to(tmp_path: Path, drained: int) -> None:
    whole, left = to_the_end(encoder(tmp_path / "whole")), encoder(tmp_path / "left")
    assert left_in(left, "centres", lambda running: running.trainers[drained].drain(), ranks=2) == (0, 12)
    assert final_weights(to_the_end(encoder(tmp_path / "left"))) == final_weights(whole)


@pytest.mark.parametrize("then", [Control.RESUME, Control.STOP])
def test_a_pause_holds_a_fit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: Control.Command) -> None:
    whole, stage = to_the_end(encoder(tmp_path / "whole")), encoder(tmp_path / "held")
    endless, held = Endless("centres", monkeypatch), threading.Event()
    told: list[int] = []

    def sleep(seconds: float) -> None:
        told.append(len(stage.reports("step")))
        if not held.is_set():
            stage.command(then)
        held.set()
        threading.Event().wait(seconds)
        endless.over.set()

    monkeypatch.setattr("essp_trainer.session.time", SimpleNamespace(sleep=sleep))
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage) as running:
        assert endless.begun.wait(LONGEST_S)
        stage.command(Control.PAUSE)
        assert held.wait(LONGEST_S)
        running.join()
    assert not running.errors
    assert len(set(told)) == 1, "nothing is told meanwhile"
    monkeypatch.undo()
    if then == Control.STOP:
        stage = to_the_end(encoder(tmp_path / "held"))
    assert final_weights(stage) == final_weights(whole)


class Children:
    """The child processes of fits, which all fits have from now on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.started: list[Any] = []
        popen = vars(child_process)["subprocess"].Popen

        def start(*args: Any, **options: Any) -> Any:
            self.started.append(popen(*args, **options))
            return self.started[-1]

        monkeypatch.setattr("essp_common.runtime.child_process.subprocess.Popen", start)
        monkeypatch.setattr(fits, "_WORTH", 0)
        monkeypatch.setattr(fits, "_LOOK_S", 0.01)


@pytest.fixture
def children(monkeypatch: pytest.MonkeyPatch) -> Children:
    return Children(monkeypatch)


def long_step() -> dict[str, Any]:
    """A fit whose first step takes a good second: 10^10 operations."""
    vectors = np.random.default_rng(0).normal(size=(400, 20_000)).astype(np.float32)
    arrays = {"vectors": vectors, "labels": (np.arange(400) % 2).astype(np.int32)}
    return {"fit": "classifier", "arrays": arrays, "classes": 2, "penalty": 1.0}


def test_a_child_fits_the_same_to_the_bit(children: Children, monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    rows, vectors = random.normal(size=(300, 8)).astype(np.float32), random.normal(size=(40, 90))
    requests: list[dict[str, Any]] = [
        {"fit": "encoder", "arrays": {"rows": rows}, "kind": kind, "pca": 5, "centres": 4, "seed": 3}
        for kind in ("fisher_vector", "vlad")
    ]
    labels = (np.arange(40) % 3).astype(np.int32)
    arrays = {"vectors": vectors, "labels": labels}
    requests.append({"fit": "classifier", "arrays": arrays, "classes": 3, "penalty": 0.1})
    for request in requests:
        there, here = (fitted(**request, work=work, tell=lambda *_: None) for work in (1, -1))
        assert there.keys() == here.keys()
        assert all(there[name].tobytes() == here[name].tobytes() for name in here)
    assert len(children.started) == len(requests)


def test_a_child_stands_still_while_who_is_told_waits_and_is_ended_in_the_middle_of_a_step(children: Children) -> None:
    told: list[str] = []

    def tell(what: str, done: int, most: int) -> None:
        told.append(what)
        if len(told) == 1:
            return
        stat = Path(f"/proc/{children.started[0].pid}/stat")
        deadline = time.monotonic() + LONGEST_S
        while stat.read_text().rpartition(") ")[2][0] != "T":
            assert time.monotonic() < deadline
        raise FitLeft

    with pytest.raises(FitLeft):
        fitted(**long_step(), work=1, tell=tell)
    assert told == [SPAN, SPAN]
    assert children.started[0].returncode == -signal.SIGKILL


def test_a_child_that_dies_fails_the_training_with_what_to_do(children: Children) -> None:
    def tell(*_: object) -> None:
        os.kill(children.started[0].pid, signal.SIGKILL)

    with pytest.raises(
        PermanentError, match=r"fits was killed by signal 9 .SIGKILL.; if memory has run out, .* fewer samples"
    ):
        fitted(**long_step(), work=1, tell=tell)


def test_what_a_child_raises_is_raised(children: Children) -> None:
    rows = {"rows": np.zeros((3, 8), np.float32)}
    with pytest.raises(ValueError, match="3 rows of 8 numbers have fewer than 5 principal components"):
        fitted("encoder", 1, lambda *_: None, rows, kind="vlad", pca=5, centres=2)
    with pytest.raises(PermanentError, match="a fit failed: KeyError"):
        fitted("encoder", 1, lambda *_: None, {}, kind="vlad", pca=5, centres=2)


@pytest.mark.usefixtures("started_children")
def test_a_child_ends_with_its_parent_in_the_middle_of_a_step(children: Children) -> None:
    child, long = ChildProcess(fits._MODULE, "fits"), long_step()
    child.channel.send(pickle.dumps(Request(long.pop("fit"), long.pop("arrays"), long)))
    child.channel.receive()
    child.channel.close()
    assert children.started[0].wait(LONGEST_S) == 0
