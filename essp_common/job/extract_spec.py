"""What a job with `extract` computes of its clips, and the form in which it writes that."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from essp_common.job.fields import NameOrPath, Section, Uri
from essp_common.job.trainer_spec import AugmentSpec, check_weights_of, weights_of
from essp_common.validation import wrong

_CROP = AugmentSpec.model_fields["crop"].default
_SCALE = AugmentSpec.model_fields["evaluation_scale"].default
_OF_NETWORKS = ("weights", "crop", "evaluation_scale", "evaluation_crops")
"""Fields that say how a network of `network` is used."""


class ExtractSpec(Section):
    """Write a vector for each clip: what a network computes of it (an embedding), or a feature itself. See
    [extract](extract.md)."""

    network: NameOrPath | None = None
    """The network whose embeddings are written, as in `trainers.*.model`: a torchvision name, `timm:NAME`, `hf:NAME`,
    or one of your own. An embedding is the input of the network's last layer; for a network of single frames, the mean
    over the frames of the clip. It is computed for each of `streams`; one of `rgb` has all frames of a clip, unless its
    `params` say how many."""
    weights: Uri | None = None
    """The weights of `network`, as in `trainers.*.weights`: a file, the folder of a trainer of a job that has ended, or
    `package:efficientnet_lite0`."""
    model: Uri | None = None
    """Instead of `network`: a fused model (`<output>/model`); the embeddings of each of its networks are written. Leave
    `clip` and `streams` out of the job: they come from the model."""
    crop: int = Field(_CROP, ge=8, le=4320)
    """`network`: side in pixels of the square that it sees."""
    evaluation_scale: float = Field(_SCALE, gt=0, le=1)
    """`network`: side of the square cut from a frame, as a fraction of the short side; it is resized to `crop`."""
    evaluation_crops: Literal[1, 3, 10] = 1
    """`network`: crops of each frame over which an embedding is the mean; see `trainers.*.augment`."""
    reduce: Literal["mean", "none"] = "mean"
    """Without a network: how the values of a feature become a vector. `mean`: one number per channel, the mean over all
    frames and positions, or over all descriptors. `none`: all of them, row by row, the same number for each clip."""
    pool: Literal["none", "mean", "max"] = "none"
    """`mean`, `max`: one vector for each video, over all of its clips. `none`: one for each clip."""
    dtype: Literal["float32", "float16"] = "float32"
    """The type of the numbers that are written."""
    format: Literal["parquet", "npy"] = "parquet"
    """`parquet`: tables with a row for each vector. `npy`: a NumPy file for each video, `(T, D)`, clip by clip, as
    programs for action localisation read them; a clip that cannot be decoded is a row of NaN."""

    @model_validator(mode="after")
    def _one_source(self) -> ExtractSpec:
        fields = type(self).model_fields
        if self.network is not None and self.model is not None:
            raise wrong("give one of `network` and `model`, not both", field="model", code="conflict")
        if self.network is not None and self.weights is None:
            raise wrong(
                f"embeddings of random weights mean nothing; {weights_of(self.network)}",
                field="weights",
                code="missing",
            )
        if self.network is not None and self.weights is not None:
            check_weights_of(self.network, self.weights)
        extra = [name for name in _OF_NETWORKS if getattr(self, name) != fields[name].default]
        if self.network is None and extra:
            why = "the model has its own" if self.model is not None else "belongs to `network`, which is not given"
            raise wrong(f"{why}; leave it out", field=extra[0], code="conflict")
        if self.reduce != "mean" and (self.network or self.model):
            raise wrong(
                "an embedding is one vector already; leave it out, or leave out the network",
                field="reduce",
                code="conflict",
            )
        return self
