"""Whatever is sent to the API, valid or not, it answers as it says it does, and never with a server error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import APIOperation
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from essp_master.config import MasterSettings
from tests.harness.fleet import adapters_in, make_job, master_over
from tests.harness.serving import served, whole_app

pytestmark = pytest.mark.slow

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
DESCRIPTION = Path(__file__).parents[4] / "docs" / "openapi.json"
Operation = APIOperation[Any, Any, Any, Any]


def names() -> list[str]:
    """Method and path of all that the description has: quickly, since each test worker asks for them."""
    paths = json.loads(DESCRIPTION.read_text())["paths"]
    return [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]


@pytest.fixture(scope="module")
def operations() -> dict[str, Operation]:
    """They, by name. Fails where the description describes one wrongly."""
    found = {}
    for result in schemathesis.openapi.from_path(str(DESCRIPTION)).get_all_operations():
        assert isinstance(result, Ok), result.err()
        found[result.ok().label] = result.ok()
    return found


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An API that is being served, with a job that has ended."""
    folder: Path = tmp_path_factory.mktemp("fuzz")
    with closing(adapters_in(folder)) as adapters:
        master = master_over(adapters)
        job = make_job(folder)
        master.start(job)
        master.stop(job.name)
        with served(whole_app(master, folder, MasterSettings())) as url:
            yield url


@pytest.mark.parametrize("name", names())
def test_it_answers_as_it_says(url: str, operations: dict[str, Operation], name: str) -> None:
    operation = operations[name]

    @settings(max_examples=(settings().max_examples + 3) // 4, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy())
    def answers(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=url, checks=CHECKS)

    answers()


def test_the_description_is_the_one_that_was_agreed(url: str) -> None:
    """What has been promised changes knowingly: `make docs` writes it anew."""
    assert httpx.get(f"{url}/openapi.json").json() == json.loads(DESCRIPTION.read_text())
