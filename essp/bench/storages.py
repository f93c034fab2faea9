"""The storages from which a benchmark reads its source: its own location and copies in other stores, optionally
throttled.

Each named store receives a copy of every object that may be read, in a separate folder `essp-bench-<random>`. The
folder is removed at the end, also after an error or Ctrl-C, but not after a kill. A throttle slows down only the
measured reads, not the copying.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from essp.bench.places import once_each, remove
from essp.bench.sources import Source
from essp.folders import store_for
from essp_common.objects.port import ObjectStore
from essp_common.objects.throttled import Device, Throttle, ThrottledStore
from essp_common.wiring import Stores

IN_PLACE = "source"
"""The name of the storage that is the source's own location."""
Copied = Callable[[int, int], None]
"""Called with the number of objects copied so far and in total. May raise an exception to stop."""


@dataclass(frozen=True, slots=True)
class Storage:
    """A source, as read from one storage."""

    name: str
    source: Source
    files: tuple[str, ...]
    """Distinct local paths of the files that are read, which `--cold` evicts."""
    network: bool
    """Whether it is read from another machine."""
    throttle: Throttle | None = None


@contextmanager
def storages(
    source: Source,
    stores: Stores,
    uris: Sequence[str],
    throttles: Sequence[tuple[str, Throttle]],
    copied: Copied = lambda done, total: None,
) -> Iterator[list[Storage]]:
    """The source in each of these stores (none: its own location), at each of these throttles (none: full speed).

    `throttles`: with the names they have in results. Raises what the stores raise.
    """
    with ExitStack() as stack:
        found: list[Storage] = []
        for uri in uris or [IN_PLACE]:
            there = (
                source
                if uri == IN_PLACE
                else stack.enter_context(_copy(source, store_for("--store", uri, stores), copied))
            )
            plain = Storage(uri, there, _files(there), _is_remote(there))
            found += [_slowed(plain, name, throttle) for name, throttle in throttles] or [plain]
        yield found


def _slowed(storage: Storage, name: str, throttle: Throttle) -> Storage:
    device = Device(throttle)
    source = storage.source.through(lambda store: ThrottledStore(store, device))
    named = name if storage.name == IN_PLACE else f"{storage.name} at {name}"
    return Storage(named, source, storage.files, storage.network, throttle)


@contextmanager
def _copy(source: Source, store: ObjectStore, copied: Copied) -> Iterator[Source]:
    root = f"essp-bench-{uuid.uuid4().hex[:12]}"
    folders: dict[int, str] = {}
    """The folder for each store that contains objects of the source."""

    @once_each
    def wrap(other: ObjectStore) -> ObjectStore:
        folders[id(other)] = f"{root}/{len(folders)}"
        return store.below(folders[id(other)])

    objects = source.objects()
    try:
        for done, place in enumerate(objects):
            copied(done, len(objects))
            target = place.through(wrap)
            if path := place.store.local_path(place.key):
                target.store.put_file(target.key, path)
            else:
                target.store.put(target.key, place.store.get(place.key))
        copied(len(objects), len(objects))
        yield source.through(wrap)
    finally:
        remove(store, root)


def _files(source: Source) -> tuple[str, ...]:
    paths = (place.file() for place in source.objects())
    return tuple(dict.fromkeys(path for path in paths if path is not None))


def _is_remote(source: Source) -> bool:
    return any(not place.store.uri(place.key).startswith("file:") for place in source.objects()[:1])
