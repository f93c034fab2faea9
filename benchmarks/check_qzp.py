"""`python -m benchmarks.check_qzp`: the combinations of Check-QZP on one training, under a loaded disk.

Q rounds to 8 bits, Z compresses by gzip, P writes in a child process; the next checkpoint waits for the last. Q is
measured with one range over all numbers of a file, as the paper prints it, and with one for each output channel, with
arrays of one dimension exact. Everything but the combination is the same: a checkpoint an epoch of the training of
`image_training.py`, each flushed to the disk (`fsync`). The paper's baseline is `torch.save`, and so is this one's.

    wait       seconds that the training waited for all its checkpoints
    training   seconds from the first step until the last checkpoint was on the disk
    bytes      of a checkpoint, over those of its numbers in memory
    accuracy   on test images, of the weights in the last checkpoint
    resumed    the same after one more epoch from the last checkpoint, weights and momentum as they were restored

Prints a table, and writes `check_qzp.json` to `--results`. Each combination trains in turn, `--rounds` times; times are
the median. docs/check-qzp.md has a run beside the paper's numbers.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from benchmarks.disk_load import loaded
from benchmarks.hogwild import Images, Labels, made_up, read_images
from benchmarks.image_training import BATCH, ImageTraining, State
from essp_common.learning.models import arrays_of, as_tensors
from essp_common.quantities import size
from essp_common.runtime.process import cpu_count
from essp_common.tensors.packed import Packing, Scope, pack, unpack
from essp_trainer.checkpoints.state_memory import StateMemory

RESULTS = Path(__file__).with_name("results")


@dataclass(frozen=True, slots=True)
class Way:
    """One combination."""

    name: str
    scope: Scope = "channel"
    """With Q."""

    @property
    def packing(self) -> Packing | None:
        """How files are written; None: by `torch.save`."""
        codec = "gzip" if "Z" in self.name else "none"
        if "Q" in self.name:
            return Packing(8, self.scope, self.scope == "channel", codec, planes=False)
        return Packing(codec=codec, planes=False) if "Z" in self.name else None

    def __str__(self) -> str:
        return f"{self.name}, {self.scope}" if "Q" in self.name else self.name


WAYS = (
    *(Way(name) for name in ("none", "Z", "P", "ZP")),
    *(Way(name, scope) for name in ("Q", "QZ", "QP", "QZP") for scope in ("global", "channel")),
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Of a training."""

    wait_s: float
    training_s: float
    share: float
    """Bytes of a checkpoint over those of its numbers."""
    accuracy: float
    resumed: float


class Saver:
    """Saves a training where it waits, or by a child process that is kept."""

    def __init__(self, way: Way, folder: Path) -> None:
        self._packing = way.packing
        self._folder = folder
        self._memory = StateMemory()
        self._child: tuple[multiprocessing.process.BaseProcess, Connection] | None = None
        if "P" in way.name:
            context = multiprocessing.get_context("spawn")
            here, there = context.Pipe()
            process = context.Process(target=_child, args=(there, self._packing, folder), daemon=True)
            process.start()
            there.close()
            here.recv()  # it has started
            self._child = process, here
        self._writing = False

    def save(self, training: ImageTraining) -> None:
        """Returns when the training may go on."""
        self.finish()
        if self._child is None:
            _write(training.state(), self._packing, self._folder)
            return
        self._memory.take(training.tensors())
        self._child[1].send((os.getpid(), self._memory.fd, self._memory.size, self._memory.places))
        self._writing = True

    def finish(self) -> None:
        """Wait for the one that is being written."""
        if self._child is not None and self._writing:
            self._child[1].recv()
            self._writing = False

    def close(self) -> None:
        """End the child."""
        if self._child is not None:
            process, connection = self._child
            connection.close()
            process.join()
        self._memory.close()


def _child(connection: Connection, packing: Packing | None, folder: Path) -> None:
    import mmap

    from essp_trainer.checkpoints.state_memory import arrays_at

    torch.set_num_threads(1)
    connection.send(None)
    while True:
        try:
            parent, fd, length, places = connection.recv()
        except EOFError:
            return
        with open(f"/proc/{parent}/fd/{fd}", "r+b") as file:
            memory = mmap.mmap(file.fileno(), length)
        _write(arrays_at(memory, places), packing, folder)
        connection.send(None)


def _write(state: Mapping[str, Mapping[str, Any]], packing: Packing | None, folder: Path) -> None:
    """All files, in place of those before, flushed to the disk."""
    for file, arrays in state.items():
        if packing is None:
            buffer = BytesIO()
            torch.save(as_tensors(arrays), buffer)
            data: bytes | memoryview = buffer.getbuffer()
        else:
            data = pack(arrays, packing)
        with open(folder / f"{file}.new", "wb") as target:
            target.write(data)
            target.flush()
            os.fsync(target.fileno())
        (folder / f"{file}.new").replace(folder / file)


def _read(packing: Packing | None, folder: Path, files: list[str]) -> State:
    if packing is None:
        return {file: arrays_of(torch.load(folder / file)) for file in files}
    return {file: unpack((folder / file).read_bytes()) for file in files}


@dataclass(frozen=True, slots=True)
class Course:
    """What is trained."""

    train: tuple[Images, Labels]
    test: tuple[Images, Labels]
    epochs: int

    @property
    def steps(self) -> int:
        """Of an epoch."""
        return len(self.train[1]) // BATCH

    def run(self, way: Way, folder: Path) -> Outcome:
        """One training by one combination."""
        training, saver = ImageTraining(*self.train), Saver(way, folder)
        wait_s, began_s = 0.0, time.perf_counter()
        for _ in range(self.epochs):
            for _ in range(self.steps):
                training.step()
            asked_s = time.perf_counter()
            saver.save(training)
            wait_s += time.perf_counter() - asked_s
        asked_s = time.perf_counter()
        saver.finish()
        ended_s = time.perf_counter()
        saver.close()
        state = training.state()
        restored = _read(way.packing, folder, list(state))
        resumed = ImageTraining(*self.train)
        resumed.load(restored, training.steps)
        accuracy = resumed.accuracy(*self.test)
        for _ in range(self.steps):
            resumed.step()
        numbers = sum(array.nbytes for arrays in state.values() for array in arrays.values())
        stored = sum((folder / file).stat().st_size for file in state)
        return Outcome(
            wait_s + ended_s - asked_s, ended_s - began_s, stored / numbers, accuracy, resumed.accuracy(*self.test)
        )


def main(
    images: Annotated[str, typer.Option(help="A folder or an archive with train and test; default: made up.")] = "",
    count: Annotated[int, typer.Option(help="Training images.", min=BATCH)] = 640,
    epochs: Annotated[int, typer.Option(help="Checkpoints of a training.", min=1)] = 3,
    rounds: Annotated[int, typer.Option(help="How often each combination is measured.", min=1)] = 1,
    jobs: Annotated[int, typer.Option(help="Threads that read and write at random beside it; 0: none.", min=0)] = 64,
    folder: Annotated[Path | None, typer.Option(help="A folder on the disk to write to.")] = None,
    results: Annotated[Path, typer.Option(help="Where the results are written.")] = RESULTS,
) -> None:
    """Measure, print a table as it comes, write JSON."""
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        root = Path(temporary)
        if images:
            train, test = (read_images(images, root, part) for part in ("train", "test"))
        else:
            train, test = made_up(count, 0), made_up(400, 1)
        step = max(1, len(test[1]) // 400)
        spread = max(1, len(train[1]) // count)
        course = Course(
            (train[0][::spread][:count], train[1][::spread][:count]),
            (test[0][::step][:400], test[1][::step][:400]),
            epochs,
        )
        found: dict[str, list[Outcome]] = {str(way): [] for way in WAYS}
        with loaded(root, jobs=jobs) as done:
            began_s = time.perf_counter()
            for _ in range(rounds):
                for way in WAYS:
                    outcome = course.run(way, root)
                    found[str(way)].append(outcome)
                    print(_line(str(way), outcome), flush=True)
            per_s = done.value / (time.perf_counter() - began_s)
    document = {
        "rows": {name: [asdict(one) for one in runs] for name, runs in found.items()},
        "facts": {"images": images or "made up", "count": len(course.train[1]), "epochs": epochs, "steps": course.steps}
        | {"cpus": cpu_count(), "load": os.getloadavg()[0], "disk_operations_per_s": round(per_s), "jobs": jobs},
    }
    results.mkdir(parents=True, exist_ok=True)
    (results / "check_qzp.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"beside it, {size(per_s * 4096)} a second in blocks of 4 KiB")
    for name, runs in found.items():
        waits = statistics.median(one.wait_s for one in runs) / statistics.median(o.wait_s for o in found["none"])
        print(f"{name:12} waits {waits:6.1%} of torch.save")


def _line(name: str, outcome: Outcome) -> str:
    return (
        f"{name:12} wait {outcome.wait_s:7.2f} s, training {outcome.training_s:7.1f} s, bytes {outcome.share:6.1%}, "
        f"accuracy {outcome.accuracy:6.1%}, resumed {outcome.resumed:6.1%}"
    )


if __name__ == "__main__":
    typer.run(main)
