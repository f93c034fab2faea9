"""What `essp init` writes for a catalog of several views: each stream and each trainer of the job once a view."""

from __future__ import annotations

import re
from collections.abc import Sequence

import yaml

from essp_common.errors import ConfigError
from essp_common.job.fields import plain_name

_LONGEST = 40
"""Characters of a view in the name of a stream."""


def for_views(text: str, views: Sequence[str]) -> str:
    """The text of a job on one view as one on these, with its comments."""
    names = _names(views)
    text = text.replace("mode: short_side", "mode: crop", 1)  # views of one size, whatever the shapes of their videos
    end = _blocks(text, _section(text, "clip"))[-1][2]
    listed = ", ".join(f"{_scalar(view)}: {{}}" for view in views)
    said = f"  views: {{{listed}}}   # decoded together, one moment a clip; each may have a `resize` of its own\n"
    text = text[:end] + said + text[end:]
    for section in ("trainers", "streams"):  # the later one first, so that places before it stay right
        found = _blocks(text, _section(text, section))
        copies = "".join(_copied(name, text[begin:end], names, section) for name, begin, end in found)
        text = text[: found[0][1]] + copies + text[found[-1][2] :]
    return text


def _copied(name: str, block: str, names: dict[str, str], section: str) -> str:
    """The block of a stream or a trainer once a view. Anchors belong to the first copy."""
    made = []
    for number, (view, suffix) in enumerate(names.items()):
        copy = block.replace(f"  {name}:", f"  {name}_{suffix}:", 1)
        if number:
            copy = re.sub(r": &\w+", ":", copy)
        if section == "streams":
            place = copy.rindex("}")
            copy = f"{copy[:place]}, view: {_scalar(view)}{copy[place:]}"
        else:
            copy = re.sub(r"(\bstream: )([\w-]+)", rf"\g<1>\g<2>_{suffix}", copy, count=1)
        made.append(copy)
    return "".join(made)


def _section(text: str, name: str) -> yaml.MappingNode:
    node = yaml.compose(text, yaml.SafeLoader)
    assert isinstance(node, yaml.MappingNode)
    section = next(value for key, value in node.value if key.value == name)
    assert isinstance(section, yaml.MappingNode)
    return section


def _blocks(text: str, section: yaml.MappingNode) -> list[tuple[str, int, int]]:
    """The name of each field of a section, and where its lines begin and end."""
    begins = [text.rindex("\n", 0, key.start_mark.index) + 1 for key, _ in section.value]
    end = text.find("\n\n", begins[-1])
    ends = [*begins[1:], len(text) if end < 0 else end + 1]
    return [(key.value, begin, end) for (key, _), begin, end in zip(section.value, begins, ends, strict=True)]


def _names(views: Sequence[str]) -> dict[str, str]:
    """What the names of streams end with, by view: its last part (`observation.images.top`), if these differ."""
    short = [re.sub(r"[^a-z0-9]+", "_", view.lower().rpartition(".")[2]).strip("_")[:_LONGEST] for view in views]
    try:
        clear = len(set(short)) == len(views) and all(plain_name(name) for name in short)
    except (ValueError, ConfigError):
        clear = False
    return dict(zip(views, short if clear else [f"view{number}" for number in range(1, len(views) + 1)], strict=True))


def _scalar(view: str) -> str:
    """A name as YAML's flow style has it."""
    text = yaml.safe_dump(view, default_flow_style=True, allow_unicode=True).removesuffix("\n")
    return text.removesuffix("\n...")
