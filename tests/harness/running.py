"""Services, each in a thread, for as long as a block lasts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from essp_common.runtime.service import Service


@contextmanager
def running(*services: Service) -> Iterator[None]:
    """Run services until the block ends; then they are drained, the last one first."""
    threads = [threading.Thread(target=service.run, name=service.name) for service in services]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for service, thread in reversed(list(zip(services, threads, strict=True))):
            service.drain()
            thread.join()
