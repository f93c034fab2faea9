"""The check of a data set: reads each file of a catalog once, keeps the results and reports what is wrong.

Guarantees: a file that hangs or crashes its reader is a finding and harms no other file
(`essp_engine.decoding.probing`); a check that was interrupted or killed continues where it stopped (`Parts`) and
reports what it has found so far; files that have changed since are read again. The check does not write to the catalog
or the videos.

Raises `Unavailable` when a store stops answering (what was read is kept), and `NotFound` or `ConfigError` for a file
that is not a catalog.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from essp.catalog.check.findings import Finding, Wanted, find
from essp.catalog.check.measures import Checked, Measures, Stretch, measures_of, packed, unpacked
from essp.catalog.journal import Parts
from essp.catalog.progress import Tally, Tell
from essp.folders import check_file
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import read_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import PermanentError
from essp_common.objects.port import ObjectStore
from essp_common.wiring import Stores
from essp_engine.decoding.probing import Outcome, ProbeOptions, Prober, gave_up_after_s

DECODED = "essp.catalog.check.reading:decoded"
PACKETS_ONLY = "essp.catalog.check.reading:packets_only"
TIMEOUT_S = 1800.0
_SAMPLE_SEED = 0
_PASSING = ("vanished", "timeout", "hung", "crashed", "error")
"""Kinds of errors that may not recur in another attempt."""


@dataclass(frozen=True, slots=True)
class CheckOptions:
    """The options of a check."""

    wanted: Wanted = field(default_factory=Wanted)
    fast: bool = False
    """Read packets only and decode nothing."""
    limit: int | None = None
    """Check only this number of videos, the first of the catalog."""
    sample: int | None = None
    """Check only this number of videos, spread over the catalog. The choice is the same each time."""
    probe: ProbeOptions = field(default_factory=lambda: ProbeOptions(timeout_s=TIMEOUT_S))
    """`probe.probe` follows from `fast`, unless it differs from the default."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a check."""

    catalog: str
    videos: int
    """Rows that were checked."""
    videos_total: int
    files: int
    """Files that were read, by this check or by an interrupted one before it."""
    files_total: int
    decoded: bool
    findings: Sequence[Finding]
    pictures: Mapping[tuple[str, int], Sequence[str]]
    """The pictures that findings show: JPEG in base64."""
    elapsed_s: float

    @property
    def complete(self) -> bool:
        """False: the check was interrupted, so some files were not read."""
        return self.files == self.files_total

    def counts(self) -> dict[str, int]:
        """The number of findings of each kind that occurs, the gravest first."""
        found: dict[str, int] = {}
        for finding in self.findings:
            found[finding.kind] = found.get(finding.kind, 0) + 1
        return found


class Check:
    """One check. `read` may be interrupted at any time; `report` then returns what was found."""

    def __init__(self, catalog: str, out: str, roots: Sequence[str], options: CheckOptions | None = None) -> None:
        """`catalog`, `out`: URIs in the stores at `roots`. The journal is next to `out`."""
        self._options = options = options or CheckOptions()
        self._uri, self._roots, self._started = catalog, roots, time.monotonic()
        stores = Stores(roots, options.probe.store_patience_s)
        store, key = stores.resolve(catalog)
        self._catalog = read_catalog(store, key)
        self._rows = chosen(self._catalog, options)
        self._store, self._key = stores.resolve(out)
        check_file("--page", self._store, self._key, "check.html")
        self._journal = _Journal(self._store, self._key, "packets" if options.fast else "decoded")
        self._files = {row.uri: row for row in self._rows if row.error is None}
        self._measures: dict[str, Measures] = {}
        for checked in self._journal:
            row = self._files.get(checked.uri)
            if row and (row.size_bytes, row.etag) == (checked.size_bytes, checked.etag) and self._lasts(checked):
                self._measures[checked.uri] = checked.measures.bare()

    def read(self, progress: Tell | None = None) -> None:
        """Read the files whose measures are not known yet."""
        wanted = {uri: row for uri, row in self._files.items() if uri not in self._measures}
        probe = self._options.probe
        name = PACKETS_ONLY if self._options.fast else DECODED
        if probe.probe == ProbeOptions().probe:
            probe = replace(probe, probe=name)
        probe = replace(probe, workers=max(1, min(probe.workers, len(wanted))))
        size_bytes = sum(row.size_bytes for row in wanted.values())
        tally = Tally(len(wanted), size_bytes, len(self._measures), self._started, progress)
        try:
            with Prober(self._roots, probe) as prober:
                for outcome in prober.read(wanted):
                    row, seen = wanted[outcome.uri], _measures(outcome)
                    self._journal.add(Checked(row.uri, row.size_bytes, row.etag, seen))
                    self._measures[row.uri] = seen.bare()
                    tally.count(row.size_bytes, seen.error is not None)
        finally:
            self._journal.save()

    def report(self) -> Report:
        """The findings in the files that were read so far."""
        findings = find(self._rows, self._measures, self._options.wanted)
        return Report(
            self._uri,
            len(self._rows),
            len(self._catalog.rows),
            len(self._measures),
            len(self._files),
            not self._options.fast,
            findings,
            _pictures(findings, self._journal),
            time.monotonic() - self._started,
        )

    def write(self, page: bytes) -> str:
        """Write the page and return its URI. A complete check removes its journal."""
        self._store.put(self._key, page)
        if len(self._measures) == len(self._files):
            self._journal.clear()
        return self._store.uri(self._key)

    def _lasts(self, checked: Checked) -> bool:
        """Whether reading the file again would give the same result."""
        error = checked.measures.error
        passing = (error or "").partition(":")[0] in _PASSING
        return not passing or gave_up_after_s(error) >= self._options.probe.timeout_s


def chosen(catalog: Catalog, options: CheckOptions) -> Sequence[VideoRow]:
    """The rows to check."""
    rows: Sequence[VideoRow] = catalog.rows
    if options.sample is not None and options.sample < len(rows):
        places = sorted(random.Random(_SAMPLE_SEED).sample(range(len(rows)), options.sample))
        return [rows[place] for place in places]
    return list(rows if options.limit is None else rows[: options.limit])


class _Journal(Parts[Checked]):
    """The files that a check has read in one mode."""

    def __init__(self, store: ObjectStore, key: str, way: str) -> None:
        super().__init__(store, f"{key}.{way}")

    def _read(self, store: ObjectStore, part: str) -> Iterable[Checked]:
        try:
            return unpacked(store.get(part))
        except ValueError as error:
            raise PermanentError(str(error)) from error

    def _write(self, store: ObjectStore, part: str, rows: Sequence[Checked]) -> None:
        store.put(part, packed(rows))


def _measures(outcome: Outcome) -> Measures:
    if outcome.error is not None:
        return Measures(error=outcome.error)
    facts: dict[str, Any] = dict(outcome.facts)
    return measures_of(facts)


def _pictures(findings: Sequence[Finding], journal: Iterable[Checked]) -> dict[tuple[str, int], Sequence[str]]:
    """The pictures that findings show, which only the journal has."""
    wanted = {show for finding in findings for show in finding.shows}
    files = {uri for uri, _ in wanted}
    found: dict[tuple[str, int], Sequence[str]] = {}
    for checked in journal:
        if checked.uri in files:
            seen: Sequence[Stretch] = checked.measures.stretches
            found |= {
                (checked.uri, place): one.pictures for place, one in enumerate(seen) if (checked.uri, place) in wanted
            }
            found[checked.uri, -1] = checked.measures.strip
    return found
