"""`essp.to_hf_iterable`: a loader as a data set of Hugging Face's `datasets`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from essp.api.epochs import Batch, Epochs
from essp.api.mix import Mix
from essp_common.distribution import needs_extra
from essp_common.errors import ConfigError
from essp_common.validation import shown

if TYPE_CHECKING:
    from datasets import IterableDataset


@needs_extra("essp.to_hf_iterable")
def to_hf_iterable(loader: Epochs | Mix) -> IterableDataset:
    """The clips of a loader, records or mix as a `datasets.IterableDataset`, an example each.

    An example has `frames`, a NumPy array `(T, H, W, C)`, `label`, a class id, and the values of `Batch.meta`; with
    several views, an array under the name of each; with texts, `text`, by column. `source_` is added to a name in
    `Batch.meta` that is one of those. Each iteration is the next epoch. The loader has shuffled the clips, so there is
    nothing to shuffle.

        data = essp.to_hf_iterable(loader)
        data = data.map(lambda example: {"pixels": example["frames"] / 255})
        for example in data:
            ...
            state = data.state_dict()  # `data.load_state_dict(state)` continues with the next example

    With several ranks the loader gives each its share: leave out `split_dataset_by_node`. The clips are decoded by the
    loader's own processes, so a `DataLoader` of it has `num_workers=0`. Needs the extra `hub`.

    Raises `ConfigError` for anything else than a loader.
    """
    if not isinstance(loader, (Epochs, Mix)):
        raise ConfigError(f"must be a loader, got {shown(loader)}", field="loader", code="type")
    from datasets import IterableDataset
    from datasets.iterable_dataset import _BaseExamplesIterable

    class _Examples(_BaseExamplesIterable):  # type: ignore[misc]
        """The examples of a loader. Their position is the position of the loader before a batch, and a number within
        it."""

        def __init__(self) -> None:
            super().__init__()
            self._sleep_on_threads_shutdown = False

        @property
        def num_shards(self) -> int:
            return 1

        def _init_state_dict(self) -> dict[str, Any]:
            loader._next_epoch()
            state = {"loader": loader.state_dict(), "done": 0, "type": "ESSP"}
            self._state_dict = state
            return state

        def __iter__(self) -> Iterator[tuple[str, dict[str, Any]]]:
            state: dict[str, Any] = self._state_dict or self._init_state_dict()
            if state["loader"] != loader.state_dict():
                loader.load_state_dict(state["loader"])
            done = state["done"]
            for batch in loader:
                for number, example in enumerate(_examples(batch)):
                    if number < done:
                        continue
                    state["done"] = number + 1
                    yield f"{state['loader']['epoch']}_{number}", example
                done = state["done"] = 0
                state["loader"] = loader.state_dict()

        def shuffle_data_sources(self, generator: Any) -> _Examples:
            return self

        def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> _Examples:
            return self

        def reshard_data_sources(self) -> _Examples:
            return self

    return IterableDataset(_Examples())


def _examples(batch: Any) -> Iterator[dict[str, Any]]:
    """The clips of a batch, one by one."""
    if not isinstance(batch, Batch):
        raise ConfigError(
            "a loader with `map` gives its own batches; use `map` of the data set instead",
            field="loader",
            code="unsupported",
        )
    by_view = batch.frames if isinstance(batch.frames, dict) else {"frames": batch.frames}
    arrays = {
        name: [clip.cpu().numpy() for clip in frames] if isinstance(frames, list) else frames.cpu().numpy()
        for name, frames in by_view.items()
    }
    for number, label in enumerate(batch.labels.tolist()):
        texts = {"text": {name: values[number] for name, values in batch.text.items()}} if batch.text else {}
        own = {**{name: frames[number] for name, frames in arrays.items()}, "label": label, **texts}
        meta = {f"source_{name}" if name in own else name: values[number] for name, values in batch.meta.items()}
        yield {**own, **meta}
