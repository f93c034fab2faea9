"""The rows of a data set: states, actions, times and texts of each frame, in memory.

Numbers are tensors of whole columns, which workers of a `DataLoader` share: forked ones with their parent, spawned ones
through shared memory. Texts and lists of several lengths stay as Arrow has them. Pictures stay in their files.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray

from essp.catalog.lerobot_folder import LeRobotFolder, values_of
from essp_common.errors import ConfigError, NotFound
from essp_common.objects import tables

_log = logging.getLogger(__name__)


class Rows:
    """The rows of the chosen episodes, in the order of the files."""

    def __init__(
        self, folder: LeRobotFolder, features: Mapping[str, Mapping[str, Any]], keys: Sequence[str], chosen: Any
    ) -> None:
        """`keys`: the files to read. `chosen`: the episodes, or None for all. Raises `ConfigError`."""
        self.numbers: dict[str, torch.Tensor] = {}
        """Feature -> `(rows, ...)`, float32, int64 or bool."""
        self.lists: dict[str, pa.ChunkedArray] = {}
        """Features whose values are texts, or lists of several lengths."""
        self.files = list(keys)
        wanted = [name for name, feature in features.items() if feature.get("dtype") not in ("video", "image")]
        others = [name for name in wanted if name != "episode_index"]
        parts: defaultdict[str, list[Any]] = defaultdict(list)
        kept: list[NDArray[np.int64]] = []
        for key in self.files:
            try:
                table = folder.table(key, ["episode_index", *others], others)
            except NotFound as error:
                raise ConfigError(f"{folder.store.uri(key)} cannot be read: {error}", code="not_found") from error
            rows = np.arange(len(table))
            if chosen is not None:
                rows = rows[np.isin(tables.to_numpy(table.column("episode_index").combine_chunks()), list(chosen))]
                table = tables.taken(table, rows)
            kept.append(rows)
            for name in wanted:
                if name in table.column_names:
                    parts[name].append(table.column(name))
        counts = [len(rows) for rows in kept]
        self.file_of = np.repeat(np.arange(len(kept)), counts).astype(np.int32)
        """The number of each row's file."""
        self.row_in_file = np.concatenate([*kept, np.zeros(0, np.int64)]).astype(np.int64)
        if missing := [name for name in wanted if len(parts[name]) != len(kept)]:
            _log.warning("%s: features without a column in some files are left out: %s", folder.uri, ", ".join(missing))
        for name in wanted:
            if name not in missing and kept:
                self._keep(name, _joined(parts[name]), features[name])
        self._find_episodes(folder)

    def __len__(self) -> int:
        return len(self.row_in_file)

    def __contains__(self, name: object) -> bool:
        return name in self.numbers or name in self.lists

    def value(self, name: str, row: int) -> Any:
        """The value of one row: a tensor, or a text or list."""
        if name in self.numbers:
            return self.numbers[name][row].clone()
        return self.lists[name][row].as_py()

    def values(self, name: str, rows: Sequence[int]) -> Any:
        """`(N, ...)`, the values of several rows, or a list of them."""
        if name in self.numbers:
            return self.numbers[name][list(rows)]
        return [self.lists[name][row].as_py() for row in rows]

    def bounds(self, row: int) -> tuple[int, int]:
        """The first row of a row's episode, and the row after its last."""
        place = int(np.searchsorted(self._begins, row, side="right")) - 1
        return int(self._begins[place]), int(self._ends[place])

    @property
    def episodes(self) -> NDArray[np.int64]:
        """`(episodes, 2)`: the first row of each episode, and the row after its last."""
        return np.stack([self._begins, self._ends], axis=1)

    def _keep(self, name: str, column: pa.ChunkedArray, feature: Mapping[str, Any]) -> None:
        values = values_of(column)
        if isinstance(values, str):
            self.lists[name] = column
            return
        if tuple(feature.get("shape") or ()) == (1,) and values.shape[1:] == (1,):
            values = values[:, 0]
        kind = np.float32 if values.dtype.kind == "f" else np.bool_ if values.dtype.kind == "b" else np.int64
        self.numbers[name] = torch.from_numpy(np.require(values, kind, ["C", "W", "O"]))

    def _find_episodes(self, folder: LeRobotFolder) -> None:
        if "episode_index" not in self.numbers or "timestamp" not in self.numbers:
            raise ConfigError(f"{folder.uri}: its tables need numbers in episode_index and timestamp", code="missing")
        numbers = self.numbers["episode_index"].numpy()
        edges = np.flatnonzero(np.diff(numbers)) + 1
        begins = np.concatenate([[0], edges]) if len(numbers) else np.zeros(0, np.int64)
        if len(np.unique(numbers[begins])) != len(begins):
            raise ConfigError(f"{folder.uri}: the rows of an episode are not together in its tables")
        self._begins, self._ends = begins, np.append(begins[1:], len(numbers)).astype(np.int64)


def _joined(parts: Sequence[pa.ChunkedArray]) -> pa.ChunkedArray:
    """One column from those of several files, whose types may differ in width."""
    kind = parts[0].type
    alike = [part if part.type == kind else part.cast(kind) for part in parts]
    return pa.chunked_array([chunk for part in alike for chunk in part.chunks], type=kind)


def keys_with(folder: LeRobotFolder, episodes: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """The files with the rows of these episodes, or of all, in order."""
    if episodes is None:
        return list(folder.data_keys)
    return sorted({folder.data_key(episode) for episode in episodes})
