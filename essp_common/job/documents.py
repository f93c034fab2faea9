"""YAML written by people, read strictly and within bounds.

Strictly: a duplicate key is an error; the last value does not silently win. Values have the types of JSON; a date stays
text.

Within bounds: aliases (`*base`) and merge keys (`<<: *base`) let a text of a few hundred bytes expand to gigabytes, and
deep nesting exhausts the stack. So the size of the text, its depth, and the size of the document with all aliases
expanded are checked before anything is built from it.
"""

from __future__ import annotations

import re
from collections.abc import Hashable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

import yaml
from yaml.composer import Composer

from essp_common.errors import ConfigError

MOST_CHARACTERS = 2**18
"""Characters of the text; also about the limit for the document with its aliases expanded. A job has some thousand."""
MOST_VALUES = 20_000
"""Mappings, lists, keys and values, with aliases expanded; a job has some hundred."""
MOST_DEPTH = 32
_MOST_DIGITS = 64
_HALVES = re.compile("[\ud800-\udfff]")
_MERGE = "tag:yaml.org,2002:merge"
_TEXT = "tag:yaml.org,2002:str"
_NUMBERS = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
_OF_A_WRONG_TAG = (ValueError, TypeError, LookupError)
"""What the library raises for `!!int ""`, `!!bool x` or `{!!map a: 1}`."""
_OF_EVENTS = (yaml.reader.ReaderError, yaml.scanner.ScannerError, yaml.parser.ParserError, UnicodeEncodeError)
"""What libyaml raises for a text that it cannot split into events, such as JSON with the halves of a character."""
_Events: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""What splits a text into events: libyaml, if PyYAML was built with it."""
_UNLIKE_JSON = ("timestamp", "binary", "omap", "pairs", "set")


def _refuse(problem: str, node: yaml.Node) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)


class _Strict(yaml.SafeLoader):
    """Safe YAML without duplicate keys, and without characters that messages and terminals cannot show."""

    _depth = _values = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a part of the document, stopping as soon as it exceeds the bounds."""
        self._depth += 1
        self._values += 1
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        if self._depth > MOST_DEPTH:
            raise yaml.composer.ComposerError(None, None, f"nested deeper than {MOST_DEPTH} levels", mark)
        if self._values > MOST_VALUES:
            raise yaml.composer.ComposerError(None, None, f"more than {MOST_VALUES} values", mark)
        node: yaml.Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        """The document before anything is built from it. Raises if it exceeds the bounds with its aliases expanded."""
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _check_written_out(node)
        return node

    def resolve(self, kind: type[yaml.Node], value: Any, implicit: Any) -> Any:
        """The tag of a value without an explicit one. `12:30` is text: YAML would read it as 750, in base 60, which
        users never mean."""
        tag = super().resolve(kind, value, implicit)  # type: ignore[no-untyped-call]
        return _TEXT if tag in _NUMBERS and ":" in value else tag

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """JSON writes a character beyond U+FFFF as two escapes, which YAML reads as two surrogate halves; join them."""
        value = super().construct_scalar(node)
        if node.tag in _NUMBERS and len(value) > _MOST_DIGITS:
            raise _refuse(f"a number of {len(value)} characters", node)
        if isinstance(value, str) and _HALVES.search(value):
            try:
                return value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError as error:
                raise _refuse("one half of a surrogate pair, which is not a character", node) from error
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _MERGE:
                continue  # `<<: *base`: a mapping may override the keys that it merges in
            key = self.construct_object(key_node)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice (again in line {line})")
            seen.add(key)
        return super().construct_mapping(node, deep)


_Strict.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if not tag.endswith(":timestamp")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Strict.yaml_constructors = {
    tag: construct
    for tag, construct in yaml.SafeLoader.yaml_constructors.items()
    if tag is None or not tag.endswith(tuple(f":{kind}" for kind in _UNLIKE_JSON))
}


class _Fast(_Strict, _Events):  # type: ignore[misc]
    """The same, from the events of libyaml: in a third of the time."""

    check_event, peek_event, get_event = _Events.check_event, _Events.peek_event, _Events.get_event
    dispose = _Events.dispose

    def __init__(self, text: str) -> None:
        _Events.__init__(self, text)
        Composer.__init__(self)  # libyaml has its own, without the bounds


def _check_written_out(root: yaml.Node) -> None:
    """Measure the document with all aliases expanded, without expanding them."""
    known: dict[int, tuple[int, int, int] | None] = {}

    def counted(node: yaml.Node) -> tuple[int, int, int]:
        """The number of values, characters and levels of a node."""
        if id(node) in known:
            found = known[id(node)]
            if found is None:
                raise _refuse("an alias to what contains it", node)
            return found
        known[id(node)] = None
        values, characters, levels = 1, 1, 0
        if isinstance(node, yaml.ScalarNode):
            characters += len(node.value)
        else:
            mapping = isinstance(node, yaml.MappingNode)
            for part in chain.from_iterable(node.value) if mapping else node.value:
                more, longer, deeper = counted(part)
                values, characters, levels = values + more, characters + longer, max(levels, deeper)
        if values > MOST_VALUES or characters > MOST_CHARACTERS + MOST_VALUES or levels >= MOST_DEPTH:
            raise _refuse("with its aliases (`*name`) written out it is too large", node)
        known[id(node)] = values, characters, levels + 1
        return values, characters, levels + 1

    counted(root)


def read_yaml(text: str, where: str) -> Any:
    """Parse a YAML (or JSON) text. Raises `ConfigError`, naming `where` and the line."""
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(f"{where}: has {len(text)} characters; {MOST_CHARACTERS} is the most", code="range")
    try:
        with suppress(*_OF_EVENTS):  # the other reader reads more, and explains what is wrong in its own words
            return _read(_Fast, text)
        return _read(_Strict, text)
    except (yaml.YAMLError, *_OF_A_WRONG_TAG) as error:
        raise ConfigError(f"{where}: not valid YAML: {_reason(error)}", code="unreadable") from error


def _read(reader: type[_Strict], text: str) -> Any:
    loader = reader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def text_of(path: Path) -> str:
    """The text of a file, read only slightly beyond the largest accepted size. Raises `OSError`,
    `UnicodeDecodeError`."""
    with path.open(encoding="utf-8") as file:
        return file.read(MOST_CHARACTERS + 1)


def _reason(error: Exception) -> str:
    """The problem and its line; the parser's own message is five lines long."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if "'\\t'" in problem:
        problem = "a tab; indent with spaces"
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
