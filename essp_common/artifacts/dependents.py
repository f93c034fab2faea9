"""What jobs take from the outputs of others. An output is not removed while another job that is known needs it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from essp_common.artifacts.neighbours import real_uris
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import names_place


@dataclass(frozen=True, slots=True)
class Taken:
    """Something that a job takes from elsewhere."""

    field: str
    uri: str
    places: tuple[str, ...]
    """The URI and, if its path contains symbolic links, the URI that they resolve to; each ends with a slash."""

    def is_in(self, folders: Collection[str]) -> bool:
        """Whether it is in one of these folders, which end with a slash."""
        return any(place.startswith(folder) for place in self.places for folder in folders)


def taken_by(spec: JobSpec) -> tuple[Taken, ...]:
    """What a job takes from elsewhere."""
    return tuple(Taken(field, uri, places_of(uri)) for field, uri in _taken(spec))


def places_of(uri: str) -> tuple[str, ...]:
    """The places of a URI, as in `Taken`."""
    return tuple(f"{real.rstrip('/')}/" for real in real_uris(uri))


def _taken(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """The fields of a job that name such things, with their URIs."""
    if spec.fused_model is not None:
        yield spec.fused_model
    if spec.extract is not None and spec.extract.weights and names_place(spec.extract.weights):
        yield "extract.weights", spec.extract.weights
    for name, trainer in spec.trainers.items():
        if trainer.weights and names_place(trainer.weights):
            yield f"trainers.{name}.weights", trainer.weights
    for field in ("catalog", "records", "records_validation", "records_test"):
        if uri := getattr(spec.data, field):
            yield f"data.{field}", uri
