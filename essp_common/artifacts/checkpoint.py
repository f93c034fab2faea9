"""Checkpoints of trainers in the object store, readable without torch.

    trainers/<trainer>/checkpoints/<step>-<incarnation>/model.tensors ...       1. data, each file read back and hashed
    trainers/<trainer>/checkpoints/<step>-<incarnation>/manifest.json           2. sizes and SHA-256 of all, and its own
    trainers/<trainer>/latest/<number>                                          3. names it (`ownership.py`)
    older checkpoints                                                           4. removed, their manifests first

A crash between any two of these, or within one, leaves the previous checkpoint in force: what has no manifest, or is
newer than `latest` says, is not a checkpoint. Nothing older goes away before the new one, and the entry that names it,
were read back and found equal. What a failed save has written is removed again, as far as the store lets it.

One process writes at a time. It removes what it has superseded: checkpoints before its own latest one. It touches
nothing ahead of that, and no folder of another incarnation is ever written to. After the final checkpoint nothing is
saved or removed any more, unless a later run of the job asks for more epochs than the final one has. That run goes on
from the newest checkpoint before the final one, which stays until there is a final one of more epochs.

Files are packed tensors (`essp_common/tensors/packed.py`), and some are differences to a file of an earlier checkpoint.
That one stays for as long as any that needs it, and whoever looks whether a checkpoint is whole reads both.

A reader takes the newest checkpoint whose files all match its manifest. If `latest` is lost or damaged, that is the
newest whole one there is.

A step is the number of clips the trainer had consumed, over all phases; so it grows with the position, and two
runs of one job give equal steps. The master reads positions from here, hence no torch.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Annotated, Any, NamedTuple, Protocol

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, ValidationError

from essp_common.artifacts import checkpoint_files, layout
from essp_common.artifacts.checkpoint_files import REMEDY, BadCheckpoint, Data, StoredBase, StoredFile
from essp_common.artifacts.ownership import CheckpointName, Entry, LatestLog, Number, Ownership
from essp_common.artifacts.sealed import sealed, unsealed
from essp_common.errors import EsspError, Fenced, NotFound, PermanentError
from essp_common.job.changes import Place
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.trainer_spec import EncoderSpec
from essp_common.objects.port import ObjectStore
from essp_common.pb.v1.messages_pb2 import ChangeTaken, CheckpointReady
from essp_common.planning.position import Position
from essp_common.runtime.failpoints import failpoint
from essp_common.tensors.packed import Array, Base, DamagedTensors, unpack
from essp_common.validation import problems

_log = logging.getLogger(__name__)
_MANIFEST = layout.CHECKPOINT_MANIFEST

MODEL_FILE = "model.tensors"
"""The weights to evaluate and predict with."""
TRAINED_FILE = "trained.tensors"
"""The weights to go on training from, where those of `MODEL_FILE` are an average."""
OPTIMIZER_FILE = "optimizer.tensors"


class _Document(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", protected_namespaces=())


class ModelDescription(_Document):
    """All that is needed to build the network again, without its weights."""

    name: str
    """See `TrainerSpec.model`."""
    feature: str
    """What it sees."""
    layout: FeatureLayout
    """How that feature is read: decides how the input is normalised and mirrored."""
    channels: int
    """Channels of one frame of that feature."""
    frames: int = Field(1, ge=1)
    """Frames that a network of clips sees at once. Networks of single frames take any number."""
    classes: tuple[str, ...]
    """Class names by class id."""
    dropout: float
    crop: int
    """Side of the square it sees."""
    evaluation_scale: float
    """Side of the square that is cut for it, share of the frame's short side; see `AugmentSpec`."""
    views: int = 1
    """How many such squares of each frame are scored; see `AugmentSpec.evaluation_crops`."""
    independent: bool = Field(False, exclude_if=lambda independent: not independent)
    """Its classes are labels, each learned by itself: any number of them may hold."""
    encoder: EncoderSpec | None = Field(None, exclude_if=lambda encoder: encoder is None)
    """Not None: it is no network, but an encoder of descriptors, which are not cut to squares."""


def _in_range(position: Position) -> Position:
    if not (0 <= position.phase_index < 2**31 and 0 <= position.index < 2**63):
        raise ValueError("is outside of every plan")
    return position


class PhaseRecord(_Document):
    """What came out of one phase."""

    purpose: str
    """train, validation or test."""
    epoch: Number
    metrics: dict[str, float]


class Best(_Document):
    """The checkpoint with the best validation so far."""

    step: Number
    epoch: Number
    metrics: dict[str, float]


class TakenChange(_Document):
    """A change of the running job that the training took up; see `essp_common/job/changes.py`."""

    number: Number
    """Among all changes of the job, from 1 on."""
    epoch: Number
    """It trains with it from this epoch on, counted from 0,"""
    clip: Number
    """and from this clip of that epoch on."""
    fields: dict[str, Any]
    """Dotted field of the job -> its value."""

    @property
    def place(self) -> Place:
        """From where on the training has it."""
        return Place(self.epoch, self.clip)

    def message(self, trainer: str) -> ChangeTaken:
        """As a message."""
        return ChangeTaken(trainer=trainer, number=self.number, place=self.place.message())


class Rounding(_Document):
    """What a checkpoint does not hold to the last bit."""

    bits: Annotated[int, Field(ge=2, le=16)]
    """Of each number that is rounded."""
    scope: str
    """What has a range of its own; see `CheckpointSpec.scope`."""
    files: tuple[str, ...]
    """Those that have such numbers."""


class Origin(_Document):
    """The file of weights that a training began with."""

    uri: str
    """See `TrainerSpec.weights`."""
    sha256: str
    """Of all its bytes, in hexadecimal."""


class Manifest(_Document):
    """One checkpoint: where the training stood and what belongs to it."""

    job: str
    trainer: str
    step: Number
    """Clips consumed so far, over all phases."""
    incarnation: Number = 0
    """The process that wrote it, as `latest` numbers them."""
    updates: Number
    """Optimiser steps taken."""
    epoch: Number
    """The epoch whose training the weights saw last."""
    epochs: Number = 0
    """How many the job had when it was written."""
    position: Annotated[Position, AfterValidator(_in_range), PlainSerializer(Position._asdict)]
    """Where training resumes."""
    running: dict[str, float] = {}
    """Sums of the phase that is half done there."""
    fence: Number = 0
    """Of the run that it belongs to."""
    digest: str = ""
    """Of all clips before `position`, as they were seen; see `digest.py`."""
    spec_digest: str
    """Of everything in the job that decides what the weights become; a job with another digest cannot resume here."""
    origin: Origin | None = None
    """What the training began with; null: from scratch. A training that resumes does not read that file again."""
    model: ModelDescription
    metrics: dict[str, float] = {}
    """Of the last phase that was over."""
    best: Best | None = None
    history: tuple[PhaseRecord, ...] = ()
    scores: dict[str, str] = {}
    """Purpose -> key of the score table these weights gave (final checkpoints)."""
    rounding: Rounding | None = None
    """Null: it is exact, and a training that resumes from it equals one that went on."""
    approximate: tuple[Number, ...] = ()
    """Steps of the rounded checkpoints that the training resumed from until here; empty: all of it was exact."""
    changes: tuple[TakenChange, ...] = ()
    """Of the running job, as far as they concern this trainer, in order."""
    versions: dict[str, str] = {}
    created: datetime | None = None
    final: bool = False
    """These are the weights to fuse and predict with; nothing follows, unless the job is given more epochs."""
    files: tuple[StoredFile, ...] = ()

    @property
    def checkpoint(self) -> CheckpointName:
        """Which checkpoint it is."""
        return CheckpointName(self.step, self.incarnation)

    @property
    def prefix(self) -> str:
        """Where its objects lie in the job's store."""
        return layout.checkpoint(self.trainer, self.step, self.incarnation)

    @property
    def key(self) -> str:
        """Where the manifest lies in the job's store."""
        return self.prefix + _MANIFEST

    def message(self, store: ObjectStore) -> CheckpointReady:
        """What is told of it, once it is complete. `store`: of the job's output."""
        scores = self.scores.get("validation") or self.scores.get("test")
        return CheckpointReady(
            job=self.job,
            trainer=self.trainer,
            uri=store.uri(self.key),
            epoch=self.epoch,
            final=self.final,
            scores_uri=store.uri(scores) if scores else "",
            position=self.position.message(),
            step=self.step,
            digest=self.digest,
            approximate=self.approximate,
            changes=[change.message(self.trainer) for change in self.changes],
        )


class Staged(Protocol):
    """Checkpoints that a process of this node has left on their way to the store; see `staging.py`."""

    def left_by(self, process: str, incarnation: int) -> Manifest | None:
        """The newest whole one that this process has staged, if that is the one which staged here."""

    def data(self, manifest: Manifest) -> Data:
        """Its files."""


class Found(NamedTuple):
    """Where a training stands."""

    manifest: Manifest | None
    """The newest whole checkpoint; None: it never completed one."""
    lost_until: int
    """The step of a later checkpoint that was said to be complete and is not whole; 0: there is none."""


class CheckpointWriter:
    """Saves the checkpoints of one training, as its present owner; see `claim`."""

    def __init__(
        self,
        store: ObjectStore,
        trainer: str,
        found: Found,
        ownership: Ownership | None,
        ends: Collection[CheckpointName] = (),
    ) -> None:
        """`ownership`: None for a finished training, in which nothing is saved any more. `ends`: final checkpoints of
        fewer epochs, which stay until there is one of all."""
        self.found = found
        """Where the training stood when this process took it."""
        self._store = store
        self._trainer = trainer
        self._ownership = ownership
        self._newest = found.manifest
        self._ends = frozenset(ends)

    @property
    def incarnation(self) -> int:
        """The number of this process among all that have owned the training; 0: it is finished."""
        return 0 if self._ownership is None else self._ownership.incarnation

    @property
    def process(self) -> str:
        """The random name of this process, as `latest` has it; empty: the training is finished."""
        return "" if self._ownership is None else self._ownership.process

    def named(self, manifest: Manifest) -> Manifest:
        """A checkpoint of this process and this time. Raises as `save` does for one that it does not permit."""
        incarnation = self._permitted(manifest).incarnation
        return manifest.model_copy(update={"created": datetime.now(UTC), "incarnation": incarnation})

    def check(self) -> None:
        """Raises `Fenced` if another process owns the training now."""
        if self._ownership is not None:
            self._ownership.check()

    def save(self, manifest: Manifest, data: Data, keep: int) -> Manifest:
        """Store a checkpoint, make it the latest, and remove all before it but the newest `keep`, the best, and bases.

        Beside a final one, the newest before it stays, too: from that one training goes on if it gets more epochs.
        Returns the manifest with its files, incarnation and time filled in. Raises `BadCheckpoint` when the store gives
        back other bytes than it was given, `Fenced` for a process that does not own the training any more, and what the
        store raises; the previous checkpoint then stays the latest. That older ones could not be removed is no failure.
        """
        owner = self._permitted(manifest)
        manifest = self.named(manifest)
        owner.check()
        if owner.pointed == manifest.checkpoint:  # the last save succeeded, and its answer was lost
            self._newest = read(self._store, self._trainer, manifest.step)
            verify(self._store, self._newest)
            return self._newest
        try:
            manifest = write(self._store, manifest, data)
            owner.check()  # once more, since writing the data may have taken long
        except EsspError:
            with suppress(EsspError):
                remove(self._store, manifest.prefix)
            raise
        try:
            owner.point(manifest.checkpoint)
        except Fenced:
            if owner.pointed != manifest.checkpoint:  # else the next owner has read that it is the latest
                with suppress(EsspError):
                    remove(self._store, manifest.prefix)
            raise
        self._newest = manifest
        failpoint("checkpoint.latest")
        try:
            _prune(self._store, manifest, keep, self._ends)
            owner.tidy()
        except EsspError as error:
            _log.warning("older checkpoints of trainer %s could not be removed: %s", manifest.trainer, error)
        failpoint("checkpoint.pruned")
        return manifest

    def _permitted(self, manifest: Manifest) -> Ownership:
        newest = self._newest
        if self._ownership is None or (newest is not None and newest.final):
            raise Fenced(f"trainer {self._trainer} is finished: its final checkpoint stays, and nothing follows it")
        if newest is not None and manifest.step < newest.step:
            raise PermanentError(
                f"trainer {self._trainer}: checkpoint {manifest.step} is not saved, as the latest one, {newest.step}, "
                f"is ahead of it"
            )
        return self._ownership


def claim(
    store: ObjectStore,
    trainer: str,
    fence: int = 0,
    writer: str = "",
    epochs: int = 0,
    staged: Staged | None = None,
) -> CheckpointWriter:
    """Own a training from now on, with all its checkpoints. Whoever owned it is refused at its next save.

    A finished training is not taken: what it left is returned, and cannot be added to. Only a process of a later run
    that is to train more `epochs` takes it. `fence`: of the command on which this process trains. `writer`: its name,
    for people. Raises `Fenced` while one of a later run owns it, and what `read_latest` raises.

    `staged`: what lies on this node. If it is of the process that owned the training until now, and ahead of the
    latest, it is written to the store, and the entry that makes this process the owner makes it the latest, too.
    """
    latest = LatestLog(store, trainer)
    while True:
        last = latest.last()
        found = find(store, trainer)
        end = found.manifest
        if end is not None and end.final:
            if not is_short(end, epochs) or fence <= end.fence:
                return CheckpointWriter(store, trainer, found, None)
            found = Found(_before_end(store, end), 0)
        resumed = None if end is None else end.checkpoint
        newer = None
        if staged is not None and last.entry is not None and last.entry.fence <= fence:
            newer = _taken_along(store, found, staged, last.entry)
        name = None if newer is None else newer.checkpoint
        ownership = Ownership.take(latest, last, resumed, fence, writer, name)
        if ownership is None:
            if newer is not None:  # another process was first, and trains from an older one
                remove(store, newer.prefix)
        elif ownership.is_last:
            if newer is not None:
                found = Found(newer, found.lost_until if found.lost_until > newer.step else 0)
            return CheckpointWriter(store, trainer, found, ownership, _ends(store, trainer))


def _base_file(manifest: Manifest, file: StoredFile, base: StoredBase) -> tuple[str, StoredFile]:
    """Where the file lies that this one is a difference to, and what it is."""
    stored = StoredFile(name=file.name, size_bytes=base.size_bytes, sha256=base.sha256)
    return layout.checkpoint(manifest.trainer, *base.checkpoint), stored


def _taken_along(store: ObjectStore, found: Found, staged: Staged, owner: Entry) -> Manifest | None:
    """The staged checkpoint from which to go on in place of `found`, written to the store; None: there is none.

    It may have the folder of the process that staged it: that one has ended, or `staged` could not be had.
    """
    newest = staged.left_by(owner.process, owner.owner)
    if newest is None or (found.manifest is not None and newest.step <= found.manifest.step):
        return None
    try:
        return write(store, newest, staged.data(newest))
    except EsspError as error:
        _log.warning("the staged checkpoint %d of trainer %s is left out: %s", newest.step, newest.trainer, error)
        with suppress(EsspError):
            remove(store, newest.prefix)
        return None


def write(store: ObjectStore, manifest: Manifest, data: Data) -> Manifest:
    """Data, then the manifest, each read back, which makes no checkpoint the latest. Returns it with its files."""
    store.delete(manifest.key)  # left by a save of this process that failed
    manifest = manifest.model_copy(update={"files": data(store, manifest.prefix)})
    failpoint("checkpoint.data")
    store.put(manifest.key, sealed(manifest))
    if _read(store, manifest.trainer, manifest.checkpoint) != manifest:
        raise BadCheckpoint(f"{store.uri(manifest.key)} reads back differently; check the store, then start again")
    failpoint("checkpoint.manifest")
    return manifest


def verify(store: ObjectStore, manifest: Manifest) -> None:
    """Read every file that a checkpoint needs back. Raises `BadCheckpoint` naming the first that is not whole."""
    checkpoint_files.verify(store, manifest.prefix, manifest.files)
    for file in manifest.files:
        if file.base is not None:
            prefix, stored = _base_file(manifest, file, file.base)
            checkpoint_files.verify(store, prefix, [stored])


def load_files(store: ObjectStore, manifest: Manifest, names: Iterable[str] | None = None) -> dict[str, bytes]:
    """The files of a checkpoint (all, or those named), each checked against its hash. Raises `BadCheckpoint`."""
    described = {file.name: file for file in manifest.files}
    loaded: dict[str, bytes] = {}
    for name in described if names is None else names:
        if name not in described:
            raise BadCheckpoint(f"{store.uri(manifest.key)} names no {name}; {REMEDY}")
        loaded[name] = checkpoint_files.load(store, manifest.prefix, described[name])
    return loaded


def load_arrays(
    store: ObjectStore, manifest: Manifest, names: Iterable[str] | None = None, most_bytes: int | None = None
) -> dict[str, dict[str, Array]]:
    """The arrays of the files of a checkpoint (all, or those named), differences resolved. `most_bytes`: of the arrays
    of each (`tensors/packed.py`). Raises `BadCheckpoint`."""
    described = {file.name: file for file in manifest.files}
    loaded = {}
    for name, data in load_files(store, manifest, names).items():
        file, base = described[name], None
        try:
            if file.base is not None:
                needed = checkpoint_files.load(store, *_base_file(manifest, file, file.base))
                base = Base(file.base.name, unpack(needed, None, most_bytes))
            loaded[name] = unpack(data, base, most_bytes)
        except DamagedTensors as error:
            raise BadCheckpoint(f"{store.uri(manifest.prefix + name)} cannot be read: {error}; {REMEDY}") from error
    return loaded


def read(store: ObjectStore, trainer: str, step: int) -> Manifest:
    """The manifest of one checkpoint. Raises `BadCheckpoint` when it is missing or cannot be read."""
    named = [name for name in _complete(_objects(store, trainer)) if name.step == step]
    if not named:
        where = store.uri(layout.checkpoints(trainer))
        raise BadCheckpoint(f"{where}: checkpoint {step} is missing, or was never completed; {REMEDY}")
    return _read(store, trainer, named[-1])


def read_named(store: ObjectStore, trainer: str, name: CheckpointName) -> Manifest:
    """The manifest of the checkpoint of this incarnation. Raises `BadCheckpoint` as `read` does."""
    return _read(store, trainer, name)


def is_short(manifest: Manifest, epochs: int) -> bool:
    """Whether it ends a training of fewer epochs than these."""
    return manifest.final and manifest.epochs < epochs


def read_latest(store: ObjectStore, trainer: str, epochs: int = 0) -> Manifest | None:
    """The newest whole checkpoint, or None if the trainer never completed one. Every byte of it is read.

    `epochs`: how many the training is to have. If it ended with fewer, the checkpoint from which it goes on is given.

    Should the latest be damaged or incomplete, the newest older one that is whole is taken; should `latest` itself be
    damaged or lost, the newest one that is whole. A warning says so. Raises `BadCheckpoint` when there were checkpoints
    and none is whole: training from scratch would lose work unnoticed.
    """
    manifest = find(store, trainer).manifest
    return _before_end(store, manifest) if manifest is not None and is_short(manifest, epochs) else manifest


def find(store: ObjectStore, trainer: str) -> Found:
    """`read_latest`, with what was lost."""
    latest = LatestLog(store, trainer)
    while True:
        last = latest.last()
        newest = None if last.entry is None else last.entry.checkpoint
        if last.entry is not None and newest is None:
            return Found(None, 0)  # whatever is there was never said to be complete
        if newest is not None:
            try:
                return Found(_whole(store, trainer, newest), 0)
            except BadCheckpoint as error:
                problem = f"checkpoint {newest.step} of trainer {trainer} is left out: {error}"
        else:
            problem = f"{latest.uri} {'is damaged' if last.number else 'is lost'}"
        objects = _objects(store, trainer)
        if latest.entries.newest() == last.number:  # else it was superseded, and removed, while it was read
            break
    if newest is None and not _complete(objects):
        return Found(None, 0)
    _log.warning("%s; looking for the newest whole checkpoint", problem)
    before = [name for name in _complete(objects) if newest is None or (name.step <= newest.step and name != newest)]
    for name in reversed(before):
        try:
            manifest = _whole(store, trainer, name)
        except BadCheckpoint as error:
            _log.warning("checkpoint %d of trainer %s is left out: %s", name.step, trainer, error)
        else:
            _log.warning("trainer %s stands at checkpoint %d, the newest whole one", trainer, name.step)
            said = max(name.step for name, _ in objects) if newest is None else newest.step
            return Found(manifest, said if said > name.step and not manifest.final else 0)
    raise BadCheckpoint(f"{latest.uri}: of the checkpoints none is whole; {REMEDY}")


def latest_name(store: ObjectStore, trainer: str) -> CheckpointName | None:
    """The checkpoint that was last said to be complete, whole or not; None when that cannot be known."""
    entry = LatestLog(store, trainer).last().entry
    return None if entry is None else entry.checkpoint


def complete(store: ObjectStore, trainer: str) -> list[CheckpointName]:
    """All checkpoints that have a manifest, ascending."""
    return _complete(_objects(store, trainer))


def steps(store: ObjectStore, trainer: str) -> list[int]:
    """The steps of all checkpoints that have a manifest, ascending."""
    return sorted({name.step for name in complete(store, trainer)})


def _read(store: ObjectStore, trainer: str, name: CheckpointName) -> Manifest:
    key = layout.checkpoint(trainer, *name) + _MANIFEST
    try:
        manifest = unsealed(store.get(key), Manifest)
    except NotFound as error:
        raise BadCheckpoint(f"{store.uri(key)} is missing: that checkpoint was never completed; {REMEDY}") from error
    except ValueError as error:
        reason = problems(error, Manifest)[0] if isinstance(error, ValidationError) else error
        raise BadCheckpoint(f"{store.uri(key)} is not a manifest: {reason}; {REMEDY}") from error
    if (manifest.trainer, manifest.checkpoint) != (trainer, name):
        raise BadCheckpoint(f"{store.uri(key)} belongs to another checkpoint, {manifest.key}; {REMEDY}")
    return manifest


def _whole(store: ObjectStore, trainer: str, name: CheckpointName) -> Manifest:
    """A checkpoint every byte of which was read. Raises `BadCheckpoint`."""
    manifest = _read(store, trainer, name)
    verify(store, manifest)
    return manifest


def _before_end(store: ObjectStore, end: Manifest) -> Manifest:
    """The newest whole checkpoint from which a training that has ended can go on."""
    for name in reversed(_complete(_objects(store, end.trainer))):
        try:
            if not (manifest := _read(store, end.trainer, name)).final:
                verify(store, manifest)
                return manifest
        except BadCheckpoint as error:
            _log.warning("checkpoint %d of trainer %s is left out: %s", name.step, end.trainer, error)
    raise BadCheckpoint(
        f"trainer {end.trainer} has ended after {end.epochs} epochs, and no whole checkpoint is left to go on "
        "from; start with --fresh, or train more epochs in another output"
    )


def _ends(store: ObjectStore, trainer: str) -> list[CheckpointName]:
    """All final checkpoints."""
    found = []
    for name in _complete(_objects(store, trainer)):
        with suppress(BadCheckpoint):
            if _read(store, trainer, name).final:
                found.append(name)
    return found


def _objects(store: ObjectStore, trainer: str) -> list[tuple[CheckpointName, str]]:
    """Checkpoint and name of every object of a checkpoint, whole or not. What else lies there is nothing of ours."""
    keys = (layout.checkpoint_object(info.key) for info in store.list(layout.checkpoints(trainer)))
    return [(CheckpointName(step, incarnation), name) for step, incarnation, name in filter(None, keys)]


def _complete(objects: Iterable[tuple[CheckpointName, str]]) -> list[CheckpointName]:
    """The checkpoints that have a manifest, ascending."""
    return sorted(checkpoint for checkpoint, name in objects if name == _MANIFEST)


def _prune(store: ObjectStore, newest: Manifest, keep: int, ends: Collection[CheckpointName]) -> None:
    """Remove what `newest` has superseded: older checkpoints, and what was never completed before it.

    `ends`: final checkpoints of fewer epochs, superseded only by a final one.
    """
    found = _objects(store, newest.trainer)
    complete = [name for name in _complete(found) if name <= newest.checkpoint]
    spared = set(complete[-keep:])
    if newest.final:
        spared.update([name for name in complete if name < newest.checkpoint and name not in ends][-1:])
    else:
        spared.update(ends)
    if newest.best is not None:
        spared.update([name for name in complete if name.step == newest.best.step][-1:])
    spared |= {base for name in spared for base in _bases(store, newest, name)}
    superseded = {name for name, _ in found if name < newest.checkpoint}
    for name in sorted(superseded - spared, reverse=True):  # none goes after what it needs
        remove(store, layout.checkpoint(newest.trainer, *name))


def _bases(store: ObjectStore, newest: Manifest, name: CheckpointName) -> set[CheckpointName]:
    """The checkpoints that one of them needs. They need no others."""
    try:
        manifest = newest if name == newest.checkpoint else _read(store, newest.trainer, name)
    except BadCheckpoint:  # nothing helps it
        return set()
    return {file.base.checkpoint for file in manifest.files if file.base is not None}


def remove(store: ObjectStore, prefix: str) -> None:
    """Remove a checkpoint, its manifest first, so that it never looks whole while it is being removed.

    `prefix`: where its objects lie.
    """
    store.delete(prefix + _MANIFEST)
    for info in list(store.list(prefix)):
        store.delete(info.key)
