"""`essp.Mix`: batches of several loaders, by weight.

    mix = essp.Mix({kinetics: 0.7, own: 0.3})
    for batch in mix:                     # one epoch
        step(batch.frames, batch.labels)  # labels are indices into mix.classes

Each batch is of one loader: a batch is a piece of memory, which a loader has filled, and perhaps copied to a device,
ahead of the loop; to mix clips within batches, everything would be copied again. So over some batches the shares of
clips are the weights, if the batch sizes are equal.

Which loader the next batch comes from is a pure function of seed, epoch and number of the batch. All ranks draw the
same loader, so that batches have the same shape everywhere. Loaders go round: where one reaches the end of its epoch,
its next epoch begins, and no clip is skipped, whatever the epochs of the mix.
"""

from __future__ import annotations

import hashlib
import math
import operator
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import accumulate
from types import TracebackType
from typing import Any, Self

import torch
from torch.utils.data import IterableDataset

from essp.api.arguments import function_of, whole_number
from essp.api.epochs import Batch, Epochs, iteration_over, refuse_workers
from essp.api.loader import Loader
from essp_common.counter_rng import CounterRng
from essp_common.errors import ConfigError, EsspError
from essp_common.job.fields import MOST_EPOCHS
from essp_common.validation import shown

_WORD = 1 << 64
_STREAM = 0x6D6978 << 32
"""Sets these random numbers apart from those of plans."""


class Mix(IterableDataset[Batch]):
    """Batches of several loaders, by weight. Each `for` over it is one epoch.

        mix = essp.Mix({kinetics: 0.7, own: 0.3})
        if os.path.exists("checkpoint.pt"):
            mix.load_state_dict(torch.load("checkpoint.pt")["mix"])
        for epoch in range(mix.epoch, 10):
            for batch in mix:
                loss = step(batch.frames, batch.labels)
                torch.save({"model": model.state_dict(), "mix": mix.state_dict()}, "checkpoint.pt")

    Each batch is of one loader, drawn at random: `batch.meta["loader"]` says which, by its place in the mix. Labels are
    indices into `mix.classes`, the classes of all loaders, or -1 for a record without one. Where a loader has shown
    all of its clips, its next epoch begins, so small sets are repeated more often than large ones if their weights say
    so.

    `state_dict` is the position of the mix and of all its loaders: call it after the step, and the current batch counts
    as done. After a `break`, the next `for` is the next epoch of the mix, and its loaders continue where they are.

    With several ranks, each process makes the same loaders and the same mix. All of them draw the same loader for a
    step. Give `DataLoader(mix, batch_size=None)` where a framework wants a `DataLoader`.
    """

    def __init__(self, loaders: Mapping[Epochs, float], *, batches: int | None = None, seed: int = 0) -> None:
        """Check the loaders; nothing is started before the first batch is requested.

        loaders: loader -> weight, the probability of its batches; weights need not add up to 1. The clips of all
            loaders have the same size and length. A loader belongs to one mix, and is not iterated over otherwise.
        batches: batches of an epoch; default: as many as an epoch of each loader has, added up.
        seed: of the order in which loaders are drawn.

        Raises `ConfigError`: `error.field` is the argument to change.
        """
        if not isinstance(loaders, Mapping) or not loaders:
            raise ConfigError(
                f"must be a mapping of loaders to weights, such as {{a: 0.7, b: 0.3}}, got {shown(loaders)}",
                field="loaders",
                code="type",
            )
        for loader, weight in loaders.items():
            if not isinstance(loader, Epochs):
                raise ConfigError(f"must be loaders of ESSP, got {shown(loader)}", field="loaders", code="type")
            real = isinstance(weight, (int, float)) and not isinstance(weight, bool)
            if not real or not math.isfinite(weight) or weight <= 0:
                raise ConfigError(
                    f"a weight must be a number above 0, got {shown(weight)}",
                    field="loaders",
                    code="range" if real else "type",
                )
        self._loaders = list(loaders)
        total = math.fsum(loaders.values())
        self._weights = [weight / total for weight in loaders.values()]
        self._edges = list(accumulate(self._weights))[:-1]
        _check_sizes(self._loaders)
        self.classes = tuple(sorted({name for loader in self._loaders for name in _classes_of(loader)}))
        """Class names of all loaders; a label is an index into them."""
        number = {name: place for place, name in enumerate(self.classes)}
        self._numbers = [  # label -1, of a record without one, is the last number
            torch.tensor([*(number[name] for name in _classes_of(loader)), -1]) for loader in self._loaders
        ]
        self._seed = whole_number("seed", seed, 0)
        self._batches = sum(map(len, self._loaders)) if batches is None else whole_number("batches", batches, 1)
        self._running: dict[int, Iterator[Any]] = {}
        self._form: Any = None
        """Shape and type of the clips, once a batch was seen."""
        self._map: Callable[[Batch], Any] | None = None
        self._epoch = 0
        self._done = 0
        """Batches of the epoch that are done."""
        self._begun = False
        self._iteration = object()

    def __repr__(self) -> str:
        parts = "; ".join(
            f"{weight:.3g} of {loader!r}" for weight, loader in zip(self._weights, self._loaders, strict=True)
        )
        return f"<Mix of {len(self):,} batches an epoch: {parts}>"

    @property
    def epoch(self) -> int:
        """The current epoch, or between two epochs the next one; from 0."""
        return self._epoch

    def __len__(self) -> int:
        """Batches of an epoch."""
        return self._batches

    def __iter__(self) -> Iterator[Batch]:
        """The batches of the next epoch, or of the rest of the epoch whose state was loaded."""
        refuse_workers()
        return self._of_epoch()

    def _of_epoch(self) -> Iterator[Batch]:
        self._next_epoch()
        self._begun = True
        iteration = self._iteration = object()
        random = CounterRng(self._seed, _STREAM + self._epoch)
        while self._done < self._batches:
            place = bisect_right(self._edges, next(random.words(self._done)) / _WORD)
            batch = self._taken(place)
            if self._iteration is not iteration:
                raise iteration_over()
            self._done += 1
            yield batch if self._map is None else self._map(batch)
            if self._iteration is not iteration:
                raise iteration_over()
        self._epoch, self._done, self._begun = self._epoch + 1, 0, False

    def _next_epoch(self) -> None:
        """Leave an epoch that was begun and not finished."""
        if self._begun:
            self._epoch, self._done, self._begun = self._epoch + 1, 0, False

    def _taken(self, place: int) -> Batch:
        """The next batch of a loader."""
        loader = self._loaders[place]
        for _ in range(2):
            if place not in self._running:
                loader._continue()
                self._running[place] = iter(loader)
            batch = next(self._running[place], None)
            if batch is not None:
                return self._as_ours(place, batch)
            del self._running[place]  # its epoch is over, and the next one begins
        raise EsspError(f"an epoch of {loader!r} had no batch")

    def _as_ours(self, place: int, batch: Any) -> Batch:
        if not isinstance(batch, Batch):
            raise ConfigError(
                "a loader with `map` gives its own batches; give the function to `map` of the mix",
                field="loaders",
                code="unsupported",
            )
        form = _form_of(batch.frames)
        self._form = self._form or form
        if form != self._form:
            raise ConfigError(
                f"loader {place} gives clips of {form}, and others of {self._form}; use the same clip, feature and "
                "transform for all",
                field="loaders",
                code="conflict",
            )
        labels = self._numbers[place][batch.labels]
        return replace(batch, labels=labels, meta={**batch.meta, "loader": [place] * len(batch)})

    def map(self, function: Callable[[Batch], Any]) -> Self:
        """Make each `for` give `function(batch)` instead of the batch. Returns this mix."""
        self._map = function_of("function", function)
        return self

    def set_epoch(self, epoch: int) -> None:
        """Make the next `for` show this epoch of the mix from its beginning, unless it is the current one anyway. The
        loaders continue where they are."""
        epoch = whole_number("epoch", epoch, 0, MOST_EPOCHS - 1)
        if epoch != self._epoch or self._begun:
            self._iteration = object()
            self._epoch, self._done, self._begun = epoch, 0, False

    def close(self) -> None:
        """End the processes and threads of all loaders. The mix can be iterated over again, and continues with the
        next clips of each loader. Idempotent."""
        self._iteration = object()
        self._running.clear()
        for loader in self._loaders:
            loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- state ---

    @property
    def _plan(self) -> int:
        """A digest of what is drawn. Loaders have digests of their clips in their own states."""
        said = f"{self._seed} {self._batches} {self._weights}"
        return int.from_bytes(hashlib.blake2b(said.encode(), digest_size=7).digest(), "little")

    def state_dict(self) -> dict[str, Any]:
        """The position after the current batch: `epoch` and `batch` of the mix, the states of its `loaders`, and
        `plan`, a digest of weights, seed and length. Every rank has the same state."""
        epoch, batch = (self._epoch + 1, 0) if self._done >= self._batches else (self._epoch, self._done)
        states = [loader.state_dict() for loader in self._loaders]
        return {"epoch": epoch, "batch": batch, "plan": self._plan, "loaders": states}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from `state`.

        Raises `ConfigError` for a state of other loaders, weights or seeds. Loaders keep what they had then.
        """
        try:
            epoch, batch, plan = (operator.index(state[name]) for name in ("epoch", "batch", "plan"))
            states = list(state["loaders"])
        except (LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"{shown(state)} is not the state of a mix", field="state", code="type") from error
        if plan != self._plan or len(states) != len(self._loaders):
            raise ConfigError(
                "it belongs to another mix; use the loaders, weights, seed and batches with which it was saved",
                field="state",
                code="conflict",
            )
        if not 0 <= epoch < MOST_EPOCHS or not 0 <= batch <= self._batches:
            raise ConfigError(f"there is no batch {batch} of epoch {epoch}", field="state", code="range")
        self.close()
        before = [loader.state_dict() for loader in self._loaders]
        try:
            for loader, own in zip(self._loaders, states, strict=True):
                loader.load_state_dict(own)
        except ConfigError:
            for loader, own in zip(self._loaders, before, strict=True):
                loader.load_state_dict(own)
            raise
        self._epoch, self._done, self._begun = epoch, batch, False


def _classes_of(loader: Epochs) -> tuple[str, ...]:
    classes: tuple[str, ...] = getattr(loader, "classes", ())
    return classes


def _form_of(frames: Any) -> Any:
    """Shape and type of a clip; with several views, of each of them; with a size for each video, only the type."""
    if isinstance(frames, Mapping):
        return {name: _form_of(own) for name, own in frames.items()}
    if isinstance(frames, list):
        return "a size for each video", str(frames[0].dtype)
    return tuple(frames.shape[1:]), str(frames.dtype)


def _check_sizes(loaders: list[Epochs]) -> None:
    """Raises `ConfigError` if the clips of two loaders are sure to differ in size."""
    found = [(loader, _said_form(loader)) for loader in loaders if isinstance(loader, Loader)]
    for loader, form in found[1:]:
        if form and found[0][1] and form != found[0][1]:
            raise ConfigError(
                f"clips differ in size: {found[0][0]!r} and {loader!r}; use the same clip and feature for all",
                field="loaders",
                code="conflict",
            )


def _said_form(loader: Loader) -> tuple[Any, ...] | None:
    """What decides on the shape of clips; None: a function of the user does."""
    if loader._transform is not None:
        return None
    spec = loader._source.spec
    stream = spec.streams[spec.consumers[loader._consumer].stream]
    clip = spec.clip
    return stream.feature, stream.params, clip.frames, clip.resize.model_dump()
