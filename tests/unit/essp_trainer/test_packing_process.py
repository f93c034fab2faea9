"""The child that packs checkpoints: the same files, and whatever happens to it, a whole checkpoint."""

from __future__ import annotations

import errno
import os
import select
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from essp_common.artifacts import checkpoint
from essp_common.artifacts.checkpoint_files import BadCheckpoint, StoredFile
from essp_common.artifacts.ownership import CheckpointName
from essp_common.errors import PermanentError, TransientError, Unavailable
from essp_common.job.trainer_spec import CheckpointSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.port import ObjectInfo
from essp_common.pb.v1.messages_pb2 import Control
from essp_common.runtime import failpoints
from essp_common.tensors.packed import EXACT, Packing, unpack
from essp_trainer.checkpoints import packing_child, packing_process
from essp_trainer.checkpoints.packing_process import PackingProcess
from essp_trainer.checkpoints.state_packing import PackingThread, StatePacking
from tests.harness import launcher
from tests.harness.training_jobs import Running, Stage, final_weights, job_spec, phase_plans, train
from tests.harness.waiting import LONGEST_S

pytestmark = [pytest.mark.processes, pytest.mark.lane("promises")]

MODEL = "model.tensors"
Tensors = dict[str, torch.Tensor]


def state(step: int) -> dict[str, Tensors]:
    """Weights that move a little, in several orders and types; momentum that is another one each time."""
    random = torch.Generator().manual_seed(step)
    moved = 1 + 1e-5 * step
    start = torch.Generator().manual_seed(0)
    weights = {
        "conv": (torch.randn(8, 6, 3, 3, generator=start) * moved).to(memory_format=torch.channels_last),
        "linear": (torch.randn(300, 40, generator=start) * moved).t(),
        "bias": torch.randn(40, generator=start) * moved,
        "empty": torch.zeros(0, 3),
        "batches": torch.tensor(step),
        "mask": torch.tensor([True, False]),
    }
    return {MODEL: weights, "optimizer.tensors": {"conv": torch.randn(8, 6, 3, 3, generator=random)}}


def save(packing: StatePacking, store: DirectoryStore, step: int, packings: dict[str, Packing]) -> list[StoredFile]:
    packing.take(state(step), ())
    stored = packing.data(CheckpointName(step, 1), packings, alone=False)(store, f"{step}/")
    packing.settle(completed=True)
    return list(stored)


@pytest.fixture
def child() -> Iterator[PackingProcess]:
    with closing(PackingProcess(CheckpointSpec(exact_every=3))) as packing:
        yield packing


def process_of(packing: PackingProcess) -> subprocess.Popen[bytes]:
    assert packing._child is not None
    return packing._child.process


EXACTLY = {MODEL: EXACT, "optimizer.tensors": EXACT}


def test_it_writes_the_files_of_the_thread(tmp_path: Path, child: PackingProcess) -> None:
    one, other = (DirectoryStore.from_url((tmp_path / name).as_uri()) for name in ("child", "thread"))
    ways = [EXACTLY] * 3 + [{MODEL: Packing(bits=8), "optimizer.tensors": Packing(bits=4, scope="global")}, EXACTLY]
    with closing(PackingThread(CheckpointSpec(exact_every=3))) as thread:
        for step, packings in enumerate(ways, start=1):
            assert save(child, one, step, packings) == save(thread, other, step, packings)
    keys = [info.key for info in other.list()]
    assert {key: one.get(key) for key in keys} == {key: other.get(key) for key in keys}
    assert len(keys) == 10
    assert len(other.get(f"2/{MODEL}")) < 0.9 * len(other.get(f"1/{MODEL}")), "a difference"


def test_between_two_saves_it_holds_no_files(tmp_path: Path, child: PackingProcess) -> None:
    save(child, DirectoryStore.from_url(tmp_path.as_uri()), 1, EXACTLY)
    assert {os.fstat(output).st_size for output in child._outputs} == {0}


def test_a_file_is_written_whole_in_place_of_the_last_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Linux writes 2 GiB at once at most."""
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda output, data, at: pwrite(output, data[:5], at))
    with open(tmp_path / "output", "w+b") as output:
        for data in (b"what was packed before", b"a few bytes"):
            packing_child._write(output.fileno(), data)
        assert output.read() == b"a few bytes"


def test_a_file_without_arrays_is_one(tmp_path: Path, child: PackingProcess) -> None:
    """Of plain SGD, which has no momentum."""
    store = DirectoryStore.from_url(tmp_path.as_uri())
    with closing(PackingThread(CheckpointSpec(exact_every=3))) as thread:
        for packing in (child, thread):
            packing.take({MODEL: {"w": torch.ones(3)}, "optimizer.tensors": {}}, ())
            stored = packing.data(CheckpointName(1, 1), EXACTLY, alone=False)(store, "1/")
            assert {file.name for file in stored} == EXACTLY.keys()
            assert unpack(store.get("1/optimizer.tensors")) == {}


def test_a_state_that_grows_is_saved_by_the_same_child(tmp_path: Path, child: PackingProcess) -> None:
    """Momentum comes with the first step of each parameter."""
    store = DirectoryStore.from_url(tmp_path.as_uri())
    save(child, store, 1, EXACTLY)
    before = process_of(child).pid
    child.take({MODEL: {"wide": torch.arange(2.0**20)}}, ())
    child.data(CheckpointName(2, 1), {MODEL: EXACT}, alone=True)(store, "2/")
    assert process_of(child).pid == before


def test_what_it_cannot_pack_is_refused_in_words(tmp_path: Path, child: PackingProcess) -> None:
    store = DirectoryStore.from_url(tmp_path.as_uri())
    child.take({MODEL: {"bad": torch.tensor([[1.0, torch.nan]])}}, ())
    with pytest.raises(PermanentError, match="bad has infinities or NaN"):
        child.data(CheckpointName(1, 1), {MODEL: Packing(bits=8)}, alone=False)(store, "1/")
    save(child, store, 2, EXACTLY)


def test_another_child_follows_one_that_was_killed(tmp_path: Path, child: PackingProcess) -> None:
    """It knows no base. Signals of a terminal or a container do not end it: its parent may still want to save."""
    store = DirectoryStore.from_url(tmp_path.as_uri())
    save(child, store, 1, EXACTLY)
    process_of(child).send_signal(signal.SIGINT)
    process_of(child).send_signal(signal.SIGTERM)
    assert save(child, store, 2, EXACTLY)[0].base is not None
    process_of(child).kill()
    process_of(child).wait()
    with pytest.raises(TransientError, match="the process that packs checkpoints was killed by signal 9"):
        save(child, store, 3, EXACTLY)
    assert save(child, store, 4, EXACTLY)[0].base is None


@pytest.mark.parametrize("way", [PackingProcess, PackingThread])
def test_what_was_written_is_read_back(tmp_path: Path, way: Callable[[CheckpointSpec], StatePacking]) -> None:
    class Forgetful(DirectoryStore):
        def put(self, key: str, data: bytes, *, if_absent: bool = False) -> ObjectInfo:
            return super().put(key, data[:-1] + b"?")

        def put_file(self, key: str, path: str) -> ObjectInfo:
            return self.put(key, Path(path).read_bytes())

    with closing(way(CheckpointSpec())) as packing, pytest.raises(BadCheckpoint, match="it was written just now"):
        save(packing, Forgetful(str(tmp_path)), 1, EXACTLY)


@pytest.mark.parametrize("way", [PackingProcess, PackingThread])
def test_what_is_packed_is_the_whole_copy(
    tmp_path: Path, way: Callable[[CheckpointSpec], PackingProcess | PackingThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which is still being made when the save begins."""
    store, go = DirectoryStore.from_url(tmp_path.as_uri()), threading.Event()
    with closing(way(CheckpointSpec())) as packing:
        packing._memory._copier.submit(go.wait, LONGEST_S)
        wait = packing._memory.wait

        def lets_it_go_on() -> None:
            go.set()
            wait()

        monkeypatch.setattr(packing._memory, "wait", lets_it_go_on)
        save(packing, store, 1, EXACTLY)
        go.set()
    assert unpack(store.get(f"1/{MODEL}"))["bias"].tolist() == state(1)[MODEL]["bias"].tolist()


@pytest.mark.usefixtures("started_children")
def test_a_child_that_does_not_end_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with closing(PackingProcess(CheckpointSpec())) as packing:
        save(packing, DirectoryStore.from_url(tmp_path.as_uri()), 1, EXACTLY)
        process = process_of(packing)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        monkeypatch.setattr(packing_process, "_END_S", 0.0)
    assert process.returncode == -signal.SIGKILL


@pytest.mark.parametrize("lacking", ["os.memfd_create", "essp_common.runtime.child_process.subprocess.Popen"])
def test_what_it_takes_to_begin_may_be_lacking_for_a_while(
    tmp_path: Path, child: PackingProcess, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    store = DirectoryStore.from_url(tmp_path.as_uri())
    child.take(state(1), ())
    with monkeypatch.context() as machine:
        machine.setattr(lacking, refuse)
        with pytest.raises(TransientError, match=r"cannot be started: .*Too many open files"):
            child.data(CheckpointName(1, 1), EXACTLY, alone=False)(store, "1/")
    assert len(save(child, store, 2, EXACTLY)) == 2


def test_what_the_store_refuses_is_packed_again(tmp_path: Path, child: PackingProcess) -> None:
    class Full(DirectoryStore):
        def put_file(self, key: str, path: str) -> ObjectInfo:
            raise Unavailable("No space left on device")

    store = DirectoryStore.from_url(tmp_path.as_uri())
    child.take(state(1), ())
    with pytest.raises(Unavailable, match="No space left"):
        child.data(CheckpointName(1, 1), EXACTLY, alone=False)(Full(str(tmp_path)), "1/")
    child.settle(completed=False)
    assert save(child, store, 2, EXACTLY)[0].base is None, "the first is nowhere"
    assert save(child, store, 3, EXACTLY)[0].base is not None


PARENT = """
import sys, torch
from essp_common.artifacts.ownership import CheckpointName
from essp_common.job.trainer_spec import CheckpointSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.tensors.packed import EXACT
from essp_trainer.checkpoints.packing_process import PackingProcess

packing = PackingProcess(CheckpointSpec())
packing.take({"model.tensors": {"w": torch.ones(1000)}}, ())
packing._child = packing._begin_child()
print(packing._child.process.pid, flush=True)
packing.data(CheckpointName(1, 1), {"model.tensors": EXACT}, False)(DirectoryStore(sys.argv[1]), "1/")
"""


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """In the middle of a request, too: here it hangs in one."""
    environment = os.environ | {failpoints.VARIABLE: "checkpoint.packed:1:hang", launcher.STARTED: "1"}
    command = [*launcher.python(), "-c", PARENT, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        assert parent.stderr is not None
        pid = int(parent.stdout.readline())
        assert parent.stderr.readline() == b"failpoint checkpoint.packed: hang\n"
        child = os.pidfd_open(pid)
        parent.kill()
    assert select.select([child], [], [], LONGEST_S)[0], "a process that has ended is readable"
    os.close(child)


def test_a_training_goes_on_when_its_child_is_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second save of each child kills it; the one before stays, and the next one is tried with another child."""
    process = {"parallel": "process", "every": 4, "keep": 9}
    monkeypatch.setenv(failpoints.VARIABLE, "checkpoint.packed:2:kill")
    stage = Stage(job_spec(tmp_path / "killed", checkpoint=process), phase_plans(2))
    stage.command(Control.START)
    stage.feed(stage.every_position())
    with Running(stage, save_retry_s=0) as running:
        running.join()
    assert running.error is None
    [trouble, *_] = stage.reports("trouble")
    assert "the process that packs checkpoints was killed by signal 9 (SIGKILL)" in trouble.reason
    monkeypatch.delenv(failpoints.VARIABLE)
    plain = Stage(job_spec(tmp_path / "plain"), phase_plans(2))
    train(plain)
    assert final_weights(stage) == final_weights(plain)
    for step in checkpoint.steps(stage.store, "one"):
        checkpoint.verify(stage.store, checkpoint.read(stage.store, "one", step))
