"""`essp job start --fresh`: what goes is said, and asked if it is another job's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.command_line import essp
from tests.harness.refused import refused
from tests.harness.serving import Served


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path) as made:
        yield made


def test_the_output_of_another_job_is_asked_for(served: Served, tmp_path: Path) -> None:
    served.start()
    served.client.post("/v1/jobs/small:stop")
    file = tmp_path / "job.json"

    def start(name: str, *more: str, typed: str | None = None) -> str:
        file.write_text(served.job.model_copy(update={"name": name}).model_dump_json())
        return essp("job", "start", str(file), "--fresh", *more, "--server", served.url, typed=typed).stderr

    with refused("--yes", "missing"):
        start("other")
    start("other", typed="n\n")
    assert [job.name for job in served.master.jobs()] == ["small"]
    told = start("small")
    assert "--fresh removes job small in its output: " in told
    assert "?" not in told
    served.client.post("/v1/jobs/small:stop")
    told = start("other", typed="y\n")
    assert "the output of another job, small" in told
    assert "Remove the output of job small?" in told
    served.client.post("/v1/jobs/other:stop")
    assert "removes job other" in start("third", "--yes")
