"""Jobs in a row leave nothing on the broker."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp.servers.servers import S3Server
from tests.harness.apache_kafka import ApacheKafka
from tests.kafka.deployment import deployed, set_up
from tests.kafka.many_jobs import run_jobs

JOBS = 6


@pytest.mark.integration
def test_jobs_in_a_row_leave_no_groups_and_topics(tmp_path: Path, s3_server: S3Server) -> None:
    with ApacheKafka(tmp_path / "kafka") as kafka:
        url = kafka.url.partition("?")[0]
        set_up(url)
        with deployed(tmp_path, kafka, s3_server, url) as deployment:
            figures = run_jobs(deployment, JOBS)
    assert figures.groups[-1] == 3, "those of the decoder, the extractor and the master"
    assert len(set(figures.topics)) == 1
    assert figures.control_records == 2 * JOBS
