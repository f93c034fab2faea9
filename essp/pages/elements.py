"""What pages are made of that a person opens in a browser: one file that needs nothing beside it, no file, no network.

Text is escaped unless it says that it is HTML: names of classes and videos come from file names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from importlib.resources import files


def document(title: str, parts: Iterable[str], style: str = "", script: str = "", facts: Mapping[str, str] = {}) -> str:
    """The page of these parts. `style`, `script`: what it needs beyond the common style sheet. `facts`: for programs
    that read it again (`fact`)."""
    told = "".join(f'<meta name="{escape(name)}" content="{escape(value)}">' for name, value in facts.items())
    css = files("essp.pages").joinpath("page.css").read_text(encoding="utf-8")
    behaviour = f"<script>{script}</script>\n" if script else ""
    return (
        "<!doctype html>\n"
        '<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"{told}<title>{escape(title)}</title><style>{css}{style}</style></head>\n"
        f"<body><main>{chr(10).join(parts)}\n</main>\n{behaviour}</body></html>\n"
    )


def fact(page: str, name: str) -> str:
    """A fact of a page; empty: it has none of this name."""
    found = re.search(f'<meta name="{re.escape(escape(name))}" content="([^"]*)">', page)
    return unescape(found[1]) if found else ""


def tiles(shown: Iterable[tuple[str, str]]) -> str:
    """Figures that stand out; each a label and its value."""
    found = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span class="quiet">{escape(label)}</span></div>'
        for label, value in shown
    )
    return f'<div class="tiles">{found}</div>'


class Raw(str):
    """Text that is HTML already."""


def section(title: str, content: str, kind: str = "") -> str:
    """A titled block. `kind`: a word by which the page's style and script find it."""
    mark = f' data-kind="{escape(kind)}"' if kind else ""
    return f"<section{mark}><h2>{title if isinstance(title, Raw) else escape(title)}</h2>{content}</section>"


def table(
    head: Sequence[str],
    rows: Iterable[tuple[Sequence[str], bool]],
    left: Sequence[int] = (),
    wrap: Sequence[int] = (),
    bar: int = -1,
) -> str:
    """A table; `head` is HTML, cells are text. Rows that are flagged stand out; `left`: columns of text; `wrap`: those
    whose lines may break anywhere. On a narrow window each row is a block, and each cell has its head beside it."""

    def kind(column: int) -> str:
        names = [n for n, on in (("left", column in left), ("wrap", column in wrap), ("bar", column == bar)) if on]
        return f' class="{" ".join(names)}"' if names else ""

    def named(column: int) -> str:
        words = unescape(head[column].replace("<br>", " ")) if head else ""
        return f' data-head="{escape(words)}"' if words else ""

    heading = "".join(f"<th{kind(i)}>{cell}</th>" for i, cell in enumerate(head))
    body = "".join(
        f"<tr{' class=chosen' if chosen else ''}>"
        + "".join(
            f"<td{kind(i)}{named(i)}>{cell if isinstance(cell, Raw) else escape(cell)}</td>"
            for i, cell in enumerate(row)
        )
        + "</tr>"
        for row, chosen in rows
    )
    top = f"<thead><tr>{heading}</tr></thead>" if head else ""
    folds = ' class="folds"' if head else ""
    return f'<div class="scroll"><table{folds}>{top}<tbody>{body}</tbody></table></div>'
