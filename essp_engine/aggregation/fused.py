"""The fusion of the scores of a fused model's members, for the predictor, the report and `essp.load_model`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from essp_common.artifacts.fused_model import FusedModel, strategy_state
from essp_common.artifacts.scores import Rule, VideoScores, fuse
from essp_common.errors import ConfigError, PermanentError
from essp_common.objects.port import ObjectStore
from essp_engine.aggregation import registry
from essp_engine.aggregation.port import Parts

Fuse = Callable[[Parts], VideoScores]
"""The scores of clips of each trainer -> one score of each video."""


def fusion_of(folder: ObjectStore, model: FusedModel) -> Fuse:
    """The fusion of the model in this folder.

    Raises `PermanentError` for a state that does not match the model, or if the strategy is not installed here.
    """
    if model.rule is not None:
        return partial(_by_rule, dict(model.weights), model.rule)
    state = strategy_state(folder, model)
    try:
        aggregator = registry.create(model.strategy, model.params)
    except ConfigError as error:
        raise PermanentError(f"the strategy that fused the model cannot be used here: {error}") from error
    return partial(aggregator.predict, state=state)


def _by_rule(weights: Mapping[str, float], rule: Rule, parts: Parts) -> VideoScores:
    return fuse({name: part.means for name, part in parts.items()}, weights, rule)
