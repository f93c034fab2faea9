"""The ids by which pools, consumer groups and consumers know one another, and how each is built.

Pools. A pool is what is scaled as one. Workers name theirs in heartbeats, and the master, the chart and the compose
file use the same ids (`tests/chart/test_pools.py`):

    decoder  aggregator  predictor  extractor     one pool each; `extractor` makes every feature
    extractor.<feature>[+<feature>...]            extractors of these features, in alphabetical order
    trainer.<job>.<trainer>                       the ranks of one training

Consumer groups on the bus. Workers that share records are in one group:

    decoder  aggregator  predictor  master        one group each, with the id of the pool
    extractor.<feature>[+<feature>...]            always with the features, since others read the same topic
    master.<worker>                               a master that recovers no jobs shares nothing
    <consumer>.<job>                              the ranks of one consumer of one job

Consumers. Bytes in the cache are freed when all consumers that their key names have acked them:

    trainer.<trainer>  predictor.<stream>         they take a stream of their job
    consumer.<name>                               a loop of the user's own takes one, too
    extractor.<stream>                            takes the frames of which it makes the stream
"""

from __future__ import annotations

from collections.abc import Iterable

DECODER = "decoder"
EXTRACTOR = "extractor"
TRAINER = "trainer"
AGGREGATOR = "aggregator"
PREDICTOR = "predictor"
MASTER = "master"
CONSUMER = "consumer"

RESERVED = frozenset({"essp", DECODER, EXTRACTOR, TRAINER, AGGREGATOR, PREDICTOR, MASTER, CONSUMER})
"""No names of tenants: a group or key of such a tenant could be that of an installation without one."""


def service_of(identity: str) -> str:
    """The service that a pool or a consumer belongs to: the first part of its id."""
    return identity.partition(".")[0]


# --- pools ---


def extractor_pool(features: Iterable[str]) -> str:
    """The pool, and the consumer group, of extractors of these features."""
    return f"{EXTRACTOR}.{'+'.join(sorted(set(features)))}"


def features_of(pool: str) -> tuple[str, ...]:
    """The features in the id of an extractors' pool; empty for `extractor`, which makes all, and for other pools."""
    service, _, features = pool.partition(".")
    return tuple(features.split("+")) if service == EXTRACTOR and features else ()


def serves(pool: str, work: str) -> bool:
    """Whether workers of a pool do the work of another: `extractor` and `extractor.flow+hof` do that of
    `extractor.flow`."""
    return pool == work or any(pool == EXTRACTOR or feature in features_of(pool) for feature in features_of(work))


def trainer_pool(job: str, trainer: str) -> str:
    """The pool of the ranks of one training."""
    return f"{TRAINER}.{job}.{trainer}"


def is_training(pool: str) -> bool:
    """The pool is that of a training."""
    return service_of(pool) == TRAINER


def training_of(pool: str) -> tuple[str, str]:
    """The job and the trainer in the id of a training's pool. Raises `ValueError` for another pool."""
    service, job, trainer = [*pool.split(".", 2), "", ""][:3]
    if service != TRAINER or not job or not trainer:
        raise ValueError(f"{pool!r} is not the pool of a training")
    return job, trainer


# --- consumer groups ---


def unshared_master_group(worker: str) -> str:
    """The group of a master that recovers no jobs."""
    return f"{MASTER}.{worker}"


def consumer_group(consumer: str, job: str) -> str:
    """The group of the ranks of one consumer of one job."""
    return f"{consumer}.{job}"


# --- consumers ---


def trainer_consumer(trainer: str) -> str:
    """The id under which a trainer acks."""
    return f"{TRAINER}.{trainer}"


def loop_consumer(name: str) -> str:
    """The id under which a loop of the user's own acks."""
    return f"{CONSUMER}.{name}"


def predictor_consumer(stream: str) -> str:
    """The id under which the predictor acks a stream."""
    return f"{PREDICTOR}.{stream}"


def extractor_consumer(stream: str) -> str:
    """The id under which the extractor of a stream acks a clip's frames."""
    return f"{EXTRACTOR}.{stream}"
