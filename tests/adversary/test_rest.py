"""Requests that the description of the API forbids, and sequences of requests: never a server error; the master lives.

`tests/unit/essp_master/api/test_fuzz.py` sends what the description allows; here is the rest of what schemathesis does:
the edges of each schema (coverage), values against the schema (negative), and the operations one after the other with
what earlier answers named (stateful).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import run_state_machine_as_test
from schemathesis import APIOperation
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import content_type_conformance, status_code_conformance

from essp_common.job.status import JobState
from essp_master.config import MasterSettings
from essp_master.service import Master
from tests.adversary.storms import STRENGTH, storm
from tests.harness.fleet import Fleet, adapters_in, make_job, master_over, run_to_rest
from tests.harness.serving import served, whole_app

CHECKS = [not_a_server_error, content_type_conformance]
SCHEMA = schemathesis.openapi.from_path(str(Path(__file__).parents[2] / "docs" / "openapi.json"))
MOST = 60
"""Edges of an operation that are tried as they come; of more only each twelfth, outside of a storm."""
STREAMS = "/events"
"""Of a job that runs they do not end; what they answer is tested by name elsewhere."""


@dataclass(frozen=True)
class Place:
    """A master that is served, with everything that the API speaks of."""

    url: str
    master: Master
    fleet: Fleet


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("rest")
    with ExitStack() as opened:
        adapters = opened.enter_context(closing(adapters_in(folder)))
        master = master_over(adapters)
        job = make_job(folder)
        fleet = opened.enter_context(closing(Fleet(adapters, job)))
        unlimited = MasterSettings.model_validate({"api_requests_per_s": 0})
        url = opened.enter_context(served(whole_app(master, folder, unlimited), unlimited))
        yield Place(url, master, fleet)


def operations() -> list[APIOperation[Any, Any, Any, Any]]:
    found = [result.ok() for result in SCHEMA.get_all_operations() if isinstance(result, Ok)]
    return [operation for operation in found if STREAMS not in operation.path]


@pytest.mark.parametrize("operation", operations(), ids=lambda operation: operation.label)
def test_what_is_against_the_description_is_no_server_error(
    place: Place, operation: APIOperation[Any, Any, Any, Any]
) -> None:
    allowed, forbidden = (operation.as_strategy(generation_mode=mode) for mode in GenerationMode)

    @given(case=st.one_of(forbidden, allowed))
    @storm(4)
    def answers(case: schemathesis.Case[Any]) -> None:
        case.call_and_validate(base_url=place.url, checks=CHECKS)

    answers()


AS_ELSEWHERE = "POST /v1/jobs:validate"
"""Takes the body of `POST /v1/jobs`, which is read in the same way, and has thousands of edges."""


@pytest.mark.lane("long")
@pytest.mark.parametrize(
    "operation",
    [one for one in operations() if STRENGTH > 1 or one.label != AS_ELSEWHERE],
    ids=lambda operation: operation.label,
)
def test_the_edges_of_the_description_are_no_server_error(
    place: Place, operation: APIOperation[Any, Any, Any, Any]
) -> None:
    generation = SCHEMA.config.generation_for(operation=operation)
    edges = SCHEMA.iter_coverage_cases(operation, generation_modes=[*GenerationMode], generation_config=generation)
    for number, case in enumerate(edges):
        if STRENGTH > 1 or number < MOST or number % 12 == 0:
            case.call_and_validate(base_url=place.url, checks=CHECKS)


def test_requests_one_after_the_other_are_no_server_error(place: Place) -> None:
    class Sequence(SCHEMA.as_state_machine()):  # type: ignore[misc]
        def get_call_kwargs(self, case: schemathesis.Case[Any]) -> dict[str, Any]:
            return {"base_url": place.url}

        def validate_response(self, response: Any, case: Any, **more: Any) -> None:
            case.validate_response(response, checks=[*CHECKS, status_code_conformance])

    options = settings(
        max_examples=3 * STRENGTH,
        stateful_step_count=4,
        derandomize=STRENGTH == 1,
        database=None,
        suppress_health_check=list(HealthCheck),
    )
    run_state_machine_as_test(Sequence, settings=options)


def test_after_the_storms_a_job_ends_as_ever(place: Place) -> None:
    for job in place.master.jobs():
        if not job.state.ended:
            place.master.stop(job.name)
    place.master.step(0)
    place.master.start(place.fleet.job, fresh=True)
    run_to_rest(place.master, place.fleet)
    place.fleet.finish()
    run_to_rest(place.master, place.fleet)
    status = place.master.status(place.fleet.job.name)
    assert status.state is JobState.COMPLETED, status.reason
