"""Reads the runs to compare from their outputs. No master is needed, and a job that has not ended is read, too."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pydantic import TypeAdapter, ValidationError

from essp.account import account_of
from essp.report.facts import Run, read_run
from essp.uris import as_uri, shown
from essp_common.artifacts import layout
from essp_common.artifacts.history import History
from essp_common.artifacts.manifest import PhaseRecord
from essp_common.artifacts.removal import holder_of
from essp_common.errors import ConfigError, NotFound, PermanentError
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores

_RECORDS = TypeAdapter(tuple[PhaseRecord, ...])
_DIVISIONS = "divisions.json"


@dataclass(frozen=True)
class Compared:
    """One training job among those to compare."""

    label: str
    """How it is called here: the name of the job, or its output if several have the same name."""
    output: str
    """URI of its output."""
    spec: JobSpec
    run: Run | None
    """Its results; None if it has not completed."""
    histories: Mapping[str, Sequence[PhaseRecord]]
    """Trainer -> the metrics of its phases so far."""
    seconds: float | None
    """How long its runs took together; None if it has no history."""


def read_all(outputs: Sequence[str], stores: Stores) -> list[Compared]:
    """Read the jobs in these outputs, given as paths or URIs.

    Raises `NotFound` for what is not the output of a job, and `ConfigError` for jobs that do not train.
    """
    found = [_read(as_uri(output).rstrip("/"), stores) for output in outputs]
    names = [one.label for one in found]
    return [
        one if names.count(one.label) == 1 else Compared(**{**vars(one), "label": shown(one.output)}) for one in found
    ]


def read_histories(output: ObjectStore, spec: JobSpec) -> dict[str, tuple[PhaseRecord, ...]]:
    """Trainer -> the metrics of its phases so far; trainers that have not completed a phase are left out.

    Raises `PermanentError` for a damaged file.
    """
    found: dict[str, tuple[PhaseRecord, ...]] = {}
    for name in spec.trainers:
        key = layout.history(name)
        try:
            found[name] = _RECORDS.validate_python(json.loads(output.get(key)))
        except NotFound:
            continue
        except (ValueError, ValidationError) as error:
            raise PermanentError(f"{output.uri(key)} is damaged ({error}); restore it from a backup") from error
    return found


def job_of(output: ObjectStore, uri: str) -> JobSpec:
    """The training job in an output. Raises `NotFound`, `ConfigError`."""
    holder = holder_of(output)
    if holder is None:
        raise NotFound(f"{shown(uri)} is not the output of a job: it has no {layout.SPEC}{_instead(output, uri)}")
    if not holder.spec.trainers:
        raise ConfigError(f"{shown(uri)} holds job {holder.spec.name}, which trains nothing", code="unsupported")
    return holder.spec


def _read(uri: str, stores: Stores) -> Compared:
    output = stores.under(uri)
    spec = job_of(output, uri)
    try:
        run = read_run(output, stores)
    except NotFound:  # it has not completed
        run = None
    runs = account_of(History(output).read()).runs
    seconds = sum(one.last_ms - one.began_ms for one in runs) / 1000 if runs else None
    histories = read_histories(output, spec) if run is None else run.histories
    return Compared(spec.name, uri, spec, run, histories, seconds)


def _instead(output: ObjectStore, uri: str) -> str:
    """What else to name, if the folder contains the outputs of several jobs."""
    try:
        output.head(_DIVISIONS)
    except NotFound:
        return ""
    return f"; it holds one job for each division: name some of them, as in {shown(uri)}/*/"
