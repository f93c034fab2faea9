"""What the vectors of an extract job follow from, so that a job resumes only from vectors of the same networks.

The master uses this module to find out where a predictor will start, so it does not import torch.
"""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from essp_common.artifacts.fused_model import FusedModel
from essp_common.artifacts.trained import trained
from essp_common.job.extract_spec import ExtractSpec
from essp_common.job.trainer_spec import PACKAGE
from essp_common.wiring import Stores

_OF_THE_TABLE = {"pool", "format", "model", "weights"}
"""Fields of `extract` that say how vectors are written, or where the networks lie, and do not change the vectors."""


class Extraction(BaseModel):
    """The networks of an extract job, or its features alone."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())

    extract: ExtractSpec
    model: FusedModel | None = None
    """The fused model, if the job names one."""
    weights: str = ""
    """Changes whenever the file of the weights does; empty: there is none."""
    trained: str = ""
    """The network that the weights are of, if they come from a trainer of another job; else empty."""

    def digested(self) -> dict[str, object]:
        """What determines the vectors, as JSON."""
        model = None if self.model is None else self.model.model_dump(mode="json", exclude={"versions"})
        given = self.extract.model_dump(mode="json", exclude=_OF_THE_TABLE)
        return {"extract": given, "model": model, "weights": self.weights}


def extraction_of(extract: ExtractSpec, stores: Stores, model: FusedModel | None) -> Extraction:
    """The extraction of a job. `model`: the fused model that the job names.

    Raises `ConfigError` and `NotFound` for weights that do not exist, and `BadCheckpoint`.
    """
    weights = extract.weights or ""
    if not weights or weights.startswith(PACKAGE):
        return Extraction(extract=extract, model=model, weights=weights)
    if (other := trained(stores, weights)) is not None:
        network = other.manifest.model.name
        return Extraction(extract=extract, model=model, weights=other.origin.sha256, trained=network)
    store, key = stores.resolve(weights)
    info = store.head(key)
    return Extraction(extract=extract, model=model, weights=f"{info.size_bytes} {info.etag}")
