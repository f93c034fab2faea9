"""Trained models: `essp.load_model`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from essp.api.arguments import mapping_of, torch_device, uri_of
from essp_common.artifacts.fused_model import Member, open_model
from essp_common.artifacts.scores import ClipScores, Rule, VideoScores
from essp_common.errors import ConfigError
from essp_common.job.clip_spec import ClipSpec, StreamSpec
from essp_common.job.feature_layout import FeatureLayout
from essp_common.objects.port import ObjectStore
from essp_common.runtime.config import Settings
from essp_common.validation import shown
from essp_common.wiring import Stores
from essp_engine.aggregation.fused import Fuse, fusion_of
from essp_engine.learning.augment import Evaluated, evaluation_view
from essp_engine.learning.head_inputs import HeadInputs
from essp_engine.learning.models import AnyClassifier, built, load_member


@dataclass(frozen=True)
class StreamModel:
    """One trained network of a model, and its input.

    trainer: the trainer of the job that trained it.
    stream: the stream of the job on which it was trained.
    feature: the feature on which it was trained, one of `essp.features()`.
    params: the parameters of the feature.
    weight: weight in the fused score; the weights of a model sum to 1.
    crop: side of the square input of the network, in pixels.
    views: number of squares of each frame that are scored.
    scale: side of the square that is cut from a frame and resized to `crop`, as a share of the frame's short side.
    layout: how the feature's values are read.
    classes: class names; a score is at the index of its class.
    network: name of the network, or of the encoder of descriptors.
    view: the view of each event that it was trained on, if there were several; `model.clip.of(view)` are its clips.
    module: the PyTorch module, in evaluation mode. It takes `(B, T, crop, crop, C)`, uint8 or float32, as the feature
        gives it; it normalises uint8 (`module.mean`, `module.std`, per channel), but not float32. It returns `Scores`,
        with `logits` of shape `(B, K)`. An encoder takes descriptors `(B, T, H, W, C)`.

    For example:

        model = essp.load_model("runs/ucf101")
        rgb = model.streams["rgb"]
        seen = essp.compute_feature(clip, rgb.feature, snippets=model.clip.snippets, **rgb.params)
        rgb.score(seen)  # (K,) float32
    """

    trainer: str
    stream: str
    feature: str
    params: dict[str, Any]
    weight: float
    crop: int
    views: int
    scale: float
    layout: FeatureLayout
    classes: tuple[str, ...]
    network: str
    module: AnyClassifier
    view: str = ""

    def score(self, feature: NDArray[Any]) -> NDArray[np.float32]:
        """The class probabilities of one clip, `(K,)`, from its feature `(T, H, W, C)`, cropped as in evaluation.

        Raises `ConfigError` for an array of another shape or type."""
        seen = evaluation_view(self._checked(feature), Evaluated(self.crop, self.scale, self.views), self.layout)
        batch = torch.from_numpy(seen)[None].to(self.module.device)
        with torch.inference_mode():
            scores: NDArray[np.float32] = self.module(batch).on_host()[0]
        return scores

    def embed(self, feature: NDArray[Any]) -> NDArray[np.float16]:
        """The input of the last layer for one clip, `(D,)`, from its feature `(T, H, W, C)`: the mean over frames and
        views. `Model.fuse` needs these in addition to the scores if `Model.reads_features`."""
        inputs = HeadInputs(self.module)
        try:
            self.score(feature)
            features: NDArray[np.float16] = inputs.of(1)[0]
            return features
        finally:
            inputs.close()

    def _checked(self, feature: Any) -> NDArray[Any]:
        is_array, channels = isinstance(feature, np.ndarray), self.module.channels
        if not is_array or feature.ndim != 4 or 0 in feature.shape or feature.shape[3] != channels:
            said = f"an array of shape {feature.shape}" if is_array else shown(feature)
        elif feature.dtype not in (np.uint8, np.float32):
            said = f"an array of {feature.dtype}"
        else:
            return np.ascontiguousarray(feature)
        raise ConfigError(
            f"{self.trainer} takes {self.feature} as `essp.compute_feature` returns it, uint8 or float32 of shape "
            f"(T, H, W, {channels}), got {said}",
            field="feature",
            code="type",
        )


@dataclass(frozen=True)
class Model:
    """A trained model: a network for each stream with a weight above 0, and the fusion of their scores.

    classes: class names; a score is at the index of its class.
    clip: the clips on which it was trained: `frames`, `stride`, `resize`.
    clips_per_video: number of clips of a video that are scored, at even distances.
    streams: trainer -> its network.
    strategy: the strategy that fuses the scores, with its parameters.
    rule: `mean` or `product` of the networks' mean scores, by weight; None: the strategy reads the score of each clip.
    reads_features: whether the strategy was fitted on features of clips, so that `fuse` needs them, too.
    background: the class of videos that show no other class, which is never an answer; None: the model has no such
        class.
    independent: the classes are labels, and a video may have any number of them: scores need not sum to 1, and a score
        above 0.5 means that the video probably has the label.
    fusion: scores of clips by trainer -> scores by video; `fuse` calls it.

    For example:

        model = essp.load_model("runs/ucf101")
        model.fuse({name: scores[name] for name in model.streams})  # (V, T, K) of clips -> (V, K) float64
    """

    classes: tuple[str, ...]
    clip: ClipSpec
    clips_per_video: int
    streams: dict[str, StreamModel]
    strategy: str
    rule: Rule | None
    reads_features: bool
    background: str | None
    independent: bool
    fusion: Fuse = field(repr=False)

    def fuse(
        self, scores: Mapping[str, NDArray[Any]], features: Mapping[str, NDArray[Any]] | None = None
    ) -> NDArray[np.float64]:
        """Fuse each network's scores of the T clips of V videos, `(V, T, K)` in time order, into `(V, K)`.

        A model with a `rule` also takes the means over the clips, `(V, K)`. `features`: the results of
        `StreamModel.embed` for the same clips, `(V, T, D)`, for a model that reads them. Raises `ConfigError` if a
        network's scores or features are missing, or have the wrong shape or number of videos, or if means are given to
        a model that reads each clip.
        """
        given = {} if features is None else mapping_of("features", features)
        scores = mapping_of("scores", scores)
        if self.reads_features and (missing := sorted(set(self.streams) - set(given))):
            raise ConfigError(
                f"{self.strategy} reads features, and those of {', '.join(missing)} are missing",
                field="features",
                code="missing",
            )
        if missing := sorted(set(self.streams) - set(scores)):
            raise ConfigError(
                f"the scores of {', '.join(missing)} are missing; the model fuses {', '.join(sorted(self.streams))}",
                field="scores",
                code="missing",
            )
        parts = {name: self._by_clip(name, _numbers("scores", name, scores[name])) for name in self.streams}
        if len({len(part.means) for part in parts.values()}) > 1:
            each = ", ".join(f"{name} {len(part.means)}" for name, part in parts.items())
            raise ConfigError(f"the numbers of videos differ: {each}", field="scores", code="conflict")
        if self.reads_features:
            parts = {
                name: _with_features(name, part, _numbers("features", name, given[name]))
                for name, part in parts.items()
            }
        return self.fusion(parts).probabilities

    def _by_clip(self, name: str, scores: NDArray[np.float64]) -> ClipScores:
        if not 1 <= scores.ndim <= 3 or scores.shape[-1] != len(self.classes) or 0 in scores.shape[1:]:
            raise ConfigError(
                f"must have the shape (videos, clips, {len(self.classes)}), got {scores.shape}",
                field=f"scores.{name}",
                code="type",
            )
        if scores.ndim < 3:
            if self.rule is None:
                raise ConfigError(
                    f"{self.strategy} reads the score of each clip: must have the shape (videos, clips, classes), got "
                    f"{scores.shape}",
                    field=f"scores.{name}",
                    code="type",
                )
            scores = np.atleast_2d(scores)[:, None]
        videos, clips, classes = scores.shape
        names = tuple(f"{number:012d}" for number in range(videos))
        means = VideoScores(names, np.full(videos, -1, np.int32), scores.mean(axis=1), self.classes)
        return ClipScores(means, scores.reshape(-1, classes), np.arange(videos + 1) * clips)


def load_model(uri: str | Path, *, device: str | torch.device = "cpu") -> Model:
    """Load a trained model from a path or URI: the output of the job that trained it, or its `model` folder.

    Networks with weight 0 in the fused score are left out. Weights are checked against the model's manifest.

        model = essp.load_model("runs/ucf101")
        rgb = model.streams["rgb"]
        clip = essp.decode("a.mp4", clip=model.clip)
        seen = essp.compute_feature(clip, rgb.feature, snippets=model.clip.snippets, **rgb.params)
        scores = rgb.score(seen)  # (K,), in the order of model.classes

    device: the PyTorch device of the networks.

    Raises `NotFound` if there is no model, `PermanentError` for weights that differ from the manifest, and
    `ConfigError` for a network that is not installed here, or whose path `ESSP_CODE` does not allow.
    """
    settings, where = Settings(), torch_device(device)
    store, found = open_model(Stores(settings.stores), uri_of("uri", uri))
    streams = {
        member.trainer: _loaded(member, found.streams[member.stream], store, where, settings.code)
        for member in found.deciding
    }
    fusion = fusion_of(store, found)
    return Model(
        classes=found.classes,
        clip=found.clip,
        clips_per_video=found.clips_per_video,
        streams=streams,
        strategy=found.label,
        rule=found.rule,
        reads_features=found.features,
        background=found.background,
        independent=found.independent,
        fusion=fusion,
    )


def _numbers(argument: str, name: str, values: Any) -> NDArray[np.float64]:
    try:
        return np.asarray(values, np.float64)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"must be an array of numbers, got {shown(values)}", field=f"{argument}.{name}", code="type"
        ) from error


def _with_features(name: str, part: ClipScores, features: NDArray[Any]) -> ClipScores:
    rows = features.reshape(-1, features.shape[-1]).astype(np.float16) if features.ndim else features
    if rows.ndim != 2 or len(rows) != len(part.clips):
        raise ConfigError(
            f"must be of as many clips as the scores, {len(part.clips)}, got {len(rows)}",
            field=f"features.{name}",
            code="conflict",
        )
    return replace(part, features=rows)


def _loaded(
    member: Member, stream: StreamSpec, store: ObjectStore, device: torch.device, code: Sequence[str]
) -> StreamModel:
    module = built(member.model, code)
    load_member(module, store, member)
    return StreamModel(
        trainer=member.trainer,
        stream=member.stream,
        feature=member.model.feature,
        params=dict(stream.params),
        weight=member.weight,
        crop=member.model.crop,
        views=member.model.views,
        scale=member.model.evaluation_scale,
        layout=member.model.layout,
        classes=member.model.classes,
        network=member.model.name,
        module=module.to(device).eval(),
        view=stream.view,
    )
