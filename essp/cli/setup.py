"""`essp setup`: make what the servers have to hold before the first service starts.

Topics with the partitions that ESSP needs and, where asked for, the buckets of ESSP_STORES. What is there already is
left as it is, so it may run at every start: the compose file and the chart do. It needs rights that services can then
be without (Kafka: create topics; S3: create buckets).
"""

from __future__ import annotations

from contextlib import closing
from typing import Annotated

import typer

from essp_common import topics
from essp_common.runtime.config import Settings
from essp_common.wiring import open_bus


def main(
    feature: Annotated[
        list[str] | None, typer.Option(help="Create the topic of this feature, too; may be given again.")
    ] = None,
    buckets: Annotated[bool, typer.Option(help="Create the buckets of ESSP_STORES that are missing.")] = False,
) -> None:
    """Create topics and, with --buckets, buckets. Settings come from the environment (ESSP_BUS, ESSP_STORES)."""
    settings = Settings()
    wanted = [*topics.FIXED, topics.DOCTOR, *map(topics.features, feature or ())]
    with closing(open_bus(settings.bus, settings.bus_login)) as bus:
        bus.ensure_topics({topic: topics.partitions(topic) for topic in wanted})
    typer.echo(f"topics are there: {', '.join(wanted)}")
    if buckets:
        for root in settings.stores:
            if root.startswith("s3://"):
                typer.echo(f"bucket {_create_bucket(root)}")


def _create_bucket(root: str) -> str:
    from essp_common.objects.s3 import S3Store

    store = S3Store.from_url(root)
    return f"{root.partition('?')[0]} {'was created' if store.create_bucket() else 'is there'}"
