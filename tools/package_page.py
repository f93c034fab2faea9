"""The README as the page of the package on an index, where a relative link leads nowhere.

Without the address of the repository, pictures are left out and a link is only its text. With it, both are absolute and
lead to the files of the released version.
"""

from __future__ import annotations

import re

_PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"(^ *```.*?^ *```)", re.DOTALL | re.MULTILINE)


def package_page(readme: str, source: str | None, version: str) -> str:
    """The README with no relative links. `source`: the address of the repository, if there is one."""

    def picture(found: re.Match[str]) -> str:
        if _absolute(found[2]):
            return found[0]
        return f"![{found[1]}]({source}/raw/v{version}/{found[2]})" if source else ""

    def link(found: re.Match[str]) -> str:
        if _absolute(found[2]):
            return found[0]
        return f"[{found[1]}]({source}/blob/v{version}/{found[2]})" if source else found[1]

    parts = _FENCE.split(readme)
    parts[::2] = [_LINK.sub(link, _PICTURE.sub(picture, text)) for text in parts[::2]]
    return re.sub(r"\n{3,}", "\n\n", "".join(parts))  # where a picture stood by itself


def _absolute(target: str) -> bool:
    return re.match(r"[a-z]+:", target) is not None
