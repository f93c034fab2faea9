"""What an id is built from can be read from it again."""

from __future__ import annotations

import pytest

from essp_common.runtime import ids


def test_a_pool_of_extractors_names_its_features_in_one_order() -> None:
    assert ids.extractor_pool(["hog", "flow", "hog"]) == "extractor.flow+hog"
    assert ids.features_of("extractor.flow+hog") == ("flow", "hog")


@pytest.mark.parametrize("pool", ["extractor", "decoder", "trainer.job.flow", "aggregator"])
def test_other_pools_name_no_features(pool: str) -> None:
    assert ids.features_of(pool) == ()


def test_the_pool_of_a_training_names_job_and_trainer() -> None:
    pool = ids.trainer_pool("job", "rgb")
    assert ids.is_training(pool)
    assert ids.training_of(pool) == ("job", "rgb")


@pytest.mark.parametrize("pool", ["decoder", "trainer", "trainer.job", "trainer..rgb", "extractor.flow"])
def test_what_is_no_training_is_refused(pool: str) -> None:
    with pytest.raises(ValueError, match="not the pool of a training"):
        ids.training_of(pool)


@pytest.mark.parametrize(
    ("consumer", "service"),
    [
        (ids.trainer_consumer("rgb"), ids.TRAINER),
        (ids.predictor_consumer("rgb"), ids.PREDICTOR),
        (ids.extractor_consumer("flow10"), ids.EXTRACTOR),
    ],
)
def test_a_consumer_tells_its_service(consumer: str, service: str) -> None:
    assert ids.service_of(consumer) == service
