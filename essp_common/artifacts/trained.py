"""The end of another job's training, whose weights a trainer starts from.

A trainer's `weights` may name, instead of a file, the folder of a trainer in the output of a job, as in
`runs/rgb/trainers/rgb`. This means the final weights of that training, which validation chose. A training that has not
ended has none, so the result never changes. `docs/design/weights-from-another-job.md` says why a trainer cannot wait
for another trainer of the same job.
"""

from __future__ import annotations

from typing import NamedTuple

from essp_common.artifacts import checkpoint, layout
from essp_common.artifacts.manifest import MODEL_FILE, Manifest, Origin
from essp_common.artifacts.removal import job_at
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.objects.port import ObjectStore
from essp_common.validation import suggested
from essp_common.wiring import Stores


class Trained(NamedTuple):
    """A training that has ended."""

    output: ObjectStore
    manifest: Manifest
    """The manifest of its final checkpoint."""

    @property
    def origin(self) -> Origin:
        """The file with the weights."""
        [file] = [file for file in self.manifest.files if file.name == MODEL_FILE]
        return Origin(uri=self.output.uri(self.manifest.prefix + MODEL_FILE), sha256=file.sha256)


def trained(stores: Stores, uri: str) -> Trained | None:
    """The training that `uri` names; None if it is not a folder of a trainer in the output of a job.

    Raises `ConfigError` for a trainer that does not exist or has not ended, and `BadCheckpoint`.
    """
    named = folder_of(uri)
    if named is None:
        return None
    output = stores.under(named[0])
    spec = job_at(output)
    return None if spec is None else _end_of(output, spec, named[1])


def folder_of(uri: str) -> tuple[str, str] | None:
    """The URI of the output and the name of the trainer, for the folder of a trainer; None for any other URI."""
    output, _, trainer = uri.rpartition(f"/{layout.TRAINERS}")
    return None if not output or "/" in trainer else (output, trainer)


def _end_of(output: ObjectStore, spec: JobSpec, trainer: str) -> Trained:
    if trainer not in spec.trainers:
        known = suggested(trainer, spec.trainers, "it has: ")
        raise ConfigError(f"job {spec.name} in {spec.output} has no trainer {trainer!r}; {known}", code="unknown")
    name = checkpoint.latest_name(output, trainer)
    manifest = None if name is None else checkpoint.read_named(output, trainer, name)
    if manifest is None or not manifest.final or checkpoint.is_short(manifest, spec.epochs):
        raise ConfigError(
            f"trainer {trainer} of job {spec.name} in {spec.output} has not ended its {spec.epochs} epochs, so it is "
            "not known yet which of its weights are the best; let that job end first",
            code="conflict",
        )
    return Trained(output, manifest)
