"""The job that a loader runs: built from the loader's arguments, and checked like any other job.

A loader is a job with `consumers` (see `essp_common/job/spec.py`). Its errors and warnings name the loader's arguments,
since the user has never seen the job.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from tempfile import gettempdir
from typing import Any

from pydantic import ValidationError

from essp.api.arguments import mapping_of, plain
from essp.api.loader_arguments import CLIP_NAMES, Limits
from essp.loops.source import OwnSource
from essp.uris import as_uri
from essp_common.errors import ConfigError
from essp_common.field_names import Names, fields_named, renamed_in_text
from essp_common.job.spec import JobSpec
from essp_common.runtime.config import Settings
from essp_common.runtime.cores import cpu_count
from essp_common.validation import problems
from essp_common.wiring import Stores
from essp_engine.loading.rendezvous import Rendezvous
from essp_engine.preflight.preflight import Preflight, preflight

log = logging.getLogger(__name__)

NAME = "loop"
_EPOCHS = 1000
"""Epochs of a job. A loader that reaches the end starts another job, unless it shares the job."""
_ENOUGH_BYTES = 2**50
"""The budget with which a job is checked that will get as much as it needs."""
_NAMES = {
    "epochs": "limits.epochs",
    "sampling.rank": "rank",
    "sampling.ranks": "world_size",
    "data.consumed": "split",
    "limits.budget": "limits.memory",
}
_NAMES_OF_ARGUMENTS = {
    **_NAMES,
    **CLIP_NAMES,
    "data.catalog": "catalog",
    "data.train": "split",
    "data.validation": "split",
    "data.validation_fraction": "validation_fraction",
    f"streams.{NAME}": "feature",
    f"streams.{NAME}.feature": "feature",
    f"streams.{NAME}.params": "params",
    f"streams.{NAME}.view": "feature",
}


def names_for_arguments(limits: Limits) -> Names:
    """What `Loader(...)` calls the fields of its job."""
    return {**_NAMES_OF_ARGUMENTS, **_batch_sizes(limits)}


def names_for_a_file(stream: str, limits: Limits) -> Names:
    """What `Loader.of` calls the fields of its job: as the user's file has them, but for the arguments."""
    names = {**_NAMES, **_batch_sizes(limits), f"streams.{NAME}": f"streams.{stream}"}
    if limits.memory is None:
        del names["limits.budget"]
    return names


def _batch_sizes(limits: Limits) -> Names:
    return {
        f"consumers.{name}.{field}": argument
        for name in _consumers(limits)
        for field, argument in (("batch_size", "batch_size"), ("batch_pixels", "batch_size.pixels"))
    }


def document_of(
    *,
    data: Mapping[str, Any],
    clip: Mapping[str, Any],
    sampling: Mapping[str, Any],
    stream: Mapping[str, Any],
    batch: Mapping[str, Any],
    bounds: Mapping[str, Any],
    limits: Limits,
    ranks: Rendezvous,
) -> dict[str, Any]:
    """The job of a loader. `data` to `stream` are its sections; `bounds`: its `limits`, where the loader's own say
    nothing."""
    return {
        "name": NAME,
        "output": _unused_output(),
        "epochs": _EPOCHS if limits.epochs is None else limits.epochs,
        "data": data,
        "clip": clip,
        "sampling": {**sampling, "rank": ranks.rank, "ranks": ranks.world_size},
        "streams": {NAME: stream},
        "consumers": {name: {"stream": NAME, **batch} for name in _consumers(limits)},
        "limits": {"budget": _ENOUGH_BYTES, **bounds, **limits._job_section()},
    }


def own_source(document: Mapping[str, Any], names: Names, ranks: Rendezvous, limits: Limits) -> OwnSource:
    """The source of the clips of the job that `document` describes. Nothing is started.

    `names`: what errors and warnings call the fields of the job. Raises `ConfigError`.
    """
    settings = Settings()
    spec = _spec_of(document, names)
    decoders = limits.decoders or max(1, cpu_count() // ranks.local_world_size)
    bounded = spec.limits.budget != _ENOUGH_BYTES
    return OwnSource(spec, _Check(settings, names), settings, decoders, bounded)


@dataclass(frozen=True, slots=True)
class _Check:
    """The preflight of a loader's job. Its errors and warnings name the loader's arguments."""

    settings: Settings
    names: Names

    def __call__(self, spec: JobSpec) -> Preflight:
        stores = Stores((*self.settings.stores, _temporary_files()), self.settings.store_patience_s)
        with fields_named(self.names, JobSpec):
            found = preflight(spec, stores)
        for warning in found.warnings:
            log.warning("%s", renamed_in_text(warning, self.names, JobSpec))
        return found


def _spec_of(document: Mapping[str, Any], names: Names) -> JobSpec:
    with fields_named(names, JobSpec):
        try:
            return JobSpec.model_validate(plain(document))
        except ValidationError as error:
            raise ConfigError.together(problems(error, JobSpec)) from error


def _consumers(limits: Limits) -> Sequence[str]:
    """The name of each loop that may share the job."""
    return [NAME, *(f"{NAME}-{number}" for number in range(2, limits.loops + 1))]


def _unused_output() -> str:
    """The URI of a folder that does not exist. A loader's job is checked with it, and gets a folder when it starts."""
    return f"{_temporary_files()}/essp-loop-{uuid.uuid4().hex}"


def _temporary_files() -> str:
    """The URI of the folder for temporary files. TMPDIR may be a link, and a store is found by its path."""
    return as_uri(os.path.realpath(gettempdir()))


def data_of_split(name: str, validation_fraction: float) -> dict[str, Any]:
    """The `data` of a job that feeds a loop with this split, without the catalog."""
    none_aside = plain(validation_fraction) == 0
    if name not in ("train", "validation", "test") or (name == "train" and none_aside):
        return {"train": name, "validation": name}  # no videos are set aside
    if name == "test" and none_aside:
        return {"consumed": name}  # the same whether or not videos are set aside
    return {"validation_fraction": validation_fraction, "consumed": name}


def params_of(feature: str, params: Mapping[str, Any] | None, frames: int) -> dict[str, Any]:
    """The parameters of the feature. By default, `rgb` takes all `frames` of a piece of a clip."""
    if params is not None:
        return mapping_of("params", params)
    return {"frames": frames} if isinstance(feature, str) and feature == "rgb" else {}
