"""The copy that is saved: what the training was at that moment, however late it is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from essp_common.artifacts import checkpoint
from essp_common.errors import Unavailable
from essp_trainer.checkpoints import state_memory
from essp_trainer.checkpoints.save_queue import Saves
from essp_trainer.checkpoints.state_memory import StateMemory, bytes_of
from essp_trainer.model.optimizer import Optimizer
from tests.harness.training_jobs import files_of, finished
from tests.harness.waiting import LONGEST_S
from tests.lanes import often

MODEL, OPTIMIZER = "model.tensors", "optimizer.tensors"
Pairs = list[tuple[torch.Tensor, torch.Tensor]]


class Late:
    """A thread that copies as late as it may: when the training waits for it, or `all_over`."""

    jobs: ClassVar[list[Job]] = []

    def __init__(self, *_: object) -> None:
        self.jobs.clear()

    def submit(self, copy: Callable[[Pairs], None], pairs: Pairs) -> Job:
        self.jobs.append(job := Job(partial(copy, pairs)))
        return job

    def shutdown(self) -> None:
        self.all_over()
        self.jobs.clear()

    @classmethod
    def all_over(cls) -> None:
        for job in cls.jobs:
            job.exception()


class Job:
    """One copy."""

    def __init__(self, copy: Callable[[], None]) -> None:
        self._copy = copy
        self._lock = threading.Lock()
        self._over = threading.Event()

    def exception(self) -> None:
        """The training waits."""
        with self._lock:
            if not self._over.is_set():
                self._copy()
                self._over.set()

    def result(self) -> None:
        """A thread that saves waits, which makes nobody hurry; or the training does, for the final one."""
        if not threading.current_thread().name.startswith("essp-"):
            self.exception()
        assert self._over.wait(LONGEST_S)


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_memory, "ThreadPoolExecutor", Late)


def made_up(seed: int) -> dict[str, dict[str, torch.Tensor]]:
    """Tensors of some shapes, types and orders in memory."""
    random = torch.Generator().manual_seed(seed)

    def one() -> torch.Tensor:
        shape = torch.randint(1, 7, (int(torch.randint(0, 5, (), generator=random)),), generator=random).tolist()
        drawn = torch.randn(shape, generator=random) * 100
        kind = int(torch.randint(0, 4, (), generator=random))
        if kind == 0 and drawn.ndim == 4:
            return drawn.to(memory_format=torch.channels_last)
        return (drawn, drawn.t() if drawn.ndim == 2 else drawn.double(), drawn.long(), drawn.half())[kind]

    return {file: {f"t{number}": one() for number in range(6)} for file in (MODEL, OPTIMIZER)}


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.usefixtures("late")
def test_it_holds_the_moment_of_taking_whenever_the_rest_is_copied(seed: int) -> None:
    """Those that are moving change at once, the others after `wait_for_copy`, save after save."""
    files = made_up(seed)
    names = [(file, name) for file, named in files.items() for name in named]
    with closing(StateMemory()) as memory:
        memory.reserve(bytes_of(files))
        for save in range(3):
            moving = {pair for number, pair in enumerate(names) if (number + seed + save) % 3 == 0}
            expected = {pair: files[pair[0]][pair[1]].clone() for pair in names}
            memory.take(files, moving)
            for file, name in moving:
                files[file][name].add_(1)
            memory.wait_for_copy()
            for file, name in set(names) - moving:
                files[file][name].add_(1)
            memory.wait()
            copied = memory.arrays()
            for (file, name), tensor in expected.items():
                np.testing.assert_array_equal(copied[file][name], tensor.numpy(), strict=True)
            del copied


def test_what_is_reserved_is_enough_for_the_first_copy() -> None:
    files = made_up(3)
    with closing(StateMemory()) as memory:
        memory.reserve(bytes_of(files))
        reserved = (memory.size, memory._memory)
        memory.take(files, ())
        assert (memory.size, memory._memory) == reserved


def test_a_copy_that_fails_fails_the_save_and_not_the_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(pairs: Pairs) -> None:
        if pairs:
            raise Unavailable("the copy failed")

    with closing(StateMemory()) as memory:
        monkeypatch.setattr(state_memory, "_copy", failing)
        memory.take(made_up(1), ())
        memory.wait_for_copy()
        with pytest.raises(Unavailable, match="the copy failed"):
            memory.wait()
        monkeypatch.undo()
        memory.take(made_up(1), ())
        memory.wait()


@pytest.mark.slow
@pytest.mark.parametrize("ema", often([0.9, 0.0], 1))
def test_files_are_the_same_however_late_they_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ema: float
) -> None:
    """A copy begins when the next update waits for it, and behind that update if it does not wait."""
    with monkeypatch.context() as patch:
        patch.setattr(state_memory, "ThreadPoolExecutor", Late)
        patch.setattr(Optimizer, "step", _then(Late.all_over, Optimizer.step))
        for waiting in ("wait", "wait_for_memory"):
            patch.setattr(Saves, waiting, _first(Late.all_over, getattr(Saves, waiting)))
        stage = finished(tmp_path / "late", ema=ema, checkpoint={"every": 4, "keep": 9})
    plain = finished(tmp_path / "plain", ema=ema, checkpoint={"every": 4, "keep": 9, "parallel": "off"})
    steps = checkpoint.steps(plain.store, "one")
    assert checkpoint.steps(stage.store, "one") == steps == [4, 8, 10, 20, 24, 26, 39]
    for step in steps:
        one, other = (files_of(s.store, checkpoint.read(s.store, "one", step)) for s in (stage, plain))
        assert one == other, step


def _first(call: Callable[[], None], method: Callable[..., None]) -> Callable[..., None]:
    def both(*arguments: object) -> None:
        call()
        method(*arguments)

    return both


def _then(call: Callable[[], None], method: Callable[..., None]) -> Callable[..., None]:
    def both(*arguments: object) -> None:
        method(*arguments)
        call()

    return both


class OnGpu(torch.Tensor):
    """Of the host, and says that it is not."""

    is_cuda = True


class Stream:
    """Whatever it is given is done at once."""

    def __init__(self, *_: object) -> None:
        self.device = torch.device("cpu")

    def wait_stream(self, other: Stream) -> None: ...

    def wait_event(self, event: Stream) -> None: ...

    def record_event(self) -> Stream:
        return self

    def synchronize(self) -> None: ...


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is launched and where bytes go is real; `tests/gpu` has what a GPU does with it, and when."""
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: nullcontext())
    monkeypatch.setattr(StateMemory, "_pin", lambda self: None)


@pytest.mark.usefixtures("pretended_gpu")
@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("room", [True, False])
def test_tensors_of_a_gpu_cross_among_those_of_the_host(seed: int, room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of either kind, in any order; also where the GPU has no room for a copy, which it is asked for once."""
    asked: list[object] = []

    class Asked(state_memory._OnDevice):
        def __init__(self, *arguments: Any) -> None:
            asked.append(arguments)
            if not room:
                raise torch.OutOfMemoryError("CUDA out of memory")
            super().__init__(*arguments)

    monkeypatch.setattr(state_memory, "_OnDevice", Asked)
    files = made_up(seed)
    for number, (file, name) in enumerate((file, name) for file, named in files.items() for name in named):
        if (number * 7 + seed) % 3:
            files[file][name] = files[file][name].as_subclass(OnGpu)
    files[MODEL]["empty"] = torch.empty(0, 3).as_subclass(OnGpu)
    with closing(StateMemory()) as memory:
        for _ in range(3):
            memory.take(files, ())
            memory.wait_for_copy()
            memory.wait()
            copied = memory.arrays()
            for file, named in files.items():
                for name, tensor in named.items():
                    expected = tensor.as_subclass(torch.Tensor).numpy()
                    np.testing.assert_array_equal(copied[file][name], expected, strict=True)
            for named in files.values():
                for tensor in named.values():
                    tensor.add_(1)
            del copied
    assert len(asked) == 1
