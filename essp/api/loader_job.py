"""The job that a loader runs: made of the loader's arguments, checked, and spoken of in the loader's words.

A loader is a job with `consumers` (see `essp_common/job/spec.py`), which is checked as any other one (`preflight`). Who
gave arguments knows nothing of the fields of that job: errors and warnings name the arguments in their place.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import gettempdir
from typing import Any

from pydantic import ValidationError

from essp.api.arguments import MOST_DECODERS, mapping_of, plain, whole_number
from essp.loops.source import OwnSource
from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.job.fields import MOST_READERS
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings
from essp_common.runtime.process import cpu_count
from essp_common.validation import problems
from essp_common.wiring import Stores
from essp_engine.loading.rendezvous import Rendezvous
from essp_engine.preflight.preflight import Preflight, preflight

log = logging.getLogger(__name__)

NAME = "loop"
EPOCHS = 1000
"""Epochs of a job; a loader that goes on beyond them begins another one, unless it shares the job."""
ENOUGH_BYTES = 2**50
"""The budget with which a job is checked that will get as much as it needs."""
ARGUMENTS = {
    f"consumers.{NAME}.batch_size": "batch_size",
    f"streams.{NAME}.": "",
    f"streams.{NAME}: ": "feature: ",
    "data.catalog": "catalog",
    "data.train": "split",
    "data.consumed": "split",
    "data.validation_fraction": "validation_fraction",
    "name a split in data.validation": "set it to 0 and train on all",
    "limits.budget": "memory",
    "limits.dead_ratio": "dead_ratio",
    "clip.resize": "clip.size",
    "clip.resize.height": "clip.size",
    "clip.resize.width": "clip.size",
    "sampling.": "",
    "sampling: ": "",
}
"""Field of a job -> argument of a loader, in messages."""
ARGUMENTS_OF_A_FILE = {f"consumers.{NAME}.batch_size": "batch_size", "data.consumed": "split"}
"""The same where the job is a file of the user's."""


def unused_output() -> str:
    """The URI of a folder that is not there: a loop's job is checked with it, and gets a folder when it begins."""
    return as_uri(os.path.join(gettempdir(), f"essp-loop-{uuid.uuid4().hex}"))


def names_of(loops: int) -> list[str]:
    """Names for the consumers of a job that `loops` loops share."""
    count = whole_number("loops", loops, 1, MOST_READERS // 2)
    return [NAME, *(f"{NAME}-{number}" for number in range(2, count + 1))]


def own_source(
    document: Mapping[str, Any], words: Mapping[str, str], ranks: Rendezvous, decoders: int, bounded: bool
) -> OwnSource:
    """Of the job that `document` describes; `words` is what its fields are called in messages. Nothing is started.

    Raises `ConfigError`.
    """
    processes = whole_number("decoders", decoders, 0, MOST_DECODERS) or max(1, cpu_count() // ranks.local_world_size)
    settings = Settings()
    return OwnSource(_spec_of(document, words), _Check(settings, words), settings, processes, bounded)


@dataclass(frozen=True, slots=True)
class _Check:
    """The preflight of a loader's job, in the loader's words."""

    settings: Settings
    words: Mapping[str, str]

    def __call__(self, spec: JobSpec) -> Preflight:
        stores = Stores((*self.settings.stores, f"file://{os.path.realpath(gettempdir())}"))
        with _in_words(self.words):
            found = preflight(spec, stores)
        for warning in found.warnings:
            log.warning("%s", _said(warning, self.words))
        return found


def _spec_of(document: Mapping[str, Any], words: Mapping[str, str]) -> JobSpec:
    with _in_words(words):
        try:
            return JobSpec.model_validate(plain(document))
        except ValidationError as error:
            raise ConfigError.together(problems(error, JobSpec)) from error


def data_of_split(name: str, validation_fraction: float) -> dict[str, Any]:
    """The `data` of a job that feeds a loop with this split."""
    if name not in ("train", "validation", "test") or (name == "train" and plain(validation_fraction) == 0):
        return {"train": name, "validation": name}  # nothing is set aside
    if name == "test" and plain(validation_fraction) == 0:
        return {"consumed": name}  # it is what it is, whatever is set aside for others
    return {"validation_fraction": validation_fraction, "consumed": name}


def visits_of(clips_per_visit: int, step: int | None, window: int | None) -> dict[str, Any]:
    """What the `sampling` of a job says of visits: nothing, where each clip is drawn by itself."""
    clips = whole_number("clips_per_visit", clips_per_visit, 1)
    if window is not None and clips == 1:
        raise ConfigError("window: only has a meaning with clips_per_visit; set that to 8")
    if clips == 1 and step is None:
        return {}
    return {
        "kind": "pooled" if step is None else "exhaustive",
        "step": 1 if step is None else step,
        "clips_per_visit": clips,
        "window": 64 * clips if window is None else window,
    }


def params_of(feature: str, params: Mapping[str, Any] | None, frames: int) -> dict[str, Any]:
    """Without parameters, `rgb` is all frames of the clip."""
    if params is not None:
        return mapping_of("params", params)
    return {"frames": frames} if isinstance(feature, str) and feature == "rgb" else {}


@contextmanager
def _in_words(words: Mapping[str, str]) -> Iterator[None]:
    """Errors of this block name arguments of a loader in place of fields of a job."""
    try:
        yield
    except ConfigError as error:
        raise ConfigError(_said(str(error), words)) from error


def _said(text: str, words: Mapping[str, str]) -> str:
    for field in sorted(words, key=len, reverse=True):
        text = text.replace(field, words[field])
    return text
