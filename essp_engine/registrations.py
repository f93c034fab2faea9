"""Registered extractors and trainers, which run in images of their own.

There are two tables, with rows by name. A registration is code that will run, so a row names its image by digest (a tag
can change), and only images that the operator allows (`ESSP_IMAGES`) are accepted.

The tables are stored in the object store as numbered documents, each with all rows and the change that created it:

    <ESSP_STATE>/registrations/0000000042.json

A change is written as the next number, which only one writer can win, so two masters or two users never undo each
other's changes. A change must name the version of the row that it replaces (its ETag). All documents are kept: they are
the audit log.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from essp_common.errors import ConfigError, Conflict, NotFound, PreconditionFailed
from essp_common.job.feature_layout import FeatureLayout
from essp_common.objects.numbered_log import REMEDY, NumberedLog
from essp_common.objects.port import ObjectStore
from essp_common.validation import problems
from essp_engine.features.declared import DeclaredFeature, DeclaredOutput

PREFIX = "registrations/"
Kind = Literal["extractors", "trainers"]
Name = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,39}$")]
_DIGEST = re.compile(r"[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}")
_QUANTITY = r"^[0-9]+(\.[0-9]+)?(m|k|M|G|T|Ki|Mi|Gi|Ti)?$"


VariableName = Annotated[str, Field(pattern=r"^[A-Z][A-Z0-9_]{0,62}$")]
VariableValue = Annotated[str, Field(pattern=r"^[^\x00]*$", max_length=32_768)]
"""Values that an environment can hold."""


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Resources(_Row):
    """The resources of one worker, in Kubernetes units."""

    cpu: str = Field("1", pattern=_QUANTITY)
    memory: str = Field("2Gi", pattern=_QUANTITY)
    gpus: int = Field(0, ge=0, le=64)
    gpu_type: str = Field("nvidia.com/gpu", max_length=100)
    """Name of the GPU resource."""


class ExtractorRow(_Row):
    """A feature that a separate image extracts: `essp extractor run --feature NAME` runs in it."""

    name: Name
    """The feature."""
    image: str
    """`registry/name@sha256:...`."""
    frames_needed: int = Field(1, ge=1, le=10_000)
    """The minimum number of frames in a clip."""
    output: DeclaredOutput
    """Its output for a clip."""
    layout: FeatureLayout = FeatureLayout()
    """How trainers must interpret its values, and whether they may mirror them."""
    resources: Resources = Resources()
    min: int = Field(1, ge=0, le=1000)
    """Minimum number of workers."""
    max: int = Field(16, ge=1, le=1000)
    """Maximum number of workers."""
    environment: Mapping[VariableName, VariableValue] = {}
    """Settings of the worker; not for secrets."""


def check_bounds(least: int, most: int) -> None:
    """Raises `ConfigError` if no pool size is within these bounds. Stored rows from earlier versions may have such
    bounds."""
    if least > most:
        raise ConfigError(
            f"{least} is more than max, which is {most}; give both, with a min of {most} at most, or a max of "
            f"{least} at least",
            field="min",
            code="conflict",
        )


class TrainerRow(_Row):
    """An image in which trainers of these models run: `essp trainer --job JOB --trainer NAME`."""

    name: Name
    image: str
    """`registry/name@sha256:...`."""
    models: tuple[str, ...] = Field(min_length=1)
    """The models (`trainers.*.model` of a job) that it trains. They need not be installed with the master."""
    losses: tuple[str, ...] = ()
    """Losses (`trainers.*.loss`) that it provides in addition to ESSP's. They need not be installed with the master."""
    resources: Resources = Resources(cpu="4", memory="16Gi", gpus=1)
    max_ranks: int = Field(8, ge=1, le=1024)
    environment: Mapping[VariableName, VariableValue] = {}


Row = ExtractorRow | TrainerRow
RowType = TypeVar("RowType", ExtractorRow, TrainerRow)


def row_for(model: str, rows: Mapping[str, TrainerRow]) -> TrainerRow | None:
    """The row in whose image a trainer of this model runs; None for the default image."""
    return next((row for row in rows.values() if model in row.models), None)


@dataclass(frozen=True, slots=True)
class Declared:
    """What a job may name although its code is not installed with the master."""

    features: Mapping[str, DeclaredFeature] = field(default_factory=dict)
    """The outputs of registered extractors, by feature."""
    trainers: Mapping[str, TrainerRow] = field(default_factory=dict)
    """The registered trainers, by name."""
    code: tuple[str, ...] = ()
    """Packages whose networks and losses may be named by path (`ESSP_CODE`)."""
    images_run: bool = True
    """Whether trainers run in the images of their rows."""


NOTHING = Declared()


class Change(_Row):
    """One line of the audit log."""

    version: int
    time: datetime
    by: str
    """The name of the token that made it."""
    action: Literal["put", "delete"]
    kind: Kind
    name: str


class _Document(_Row):
    change: Change
    extractors: dict[str, ExtractorRow]
    trainers: dict[str, TrainerRow]
    versions: dict[str, int]
    """`kind/name` -> the version that last changed the row."""

    @model_validator(mode="after")
    def _versioned(self) -> _Document:
        rows = {f"{kind}/{name}" for kind in get_args(Kind) for name in _rows(self, kind)}
        if missing := sorted(rows - self.versions.keys()):
            raise ValueError(f"versions: {missing[0]} has none")
        return self


class Registrations:
    """The tables. Safe to use from several threads and processes."""

    def __init__(self, store: ObjectStore, images: Sequence[str] = ()) -> None:
        """`images`: prefixes of the images that may be registered."""
        self._log = NumberedLog(store, PREFIX, ".json")
        self._images = tuple(images)
        self._lock = threading.Lock()
        self._newest: _Document | None = None

    # --- reading ---

    def extractors(self) -> dict[str, ExtractorRow]:
        """The registered extractors, by feature."""
        document = self._read()
        return document.extractors if document else {}

    def trainers(self) -> dict[str, TrainerRow]:
        """The registered trainers, by name."""
        document = self._read()
        return document.trainers if document else {}

    def row(self, kind: Kind, name: str) -> tuple[Row, str]:
        """One row and its ETag. Raises `NotFound`."""
        document = self._read()
        rows: Mapping[str, Row] = _rows(document, kind) if document else {}
        if document is None or name not in rows:
            raise NotFound(f"{name} is not registered in {kind}; there are: {', '.join(rows) or 'none'}")
        return rows[name], _etag(document, kind, name)

    def changes(self) -> list[Change]:
        """The audit log, oldest first."""
        return [_stored(self._log, number).change for number in self._log.numbers()]

    def declared(self) -> Declared:
        """What the rows allow jobs to name."""
        features = {
            row.name: DeclaredFeature(row.name, row.frames_needed, row.output, row.layout)
            for row in self.extractors().values()
        }
        return Declared(features, self.trainers())

    # --- changing ---

    def put(self, kind: Kind, row: Row, by: str, seen: str | None) -> str:
        """Register a row, or change the row whose ETag is `seen` (None: it must not exist yet). Returns the new ETag.

        Raises `ConfigError` for an image that is not allowed, and for bounds without a possible size;
        `PreconditionFailed` if the row was changed since it was seen.
        """
        self._check_image(row.image)
        if isinstance(row, ExtractorRow):
            check_bounds(row.min, row.max)

        def change(rows: dict[str, Row]) -> None:
            rows[row.name] = row

        return self._change(kind, row.name, by, seen, "put", change)

    def delete(self, kind: Kind, name: str, by: str, seen: str) -> None:
        """Remove the row whose ETag is `seen`. Raises `NotFound`, `PreconditionFailed`."""
        self.row(kind, name)
        self._change(kind, name, by, seen, "delete", lambda rows: rows.pop(name))

    def _change(
        self,
        kind: Kind,
        name: str,
        by: str,
        seen: str | None,
        action: Literal["put", "delete"],
        apply: Callable[[dict[str, Row]], object],
    ) -> str:
        while True:
            document = self._read()
            present = _etag(document, kind, name) if document and name in _rows(document, kind) else None
            if present != seen:
                raise PreconditionFailed(
                    f"{kind}/{name} is at version {present or 'none'}, not {seen or 'none'}; read it again, then repeat"
                )
            version = (document.change.version if document else 0) + 1
            tables: dict[Kind, dict[str, Row]] = {
                "extractors": dict(document.extractors) if document else {},
                "trainers": dict(document.trainers) if document else {},
            }
            apply(tables[kind])
            versions = dict(document.versions if document else {}) | {f"{kind}/{name}": version}
            made = Change(version=version, time=datetime.now(UTC), by=by, action=action, kind=kind, name=name)
            written: dict[str, object] = {"change": made.model_dump(mode="json"), "versions": versions}
            for table, rows in tables.items():
                written[table] = {known: row.model_dump(mode="json") for known, row in rows.items()}
            data = (json.dumps(written, indent=1) + "\n").encode()
            _parse(data, "the row")  # check it: an unreadable document would make all other rows unreadable, too
            try:
                self._log.write(version, data)
            except Conflict:
                continue  # another writer was first: read the new document and try again
            return f'"{version}"'

    def _check_image(self, image: str) -> None:
        if _DIGEST.fullmatch(image) is None:
            raise ConfigError(
                f"{image!r} does not end in @sha256: and 64 hexadecimal digits; a tag may change", field="image"
            )
        if not image.startswith(self._images):
            allowed = ", ".join(self._images) or "none"
            raise ConfigError(
                f"{image} is not allowed; ESSP_IMAGES of the master allows: {allowed}", field="image", code="refused"
            )

    def _read(self) -> _Document | None:
        """The newest document; only new ones are fetched."""
        with self._lock:
            number = self._newest.change.version if self._newest else max(self._log.newest() - 1, 0)
            while True:
                try:
                    self._newest = _stored(self._log, number + 1)
                except NotFound:
                    return self._newest
                number += 1


def _parse(data: bytes, what: str) -> _Document:
    try:
        return _Document.model_validate_json(data)
    except ValidationError as error:
        raise ConfigError(
            f"{what}: cannot be read: {'; '.join(map(str, problems(error, _Document)))}", code="unreadable"
        ) from error


def _stored(log: NumberedLog, number: int) -> _Document:
    """One document. Raises `NotFound`, and `ConfigError` if it is invalid."""
    try:
        found = _parse(log.read(number), log.uri(number))
        if found.change.version != number:
            raise ConfigError(f"{log.uri(number)}: holds change {found.change.version}", code="unreadable")
    except ConfigError as error:
        raise ConfigError(f"{error}; {REMEDY}", code="unreadable") from error
    return found


def _rows(document: _Document, kind: Kind) -> Mapping[str, Row]:
    return document.extractors if kind == "extractors" else document.trainers


def _etag(document: _Document, kind: Kind, name: str) -> str:
    return f'"{document.versions[f"{kind}/{name}"]}"'
