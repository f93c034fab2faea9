"""The command that starts a worker of a pool: the master runs it if it may, and otherwise shows it to users."""

from __future__ import annotations

from essp_common.errors import ConfigError
from essp_common.runtime import ids


def command_of(pool: str, ranks: int = 1) -> tuple[str, ...]:
    """Return the arguments of `essp`. Raises `ConfigError` for an unknown pool."""
    if pool in (ids.DECODER, ids.AGGREGATOR, ids.PREDICTOR):
        return (pool,)
    if pool == ids.EXTRACTOR or ids.features_of(pool):
        return (ids.EXTRACTOR, "run", *(f"--feature={feature}" for feature in ids.features_of(pool)))
    try:
        job, trainer = ids.training_of(pool)
    except ValueError:
        pools = "decoder, extractor, extractor.FEATURE, aggregator, predictor"
        raise ConfigError(f"there is no pool {pool!r}; pools are {pools}", code="unknown") from None
    return (ids.TRAINER, f"--job={job}", f"--trainer={trainer}", *([f"--ranks={ranks}"] if ranks > 1 else []))
