"""Elements of HTML pages. A page is one self-contained file, which needs no other files and no network.

Text is escaped unless it is marked as HTML, because names of classes and videos come from file names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape, unescape
from importlib.resources import files


def document(title: str, parts: Iterable[str], style: str = "", script: str = "", facts: Mapping[str, str] = {}) -> str:
    """A page with these parts. `style`, `script`: additions to the common style sheet. `facts`: values that programs
    read back with `fact`."""
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
    """A fact of a page; empty if it has no fact with this name."""
    found = re.search(f'<meta name="{re.escape(escape(name))}" content="([^"]*)">', page)
    return unescape(found[1]) if found else ""


def tiles(shown: Iterable[tuple[str, str]]) -> str:
    """Prominent figures, each with a label and a value."""
    found = "".join(
        f'<div class="tile"><b>{escape(value)}</b><span class="quiet">{escape(label)}</span></div>'
        for label, value in shown
    )
    return f'<div class="tiles">{found}</div>'


class Raw(str):
    """Text that is already HTML."""


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
    """A table. `head` is HTML, and cells are text. Flagged rows are highlighted.

    `left`: columns of text; `wrap`: columns whose lines may break anywhere. In a narrow window each row is a block, and
    each cell is shown with its heading.
    """

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
