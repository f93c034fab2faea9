"""The ids of pools, consumer groups and consumers, and how each is built.

Pools. A pool is scaled as a unit. Workers name their pool in heartbeats, and the master, the chart and the compose file
use the same ids (`tests/chart/test_pools.py`):

    decoder  aggregator  predictor  extractor     one pool each; `extractor` makes every feature
    extractor.<feature>[+<feature>...]            extractors of these features, in alphabetical order
    trainer.<job>.<trainer>                       the ranks of one training

Consumer groups on the bus. Workers that share records are in the same group:

    decoder  aggregator  predictor  master        one group each, with the id of the pool
    aggregator.search                             aggregators, for the candidates of long searches
    extractor.<feature>[+<feature>...]            always with the features, since others read the same topic
    master.<worker>                               a master that recovers no jobs shares nothing
    <consumer>.<job>                              the ranks of one consumer of one job

Consumers. Bytes in the cache are freed when all consumers for which they were stored have acked them:

    trainer.<trainer>  predictor.<stream>         they take a stream of their job
    consumer.<name>                               a user's own loop takes one, too
    extractor.<stream>                            takes the frames from which it makes the stream
"""

from __future__ import annotations

from collections.abc import Iterable

DECODER = "decoder"
EXTRACTOR = "extractor"
TRAINER = "trainer"
AGGREGATOR = "aggregator"
PREDICTOR = "predictor"
MASTER = "master"
SEARCHES = "aggregator.search"
CONSUMER = "consumer"

RESERVED = frozenset({"essp", DECODER, EXTRACTOR, TRAINER, AGGREGATOR, PREDICTOR, MASTER, CONSUMER})
"""Names that a tenant cannot have: its groups or keys could collide with an installation without a tenant."""


def service_of(identity: str) -> str:
    """Return the service that a pool or a consumer belongs to: the first part of its id."""
    return identity.partition(".")[0]


# --- pools ---


def extractor_pool(features: Iterable[str]) -> str:
    """Return the pool, and the consumer group, of extractors of these features."""
    return f"{EXTRACTOR}.{'+'.join(sorted(set(features)))}"


def features_of(pool: str) -> tuple[str, ...]:
    """Return the features in an extractor pool's id; empty for `extractor`, which makes all, and for other pools."""
    service, _, features = pool.partition(".")
    return tuple(features.split("+")) if service == EXTRACTOR and features else ()


def serves(pool: str, work: str) -> bool:
    """Whether workers of a pool do the work of another: `extractor` and `extractor.flow+hof` serve `extractor.flow`."""
    return pool == work or any(pool == EXTRACTOR or feature in features_of(pool) for feature in features_of(work))


def trainer_pool(job: str, trainer: str) -> str:
    """Return the pool of the ranks of one training."""
    return f"{TRAINER}.{job}.{trainer}"


def is_training(pool: str) -> bool:
    """Whether this is the pool of a training."""
    return service_of(pool) == TRAINER


def training_of(pool: str) -> tuple[str, str]:
    """Return job and trainer from the id of a training's pool. Raises `ValueError` for another pool."""
    service, job, trainer = [*pool.split(".", 2), "", ""][:3]
    if service != TRAINER or not job or not trainer:
        raise ValueError(f"{pool!r} is not the pool of a training")
    return job, trainer


# --- consumer groups ---


def unshared_master_group(worker: str) -> str:
    """Return the group of a master that recovers no jobs."""
    return f"{MASTER}.{worker}"


def consumer_group(consumer: str, job: str) -> str:
    """Return the group of the ranks of one consumer of one job."""
    return f"{consumer}.{job}"


# --- consumers ---


def trainer_consumer(trainer: str) -> str:
    """Return the id under which a trainer acks."""
    return f"{TRAINER}.{trainer}"


def loop_consumer(name: str) -> str:
    """Return the id under which a user's own loop acks."""
    return f"{CONSUMER}.{name}"


def predictor_consumer(stream: str) -> str:
    """Return the id under which the predictor acks a stream."""
    return f"{PREDICTOR}.{stream}"


def extractor_consumer(stream: str) -> str:
    """Return the id under which the extractor of a stream acks a clip's frames."""
    return f"{EXTRACTOR}.{stream}"
