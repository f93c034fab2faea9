"""Texts of clips: captions, questions, answers or tasks, from the columns of a catalog.

A column has a string for each video, or a list of strings: a list of JSON, also one that a CSV field contains as text.
Which one of a list belongs to a clip is drawn by its seed, epoch and index alone. Lists of the same length are drawn
alike, so a question is shown with its own answer.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from essp_common.catalog.rows import Rows, meta_of
from essp_common.counter_rng import CounterRng, below
from essp_common.errors import ConfigError
from essp_common.quantities import counted
from essp_common.validation import shown, suggested

log = logging.getLogger(__name__)

_STREAM = 0x74657874 << 32
"""Apart from the random numbers of plans, whose streams are small."""


class TextReader:
    """Reads the texts of clips."""

    def __init__(
        self, rows: Rows, own: Mapping[str, str], further: Mapping[str, str], names: Sequence[str], pick: str, seed: int
    ) -> None:
        """`rows`: of the split. `own`, `further`: names in `Batch.meta` -> columns of the catalog, and of its source.
        `names`: those of `Batch.meta` that are wanted. `pick`: see `essp.Targets`."""
        self._rows = rows
        self._own = own
        self._further = further
        self._names = names
        self._pick = pick
        self._random = lru_cache(maxsize=4)(lambda epoch: CounterRng(seed, _STREAM | epoch))

    def check(self) -> None:
        """Warn of videos without a text. Raises `ConfigError` for a column that there is not, or that is not text."""
        known = [*self._further, *self._own]
        for name in self._names:
            if name not in known:
                raise ConfigError(
                    f"the catalog has no column {name!r}; {suggested(name, known, 'columns: ')}",
                    field="targets.text",
                    code="unknown",
                )
        missing: dict[str, list[int]] = {name: [] for name in self._names}
        for place in range(len(self._rows)) if self._names else ():
            for name, value in self._values(place).items():
                if not self._texts(name, value, place):
                    missing[name].append(place)
        for name, places in missing.items():
            if places:
                log.warning(
                    "column %r has no text for %s of %d, such as %s: batch.text has %s for their clips",
                    name,
                    counted(len(places), "video"),
                    len(self._rows),
                    self._rows.text("id", places[0]),
                    "None" if self._pick == "one" else "an empty list",
                )

    def of(
        self, meta: Mapping[str, Sequence[Any]], places: Sequence[int], indices: Sequence[tuple[int, int]]
    ) -> dict[str, list[Any]]:
        """The texts of the clips of a batch. `places`: of their videos among the rows. `indices`: the epoch of each
        clip, and its index in the epoch."""
        found: dict[str, list[Any]] = {}
        for name in self._names:
            texts = [self._texts(name, value, place) for value, place in zip(meta[name], places, strict=True)]
            if self._pick == "one":
                found[name] = [self._drawn(each, *index) for each, index in zip(texts, indices, strict=True)]
            else:
                found[name] = texts
        return found

    def _drawn(self, texts: Sequence[str], epoch: int, index: int) -> str | None:
        return texts[below(self._random(epoch).words(index), len(texts))] if texts else None

    def _values(self, place: int) -> dict[str, Any]:
        """The value of each wanted column of a video."""
        further = meta_of(self._rows.text("id", place), self._rows.text("extra", place))
        return {
            name: further.get(self._further[name]) if name in self._further else self._rows.text(self._own[name], place)
            for name in self._names
        }

    def _texts(self, name: str, value: Any, place: int) -> list[str]:
        """All texts of a value, without empty ones. Raises `ConfigError` if it is something else."""
        texts = _listed(value)
        if texts is None:
            raise ConfigError(
                f"column {name!r} of {self._rows.text('id', place)} is {shown(value)}, not a text or a list of texts",
                field="targets.text",
                code="type",
            )
        return texts


def _listed(value: Any) -> list[str] | None:
    """The texts in a value of a column; None: it has something else."""
    if isinstance(value, str) and value.lstrip().startswith("["):  # a list, in a field of a CSV file
        try:
            inner = json.loads(value)
        except ValueError:
            inner = None
        value = inner if _is_list_of_texts(inner) else value
    if value is None or isinstance(value, str):
        value = [value]
    return [text for text in value if text and not text.isspace()] if _is_list_of_texts(value) else None


def _is_list_of_texts(value: Any) -> bool:
    return isinstance(value, list) and all(text is None or isinstance(text, str) for text in value)
