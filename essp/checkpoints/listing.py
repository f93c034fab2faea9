"""Lists the checkpoints in a job's output."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime

from essp_common.artifacts import checkpoint, layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.manifest import Manifest
from essp_common.artifacts.ownership import CheckpointName
from essp_common.errors import NotFound
from essp_common.objects.port import ObjectStore

_UNFINISHED = "it is being written, or its writer was killed: it has no manifest yet, and does not count"


@dataclass(frozen=True, slots=True)
class Listed:
    """A checkpoint in a listing."""

    trainer: str
    step: int
    """Number of clips that the trainer had consumed."""
    incarnation: int
    epoch: int | None
    """The last epoch of its weights, counted from 1; None if the manifest is unreadable."""
    updates: int | None
    bytes: int
    """Stored size of all its files."""
    created: datetime | None
    latest: bool
    """Whether training resumes from it."""
    best: bool
    """Whether it has the best validation of all checkpoints that the latest one knows."""
    final: bool
    weights_of: int | None
    """Step of the checkpoint with the best validation, whose weights a final one contains; None: it has its own
    weights."""
    metrics: dict[str, float]
    needs: tuple[int, ...]
    """Steps of the checkpoints that its files are differences from; empty: it is self-contained."""
    bits: int
    """Bits per value if values were rounded; 0: exact."""
    problem: str
    """The reason why it cannot be used; empty if no problem was found without reading its files."""

    @property
    def name(self) -> CheckpointName:
        """Its name among the checkpoints of its trainer."""
        return CheckpointName(self.step, self.incarnation)


def listed(store: ObjectStore, trainer: str = "") -> list[Listed]:
    """All checkpoints or those of one trainer, oldest first. Raises `NotFound` if there are none."""
    found = [each for name in trainers(store) if trainer in ("", name) for each in _of(store, name)]
    if not found:
        whose = f"trainer {trainer}" if trainer else "a training"
        raise NotFound(f"{store.uri('trainers')} holds no checkpoint of {whose}; give the output of a training job")
    return found


def trainers(store: ObjectStore) -> list[str]:
    """Names of all trainers that have written checkpoint files here, sorted."""
    return sorted({trainer for trainer, _ in _objects(store)})


def at(store: ObjectStore, trainer: str, step: int | None = None) -> Manifest:
    """The checkpoint of a trainer at a step; by default the newest complete one.

    Raises `NotFound`, with the available steps, and `BadCheckpoint`.
    """
    if step is None:
        manifest = checkpoint.read_latest(store, trainer)
        if manifest is None:
            raise NotFound(f"trainer {trainer} never completed a checkpoint")
        return manifest
    there = checkpoint.steps(store, trainer)
    if step not in there:
        raise NotFound(f"trainer {trainer} has no checkpoint {step}; there are {', '.join(map(str, there)) or 'none'}")
    return checkpoint.read(store, trainer, step)


def weights_of(manifest: Manifest) -> int | None:
    """Step of the checkpoint whose weights this one contains; None if it has its own."""
    return manifest.best.step if manifest.final and manifest.best is not None else None


def faults(store: ObjectStore, each: Listed) -> str | None:
    """Read every byte of a checkpoint. Returns the reason why it is incomplete, or an empty string.

    Returns None if it is not a checkpoint at present, because a running job is writing it or has removed it since the
    listing.
    """
    if _is_changing(store, each):
        return None
    try:
        checkpoint.verify(store, checkpoint.read_named(store, each.trainer, each.name))
    except BadCheckpoint as error:
        return None if _is_changing(store, each) else str(error)
    return ""


def _is_changing(store: ObjectStore, each: Listed) -> bool:
    """Whether it is being written or removed, so that a missing manifest does not mean damage.

    In that case it was never recorded as complete, or some of its objects have disappeared since the listing.
    """
    # read first: every checkpoint recorded as complete by now already has its manifest
    newest = checkpoint.latest_name(store, each.trainer)
    if each.name in checkpoint.complete(store, each.trainer) or each.name == newest:
        return False
    there = sum(size for name, size in _of_trainer(store, each.trainer) if name == each.name)
    return newest is None or each.name > newest or there != each.bytes


def _of(store: ObjectStore, trainer: str) -> Iterator[Listed]:
    newest = checkpoint.latest_name(store, trainer)
    sizes: dict[CheckpointName, int] = {}
    for name, size in _of_trainer(store, trainer):
        sizes[name] = sizes.get(name, 0) + size
    begun = {name for name in sizes if newest is None or name > newest} - set(checkpoint.complete(store, trainer))
    manifests: dict[CheckpointName, Manifest | str] = {
        name: _UNFINISHED if name in begun else _manifest(store, trainer, name) for name in sizes
    }
    latest = manifests.get(newest) if newest is not None else None
    best = latest.best.step if isinstance(latest, Manifest) and latest.best is not None else None
    for name in sorted(sizes):
        found = manifests[name]
        read = found if isinstance(found, Manifest) else None
        yield Listed(
            trainer=trainer,
            step=name.step,
            incarnation=name.incarnation,
            epoch=None if read is None else read.epoch + 1,
            updates=None if read is None else read.updates,
            bytes=sizes[name],
            created=None if read is None else read.created,
            latest=name == newest,
            best=name.step == best,
            final=read is not None and read.final,
            weights_of=None if read is None else weights_of(read),
            metrics={} if read is None else read.metrics,
            needs=() if read is None else tuple(sorted({f.base.step for f in read.files if f.base is not None})),
            bits=0 if read is None or read.rounding is None else read.rounding.bits,
            problem=found if isinstance(found, str) else "",
        )


def _manifest(store: ObjectStore, trainer: str, name: CheckpointName) -> Manifest | str:
    try:
        return checkpoint.read_named(store, trainer, name)
    except BadCheckpoint as error:
        return str(error)


def _of_trainer(store: ObjectStore, trainer: str) -> Iterator[tuple[CheckpointName, int]]:
    for info in store.list(layout.checkpoints(trainer)):
        if (found := layout.checkpoint_object(info.key)) is not None:
            yield CheckpointName(found[0], found[1]), info.size_bytes


def _objects(store: ObjectStore) -> Iterator[tuple[str, str]]:
    for info in store.list(layout.TRAINERS):
        if layout.checkpoint_object(info.key) is not None:
            yield info.key.split("/")[1], info.key
