"""What jobs take from the outputs of others. An output is not removed while another job that is known needs it."""

from __future__ import annotations

from collections.abc import Iterator

from essp_common.artifacts.neighbours import real_uris
from essp_common.job.spec import JobSpec
from essp_common.job.trainer_spec import names_place


def taken_from(output: str, spec: JobSpec) -> Iterator[tuple[str, str]]:
    """What a job takes from this output, which is given as a URI: each field of the job with its URI."""
    folders = [f"{uri.rstrip('/')}/" for uri in real_uris(output)]
    for field, uri in _taken(spec):
        if any(f"{real.rstrip('/')}/".startswith(folder) for real in real_uris(uri) for folder in folders):
            yield field, uri


def _taken(spec: JobSpec) -> Iterator[tuple[str, str]]:
    """What a job takes from elsewhere."""
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
