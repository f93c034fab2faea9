"""YAML that people write, read strictly: what is given twice is an error, not silently the last one."""

from __future__ import annotations

import re
from collections.abc import Hashable
from typing import Any

import yaml

from essp_common.errors import ConfigError

_HALVES = re.compile("[\ud800-\udfff]")
_MERGE = "tag:yaml.org,2002:merge"


class _Strict(yaml.SafeLoader):
    """Safe YAML without duplicate keys, and with nothing that no message and no terminal can show."""

    def construct_scalar(self, node: yaml.ScalarNode | yaml.MappingNode) -> Any:
        """JSON writes a character beyond U+FFFF as two escapes, which YAML reads as two halves of one."""
        value = super().construct_scalar(node)
        if isinstance(value, str) and _HALVES.search(value):
            try:
                return value.encode("utf-16", "surrogatepass").decode("utf-16")
            except UnicodeDecodeError as error:
                problem = "one half of a surrogate pair, which is not a character"
                raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from error
        return value

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode) or key_node.tag == _MERGE:
                continue  # `<<: *base`: what it brings may be given anew, that is its purpose
            key = self.construct_object(key_node)
            if key in seen:
                line = key_node.start_mark.line + 1
                raise yaml.constructor.ConstructorError(None, None, f"{key!r} is given twice (again in line {line})")
            seen.add(key)
        return super().construct_mapping(node, deep)


def read_yaml(text: str, where: str) -> Any:
    """What a YAML (or JSON) text holds. Raises `ConfigError`, naming `where` and the line."""
    try:
        loader = _Strict(text)
        try:
            return loader.get_single_data()
        finally:
            loader.dispose()
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{where}: not valid YAML: {_reason(error)}") from error


def _reason(error: Exception) -> str:
    """What is wrong, and in which line; the parser's own message is five lines long."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if "'\\t'" in problem:
        problem = "a tab; indent with spaces"
    return problem if mark is None else f"line {mark.line + 1}, column {mark.column + 1}: {problem}"
