"""MCAP recordings of robots and cars, by Foxglove's and ROS 2's schemas.

    runs/pick/2026-03-01.mcap    an event of the class `pick`; each topic with pictures is a view of it

In an MCAP file, the pictures of all cameras are mixed with all other messages, mostly in compressed chunks, so that a
frame cannot be reached without unpacking everything around it. A build therefore copies each camera into a video file
next to the catalog, once: compressed frames as they are, and uncompressed ones without loss (`mcap_recording.py`).

    runs.parquet
    runs.videos/pick/2026-03-01/recording.json    what is in the recording, and which version of it was read
    runs.videos/pick/2026-03-01/camera_0.mp4
    runs.videos/pick/2026-03-01/camera_0.series   the numbers of all other topics, for each frame

A recording that has not changed is not read again. Class and split are folders, as for other videos; without class
folders, recordings have no class, and are for training.
"""

from __future__ import annotations

from collections.abc import Iterator

from essp.catalog.copies import Copies, Document
from essp.catalog.entry import Entry
from essp.catalog.folder_source import places, split_folders
from essp.catalog.found import Found, few
from essp.catalog.layout import RECORDINGS, Layout
from essp_common.distribution import require
from essp_common.errors import ConfigError
from essp_common.objects.port import ObjectInfo
from essp_common.quantities import counted


def is_mcap(found: Found) -> str:
    keys = _recordings(found)
    other = [info for info in found.videos if not _is_a_copy(found, info)] if keys and not found.given else []
    return f"{counted(len(keys), 'MCAP recording')} ({few(keys)})" if keys and not other else ""


def _recordings(found: Found) -> list[str]:
    return [key for key in found.lists if key.lower().endswith(RECORDINGS)]


def _is_a_copy(found: Found, info: ObjectInfo) -> bool:
    copies = found.copies
    return copies is not None and found.store.uri(info.key).startswith(f"{copies.store.uri(copies.folder)}/")


def recordings(found: Found) -> Iterator[Entry]:
    """Each camera of each recording. Raises `ConfigError` without the library `mcap`."""
    require("reading MCAP recordings", "mcap")
    copies = found.copies
    if copies is None:
        raise ConfigError("MCAP recordings are read by `essp catalog build` only", code="unsupported")
    infos = {found.store.uri(key): found.store.head(key) for key in _recordings(found)}
    documents: dict[str, Document | str] = {uri: known for uri, info in infos.items() if (known := copies.known(info))}
    documents |= copies.make({uri: info for uri, info in infos.items() if uri not in documents})
    keys = [info.key for info in infos.values()]
    splits = split_folders(keys, levels=1)
    for (uri, info), place in zip(infos.items(), places(keys, splits), strict=True):
        split = place.split or "train"
        document = documents[uri]
        if isinstance(document, str):
            yield Entry(info.key, uri, place.class_name, split, error=document)
        else:
            found.notes.extend(f"{info.key}: {note}" for note in document["notes"])
            yield from _cameras(copies, info, document, place.class_name, split)
    found.notes.append(
        f"the cameras of {counted(len(infos), 'recording')} are copied to {copies.store.uri(copies.folder)}; the "
        "catalog refers to these copies, so keep them with it"
    )


def _cameras(copies: Copies, info: ObjectInfo, document: Document, class_name: str, split: str) -> Iterator[Entry]:
    folder, name = copies.folder_of(info), info.key.removesuffix(".mcap")
    for camera in document["cameras"]:
        key, topic = f"{folder}/{camera['video']}", camera["topic"]
        file = copies.store.head(key)
        yield Entry(
            f"{name}/{topic.strip('/')}",
            copies.store.uri(key),
            class_name,
            split,
            file.size_bytes,
            file.etag,
            group=name,
            event=name,
            view=topic,
            origin_s=-camera["begins_s"],
            series=copies.store.get(f"{folder}/{camera['series']}"),
            meta={**document["meta"], "recording": info.key, "topic": topic},
            depth=camera["depth"],
        )


MCAP = Layout("mcap", "MCAP recordings (.mcap)", is_mcap, recordings, files=RECORDINGS, copies=True)
