"""What checkpoints cost a training: the same steps without checkpoints, and with each way to save them.

Each run makes `steps` steps, and saves after every `every` of them. Its time ends with its last step or checkpoint. The
store may take longer; that time is reported separately. All ways take turns, run after run. Everything is written to a
separate folder, which is removed after each run; before that, the newest checkpoint is checked.

The model, and so the checkpoint, is either real (`Training`), or random bytes with a simulated accelerator.
"""

from __future__ import annotations

import os
import platform
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from essp.bench.io import Tell
from essp.bench.places import remove
from essp.bench.results import Column, Results, Row, Spread
from essp.bench.saving import MODES, TRAINER, Background, Burst, Direct, Files, Mode, Nothing, Raw, Saver
from essp_common.artifacts.checkpoint import latest_name
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE
from essp_common.errors import PermanentError
from essp_common.objects.port import ObjectStore
from essp_common.quantities import counted, percent, size
from essp_common.runtime.cores import cpu_count
from essp_common.runtime.temporary import TemporaryFolder

_COUNTS = 0.05
"""A larger share of the time is worth mentioning."""


@dataclass(frozen=True, slots=True)
class CheckpointOptions:
    """What is measured."""

    modes: tuple[Mode, ...] = MODES
    steps: int = 100
    every: int = 20
    runs: int = 3
    buffer_bytes: int = 0
    """Capacity of the burst buffer; 0: enough for the most checkpoints that it can hold."""


class Trainee:
    """The trained model, and the files of its checkpoints."""

    def __init__(self, name: str, step: Callable[[], object], checkpoint: Callable[[], Files]) -> None:
        """`step`: makes one step. `checkpoint`: returns the files, which do not change afterwards."""
        self.name = name
        self.step = step
        self.checkpoint = checkpoint


def random_files(size_bytes: int) -> Callable[[], Files]:
    """Makes checkpoints of `size_bytes`, a third of it weights, as with Adam; all are different and incompressible."""
    content = os.urandom(size_bytes)  # generated now, not while the first one is saved
    weights = size_bytes // 3
    made = 0

    def files() -> Files:
        nonlocal made
        made += 1
        mark = made.to_bytes(8, "little")
        parts = {MODEL_FILE: content[:weights], OPTIMIZER_FILE: content[weights:]}
        return {name: (mark + data[8:])[: len(data)] for name, data in parts.items()}

    return files


@dataclass(frozen=True, slots=True)
class Saved:
    """The measurements of a run."""

    training_s: float
    """Time until the training ended."""
    drained_s: float
    """Time from then until everything was in the store."""
    held_s: Sequence[float]
    """How long the training waited for each checkpoint."""
    checkpoint_bytes: int
    passed_by: int = 0
    """Checkpoints for which the burst buffer had no room."""


class CheckpointBenchmark:
    """Runs all ways to save. `results` returns the measurements so far at any time, even after an interruption."""

    def __init__(
        self,
        store: ObjectStore,
        fast: Path,
        trainee: Trainee,
        options: CheckpointOptions,
        facts: Mapping[str, object],
        mark: Callable[[str], None] = lambda what: None,
    ) -> None:
        """`fast`: where a folder for the burst buffer is created. `mark`: is called with a description of each
        event."""
        self._store = store
        self._fast = fast
        self._trainee = trainee
        self._options = options
        self._facts = facts
        self._mark = mark
        self._saved: dict[Mode, list[Saved]] = {mode: [] for mode in options.modes}

    def run(self, stopped: Callable[[], bool], tell: Tell) -> None:
        """Run everything, or until stopped. Raises what the stores raise."""
        for run in range(self._options.runs):
            for number, mode in enumerate(self._options.modes):
                tell(run, number, 0)
                self._mark(f"{mode} begins")
                saved = self._once(mode, stopped, partial(tell, run, number))
                if saved is None:
                    return
                self._saved[mode].append(saved)

    def results(self) -> Results:
        """The results so far."""
        rows = [Row({"checkpoints": mode}, _values(runs)) for mode, runs in self._saved.items() if runs]
        columns = (
            Column("training_s", "training, s", 2),
            Column("held_s", "waits for each, s", 3),
            Column("bytes_per_s", "MB/s", 0, 1e6),
            Column("drained_s", "in the store after, s", 2),
        )
        made = next((runs[-1] for mode, runs in self._saved.items() if runs and mode != "none"), None)
        facts = {
            **self._facts,
            "learner": self._trainee.name,
            "steps": self._options.steps,
            "every": self._options.every,
            "checkpoint_bytes": made.checkpoint_bytes if made else 0,
            "cores": cpu_count(),
            "machine": platform.platform(),
        }
        interrupted = any(len(runs) < self._options.runs for runs in self._saved.values())
        medians = {mode: _medians(runs) for mode, runs in self._saved.items() if runs}
        said = sentences(medians, self._options)
        if passed_by := max((one.passed_by for runs in self._saved.values() for one in runs), default=0):
            said.append(
                f"the burst buffer had no room for {counted(passed_by, 'checkpoint')}, which went to the store "
                "directly; give a larger --buffer-size, or a --buffer on a disk with more room."
            )
        return Results("checkpoint", facts, ("checkpoints",), columns, rows, said, interrupted)

    def _once(self, mode: Mode, stopped: Callable[[], bool], tell: Callable[[int], None]) -> Saved | None:
        """A run; None if it was stopped."""
        with _own(self._store) as store, TemporaryFolder("bench", str(self._fast)) as fast:
            saver, begin_s, held_s, bytes_, saved = self._saver(mode, store, fast), time.perf_counter(), [], 0, 0
            try:
                for step in range(1, self._options.steps + 1):
                    if stopped():
                        return None
                    self._trainee.step()
                    tell(step)
                    if mode != "none" and step % self._options.every == 0:
                        asked_s = time.perf_counter()
                        self._mark(f"step {step}")
                        files = self._trainee.checkpoint()
                        bytes_ = sum(map(len, files.values()))
                        saver.save(step, files)
                        saved = step
                        held_s.append(time.perf_counter() - asked_s)
                trained_s = time.perf_counter()
                self._mark("trained")
                saver.finish()
                drained_s = time.perf_counter()
                pointed = held_s and mode != "raw"
                if pointed and ((last := latest_name(store, TRAINER)) is None or last.step != saved):
                    raise PermanentError(f"{store.uri('step')}: no checkpoint arrived; this is a defect of ESSP")
            finally:
                saver.abandon()
        return Saved(trained_s - begin_s, drained_s - trained_s, held_s, bytes_, saver.passed_by)

    def _saver(self, mode: Mode, store: ObjectStore, fast: str) -> Saver:
        if mode == "raw":
            return Raw(store)
        if mode == "direct":
            return Direct(store)
        if mode == "background":
            return Background(store)
        if mode == "burst":
            return Burst(store, fast, self._options.buffer_bytes)
        return Nothing()


@contextmanager
def _own(store: ObjectStore) -> Iterator[ObjectStore]:
    """A new folder, which is removed afterwards."""
    folder = f"essp-bench-{uuid.uuid4().hex[:12]}"
    try:
        yield store.below(folder)
    finally:
        remove(store, folder)


@dataclass(frozen=True, slots=True)
class Medians:
    """The median measurements of one way to save."""

    training_s: float
    held_s: float
    """How long the training waited for each checkpoint."""
    drained_s: float
    checkpoint_bytes: int


def _medians(runs: Sequence[Saved]) -> Medians:
    values = {name: spread.median for name, spread in _values(runs).items()}
    return Medians(values["training_s"], values.get("held_s", 0.0), values["drained_s"], runs[-1].checkpoint_bytes)


def _values(runs: Sequence[Saved]) -> dict[str, Spread]:
    values = {
        "training_s": Spread.of([one.training_s for one in runs]),
        "drained_s": Spread.of([one.drained_s for one in runs]),
    }
    held = [sum(one.held_s) / len(one.held_s) for one in runs if one.held_s]
    if held:
        values["held_s"] = Spread.of(held)
        values["bytes_per_s"] = Spread.of([runs[-1].checkpoint_bytes / one for one in held])
    return values


def sentences(found: Mapping[Mode, Medians], options: CheckpointOptions) -> list[str]:
    """What checkpoints cost, and the limiting factor."""
    said = [sentence for mode in ("direct", "background", "burst") if (sentence := _cost(found, mode))]
    if "direct" in found and "raw" in found:
        raw, direct = found["raw"], found["direct"]
        said.append(
            f"the store takes the same bytes alone at {raw.checkpoint_bytes / raw.held_s / 1e6:.0f} MB/s; a direct "
            f"checkpoint, which is read back, takes {direct.held_s / raw.held_s:.2g}x as long."
        )
    if "direct" in found and "burst" in found:
        gain = found["direct"].training_s / found["burst"].training_s
        said.append(f"the burst buffer makes the training {gain:.2g}x as fast as direct checkpoints.")
    return [*said, *_binds(found, options)]


def _cost(found: Mapping[Mode, Medians], mode: Mode) -> str:
    if mode not in found or "none" not in found:
        return ""
    none_s, mine = found["none"].training_s, found[mode]
    later = f"; the store has everything {mine.drained_s:.1f} s later" if mine.drained_s > 0.05 else ""
    return (
        f"{mode}: checkpoints of {size(mine.checkpoint_bytes)} add {mine.training_s - none_s:.2f} s to {none_s:.2f} s "
        f"({_more(mine.training_s / none_s)}){later}."
    )


def _more(ratio: float) -> str:
    return percent(ratio - 1, 0) if ratio < 10 else f"{ratio:.0f}x"


def _binds(found: Mapping[Mode, Medians], options: CheckpointOptions) -> Iterator[str]:
    """Compares the store with the time between two checkpoints."""
    none, direct = found.get("none"), found.get("direct")
    if none is None or direct is None or not direct.held_s:
        return
    between_s = none.training_s * options.every / options.steps
    store = (
        f"the store takes {direct.held_s:.2f} s a checkpoint ({direct.checkpoint_bytes / direct.held_s / 1e6:.0f} MB/s)"
    )
    if direct.training_s < (1 + _COUNTS) * none.training_s:
        yield f"the accelerator is the limiting factor: {store}, and there are {between_s:.2f} s between two."
    elif direct.held_s <= between_s:
        yield (
            f"the store is the limiting factor of direct checkpoints: {store}. There are {between_s:.2f} s between "
            "two, so that it can keep up with a training that does not wait for it."
        )
    else:
        yield (
            f"the store is the limiting factor: {store}, and there are only {between_s:.2f} s between two. No buffer "
            "hides that for long: save less often, or to a faster store."
        )
