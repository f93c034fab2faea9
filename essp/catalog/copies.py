"""The copies that a build makes of the cameras of recordings, next to its catalog (`mcap.py` says why)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from essp.catalog.progress import Tally, Tell
from essp_common.errors import NotFound
from essp_common.objects.port import ObjectInfo, ObjectStore
from essp_common.runtime.temporary import TemporaryFolder
from essp_engine.decoding.probing import Outcome, ProbeOptions, Prober

_READ = "essp.catalog.mcap_recording:read"
RECORDING, _VERSION = "recording.json", 1
Document = Mapping[str, Any]
"""The content of `recording.json`: a `mcap_recording.Recording`, and which version of the file it describes."""


@dataclass(frozen=True, slots=True)
class Copies:
    """Where a build copies the cameras of recordings to."""

    store: ObjectStore
    """The catalog's."""
    folder: str
    """The key of the folder."""
    roots: Sequence[str]
    """The stores in which the recordings are."""
    probe: ProbeOptions
    progress: Tell | None = None

    def known(self, recording: ObjectInfo) -> Document | None:
        """What was copied of this version of a recording before; None: nothing, or not all of it."""
        found = self._document(recording)
        if found is None or found["of"] != _version(recording):
            return None
        there = {info.key for info in self.store.list(f"{self.folder_of(recording)}/")}
        return found if there >= set(self._keys(recording, found)) else None

    def _document(self, recording: ObjectInfo) -> Document | None:
        """What a build has written, or begun to write, of any version of a recording."""
        try:
            found = json.loads(self.store.get(f"{self.folder_of(recording)}/{RECORDING}"))
            self._keys(recording, found)
        except (NotFound, ValueError, LookupError, TypeError):
            return None
        return found if "of" in found else None

    def folder_of(self, recording: ObjectInfo) -> str:
        """The key of the folder of a recording."""
        return f"{self.folder}/{recording.key.removesuffix('.mcap')}"

    def make(self, uris: Mapping[str, ObjectInfo]) -> Iterator[tuple[str, Document | str]]:
        """Copy these recordings. Yields the URI of each, with what is in it, or with its error."""
        tally = Tally(len(uris), sum(info.size_bytes for info in uris.values()), 0, time.monotonic(), self.progress)
        with TemporaryFolder("mcap") as scratch:
            options = replace(
                self.probe,
                workers=max(1, min(self.probe.workers, len(uris))),
                probe=_READ,
                argument=scratch,
                sums=False,
                quick=False,
                confined=False,
            )
            with Prober(self.roots, options) as prober:
                for outcome in prober.read(uris):
                    info = uris[outcome.uri]
                    yield outcome.uri, outcome.error or self._kept(Path(scratch), info, outcome)
                    tally.count(info.size_bytes, outcome.error is not None)

    def _kept(self, scratch: Path, info: ObjectInfo, outcome: Outcome) -> Document | str:
        """Store the copies of a recording, and remove those of an earlier version of it. Returns an error instead if
        there are files that no build has written.

        The document names all copies, old and new, before one is written or removed: so the next build knows which
        files are its own, also if this one is killed here."""
        document = {**outcome.facts, "of": _version(info)}
        folder, keys, earlier = self.folder_of(info), self._keys(info, document), self._document(info)
        known = [] if earlier is None else self._keys(info, earlier)
        ours = {*known, *([] if earlier is None else [f"{folder}/{RECORDING}"])}
        written = {*keys, f"{folder}/{RECORDING}"}
        there = {old.key for old in self.store.list(f"{folder}/")}
        if strange := sorted(there & written - ours):
            return f"{self.store.uri(strange[0])} was not written by ESSP; move it, or build the catalog elsewhere"
        begun = {"of": None, "cameras": [*document["cameras"], *([] if earlier is None else earlier["cameras"])]}
        self._put(folder, begun)
        for key in keys:
            copy = scratch / Path(document["folder"]).name / key.rpartition("/")[2]
            self.store.put_file(key, str(copy))
            copy.unlink()
        for old in set(known) - set(keys):
            self.store.delete(old)
        self._put(folder, document)
        return document

    def _put(self, folder: str, document: Document) -> None:
        self.store.put(f"{folder}/{RECORDING}", json.dumps(document, indent=1).encode())

    def _keys(self, info: ObjectInfo, document: Document) -> list[str]:
        """The keys of the copies of a recording."""
        names = (camera[kind] for camera in document["cameras"] for kind in ("video", "series"))
        return [f"{self.folder_of(info)}/{name}" for name in names]


def _version(recording: ObjectInfo) -> list[Any]:
    return [_VERSION, recording.size_bytes, recording.etag]
