"""The registry of strategies: ESSP's own, and all that are installed under the entry-point group `essp.aggregators`.

Another package adds one with one line of its `pyproject.toml`,

    [project.entry-points."essp.aggregators"]
    median = "our_package.median:Median"

and a class with the interface `essp_engine.aggregation.port.Aggregator`. It must be installed where the master, the
aggregator and the predictor run. `essp_common.plugins` documents how classes are loaded and parameters validated.
ESSP's own strategies are listed here instead of as entry points, because they are the default of a job.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from essp_common.plugins import Group
from essp_engine.aggregation.port import Aggregator

_HERE = "essp_engine.aggregation"
_AGGREGATORS = Group(
    group="essp.aggregators",
    noun="aggregator",
    members=("summary", "needs", "io", "Params", "rule", "fit", "predict", "shares"),
    port=f"{_HERE}.port",
    own={
        "average": f"{_HERE}.means:Average",
        "product": f"{_HERE}.means:Product",
        "best": f"{_HERE}.means:Best",
        "weighted": f"{_HERE}.means:Weighted",
        "weighted_product": f"{_HERE}.means:WeightedProduct",
        "max": f"{_HERE}.pooling:Max",
        "top_k": f"{_HERE}.pooling:TopK",
        "linear": f"{_HERE}.linear:Linear",
        "attention": f"{_HERE}.attention:Attention",
        "feature_linear": f"{_HERE}.encoded:FeatureLinear",
        "fisher_vector": f"{_HERE}.encoded:FisherVector",
        "vlad": f"{_HERE}.encoded:Vlad",
        "bag_of_words": f"{_HERE}.encoded:BagOfWords",
        "compact_bilinear": f"{_HERE}.encoded:CompactBilinear",
        "lstm": f"{_HERE}.recurrent:Lstm",
    },
)


def names() -> list[str]:
    """The names of all installed strategies, sorted. Some may fail to load."""
    return _AGGREGATORS.names()


def create(name: str, params: Mapping[str, Any]) -> Aggregator:
    """A strategy with its parameters.

    Raises `ConfigError` for a strategy that is not installed or cannot be loaded, and for parameters that are unknown,
    of the wrong type or out of range.
    """
    kind = aggregator_class(name)
    return kind(_AGGREGATORS.checked(name, kind.Params, params))


def aggregator_class(name: str) -> type[Aggregator]:
    """The class that is registered under a name. Raises `ConfigError` if the name is not registered or the class does
    not load."""
    return cast("type[Aggregator]", _AGGREGATORS.load(name))
