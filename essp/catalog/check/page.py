"""The page of a check: its findings by kind, the gravest first, with pictures of the frames in question.

The page is one self-contained file. Of each kind the first findings are open and the others folded, so that many
harmless ones do not push the rest out of sight. Without scripts the filter does nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib.resources import files
from itertools import groupby

from essp.catalog.check.findings import GRAVITIES, KINDS, Finding
from essp.catalog.check.run import Report
from essp.pages.elements import Raw, document, section, tiles

MOST = 60
"""The most findings of a kind on the page. The page says how many more exist."""
_OPEN = 6
"""Findings of a kind that are not folded."""
_OTHERS = 8
_FILES = 4
"""The most files that one finding shows."""
_PICTURES = 4


def render(report: Report) -> str:
    """The page, as HTML."""
    folder = files("essp.catalog.check")
    style, script = (folder.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    kinds = [(kind, list(found)) for kind, found in groupby(report.findings, key=lambda finding: finding.kind)]
    parts = [_head(report), _filter(kinds)]
    parts += [_kind(kind, found, report) for kind, found in kinds]
    if not kinds:
        parts.append(section("Nothing found", "<p>This check found no fault of any kind that it knows.</p>"))
    name = report.catalog.rpartition("/")[2]
    return document(f"{name} · ESSP check", parts, style, script)


def _head(report: Report) -> str:
    counts = dict.fromkeys(GRAVITIES, 0)
    for finding in report.findings:
        counts[finding.gravity] += 1
    how = "every frame decoded" if report.decoded else "packets only: no frame was decoded"
    figures = [
        *((f"{gravity}s", f"{count:,}") for gravity, count in counts.items()),
        (f"of {report.videos_total:,} videos checked", f"{report.videos:,}"),
        (f"files read, {how}", f"{report.files:,}"),
    ]
    unread = report.files_total - report.files
    stopped = f"<p><b>Interrupted: {unread:,} files were not read.</b> Run the same command again to continue.</p>"
    return (
        f'<h1>{escape(report.catalog.rpartition("/")[2])}</h1><p class="quiet">{escape(report.catalog)}</p>'
        f"{'' if report.complete else stopped}{tiles(figures)}"
    )


def _filter(kinds: Sequence[tuple[str, Sequence[Finding]]]) -> str:
    buttons = "".join(
        f'<button type="button" class="{KINDS[kind].gravity}" data-kind="{kind}" aria-pressed="false">'
        f"{escape(KINDS[kind].title)} <b>{len(found):,}</b></button>"
        for kind, found in kinds
    )
    return f'<nav class="kinds" aria-label="Show only">{buttons}</nav>' if kinds else ""


def _kind(kind: str, found: Sequence[Finding], report: Report) -> str:
    about = KINDS[kind]
    title = Raw(
        f'{len(found):,} &times; {escape(about.title)} <span class="badge {about.gravity}">{about.gravity}</span>'
    )
    shown = _cards(found[:_OPEN], report)
    if folded := found[_OPEN:MOST]:
        shown += f"<details><summary>{len(folded)} more</summary>{_cards(folded, report)}</details>"
    more = f'<p class="quiet">The {MOST} gravest are shown; --json lists all.</p>' if len(found) > MOST else ""
    return section(title, f"<p>{escape(about.remedy)}</p>{shown}{more}", kind)


def _cards(found: Sequence[Finding], report: Report) -> str:
    return f'<div class="found">{"".join(_card(finding, report) for finding in found)}</div>'


def _card(finding: Finding, report: Report) -> str:
    others = [name for name in finding.videos if name != finding.subject]
    beside = ", ".join(others[:_OTHERS]) + (f" and {len(others) - _OTHERS} more" if len(others) > _OTHERS else "")
    strips = "".join(_strip(report.pictures.get(show, ()), finding.subject) for show in finding.shows[:_FILES])
    also = f'<p class="quiet">{escape(beside)}</p>' if others else ""
    return f"<article><h3>{escape(finding.subject)}</h3><p>{escape(finding.what)}</p>{also}{strips}</article>"


def _strip(pictures: Sequence[str], name: str) -> str:
    """A row of frames: JPEG in base64 that a child process encoded from untrusted bytes."""
    shown = "".join(
        f'<img alt="{escape(name)}" loading="lazy" src="data:image/jpeg;base64,{escape(picture)}">'
        for picture in pictures[:_PICTURES]
    )
    return f'<div class="strip">{shown}</div>' if shown else ""
