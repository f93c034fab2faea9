"""The candidates of a job: every strategy with every combination of the values in its lists, in their order."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

from essp_common.artifacts.fused_model import label
from essp_common.errors import ConfigError
from essp_common.job.data_spec import Targets
from essp_common.job.fields import ParamValue
from essp_common.job.spec import OF_LABELS, AggregationSpec
from essp_engine.aggregation import registry
from essp_engine.aggregation.port import Aggregator


@dataclass(frozen=True)
class Candidate:
    """One strategy with one value for each parameter in the job."""

    name: str
    params: dict[str, ParamValue]
    aggregator: Aggregator

    @property
    def label(self) -> str:
        """Its name with its parameters, for people."""
        return label(self.name, self.params)


def candidates(spec: AggregationSpec, targets: Targets = "class") -> tuple[Candidate, ...]:
    """All candidates, in the order of `aggregation.strategies`, without duplicates.

    Raises `ConfigError`, which names the place in the job, for strategies that are not installed or need something that
    the job does not provide, for wrong parameters, and for strategies that cannot fuse the trainers' targets.
    """
    found: dict[tuple[str, str], Candidate] = {}
    for number, strategy in enumerate(spec.strategies):
        lists = [value if isinstance(value, tuple) else (value,) for value in strategy.params.values()]
        for values in product(*lists):
            params = dict(zip(strategy.params, values, strict=True))
            try:
                aggregator = registry.create(strategy.name, params)
                _check(aggregator, strategy.name, spec, targets)
            except ConfigError as error:
                raise error.within(f"aggregation.strategies.{number}") from error
            found.setdefault((strategy.name, repr(params)), Candidate(strategy.name, params, aggregator))
    return tuple(found.values())


def _check(aggregator: Aggregator, name: str, spec: AggregationSpec, targets: Targets) -> None:
    if aggregator.needs == "features" and not spec.features:
        raise ConfigError(
            f"{name} learns from the features of clips; set aggregation.features: true, or choose a strategy that "
            "needs only scores (`essp aggregator ls`)",
            code="conflict",
        )
    if targets != "class" and name not in OF_LABELS:
        raise ConfigError(
            f"{name} computes scores that sum to 1 over the classes, but with data.targets: {targets} each label has a "
            f"separate probability; use {' or '.join(OF_LABELS)}",
            code="conflict",
        )
