"""Jobs in a row on one Apache Kafka: what they leave on the broker, and whether the last starts as fast as the first.

    ESSP_TEST_KAFKA=DIR python -m tests.kafka.many_jobs --jobs 200

A master, a decoder and an extractor stay; each job has two consumers, which stand for its trainers (`tests/faults`).
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from essp.servers.servers import S3Server
from essp_common import topics
from essp_common.wiring import open_bus
from essp_master.lifecycle import runner
from tests.faults.deployment import Run
from tests.harness.apache_kafka import admin_of
from tests.harness.brokers import kafka_broker
from tests.harness.waiting import until
from tests.kafka.deployment import KafkaDeployment, deployed, set_up
from tests.soak.deployment import S3_ENVIRONMENT

GROUPS_S = 3.0


@dataclass
class Figures:
    """What was measured over a run of jobs."""

    first_clip_s: list[float]
    """Of each job: from its request to its first clip in the hands of a consumer."""
    whole_s: list[float]
    groups: list[int]
    """On the broker, each time that a job has ended."""
    topics: list[int]
    control_records: int

    def summary(self, part: int = 20) -> str:
        """Medians of the first and the last jobs."""
        lines = [
            f"{what}: {median(values[:part]):.2f} s at first, {median(values[-part:]):.2f} s at last"
            for what, values in (("to the first clip", self.first_clip_s), ("a whole job", self.whole_s))
        ]
        lines += [
            f"groups: {self.groups[0]} at first, {max(self.groups)} at most, {self.groups[-1]} at last",
            f"topics: {self.topics[0]} at first, {self.topics[-1]} at last",
            f"{topics.CONTROL}: {self.control_records} records",
        ]
        return "\n".join(lines)


def run_jobs(deployment: KafkaDeployment, count: int, each: int = 1) -> Figures:
    """Run jobs one after the other. `each`: count groups and topics after this number of jobs."""
    figures = Figures([], [], [], [], 0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "_GROUPS_S", GROUPS_S)  # as if a job took ten times as long
        with (
            closing(deployment.adapters("master")) as at_master,
            closing(deployment.adapters("trainer")) as at_consumers,
            deployment.master(at_master) as master,
            admin_of(deployment.kafka.url) as admin,
        ):
            for number in range(count):
                began_s = time.monotonic()
                run = Run(deployment, master, at_consumers, deployment.spec(f"job{number}"))
                try:
                    run.until("a first clip", lambda run=run: any(run.taken.values()))  # type: ignore[misc]
                    figures.first_clip_s.append(time.monotonic() - began_s)
                    run.complete()
                    figures.whole_s.append(time.monotonic() - began_s)
                    run.leaves_nothing()
                finally:
                    run.close()
                if not number % each:
                    figures.groups.append(len(admin.list_groups()))
                    figures.topics.append(len(admin.list_topics()))
                    print(f"{number}: {figures.first_clip_s[-1]:.2f} s, {figures.whole_s[-1]:.2f} s, "
                          f"{figures.groups[-1]} groups, load {os.getloadavg()[0]:.1f}", flush=True)  # fmt: skip
            until(lambda: not any(".job" in group["group_id"] for group in admin.list_groups()), "their groups stay")
            figures.groups.append(len(admin.list_groups()))
    with closing(open_bus(deployment.kafka.url)) as bus:
        (held,) = bus.held(topics.CONTROL)
        figures.control_records = len(held)
    return figures


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    count = parser.parse_args().jobs
    os.environ.update(S3_ENVIRONMENT)
    with (
        tempfile.TemporaryDirectory(prefix="essp-many-jobs-") as name,
        kafka_broker(name) as kafka,
        S3Server(name) as s3,
    ):
        set_up(kafka.url)
        with deployed(Path(name), kafka, s3, kafka.url.partition("?")[0]) as deployment:
            print(run_jobs(deployment, count).summary())


if __name__ == "__main__":
    main()
