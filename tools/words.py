"""Phrases that are not idiomatic English, with what to write instead: `python -m tools.words [FILE ...]`.

Without files it reads all of `SCOPE`, as in `make check`. It prints a line for each phrase that it finds, and exits
with 1 if there are any. Code blocks, code spans, link targets and generated text are not prose. In Python files, prose
is docstrings, other strings that contain a space, and comments; in YAML, comments; in the page's scripts, comments and
strings.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import NamedTuple

from tools.written import ROOT

SCOPE = (
    "*.md",
    ".github/**/*.md",
    "benchmarks/*.md",
    "charts/**/*.md",
    "docker/**/*.md",
    "docs/**/*.md",
    "docs/**/*.ipynb",
    "docs/examples/*.py",
    "docs/examples/*.yaml",
    "essp*/**/*.md",
    "essp*/**/*.py",
    "services/**/*.md",
    "services/**/*.py",
    "services/essp_master/page/*.html",
    "services/essp_master/page/*.js",
    "tests/**/*.md",
    "tools/**/*.md",
)
"""Patterns of files, from the root."""

NOT_READ = ("essp_common/pb/*",)
"""Patterns of files in `SCOPE` that are left out: those of protoc. A `*` includes folders."""

GENERATED = frozenset({"docs/cli.md", "docs/job.md", "docs/python.md", "docs/rest.md"})
"""Documents that programs write from Python files."""

_COMPARED = "longer|more|less|fewer|better|worse|larger|smaller|faster|slower|further|earlier|later|different"
_WATCHED = "logs?|pictures?|images?|frames?|clips?|videos?|figures?|charts?|curves?|pages?"
"""What a person looks at."""

RULES: Mapping[str, str] = {
    r"(?<!there\s)(is|are|was|were) none": "is not a ..., has no ...",
    rf"(?<!here\s)(is|are|was|were) no (?!({_COMPARED})\b)\w+": "is not a ...",
    r"none of (it|this|that|what|an?)": "nothing",
    r"that of": "the noun again, or its",
    r"(?<!one\s)(?<!each\s)(?<!some\s)(?<!both\s)(?<!number\s)of which": "two sentences",
    r"of whose": "whose",
    r"(whoever|somebody|nobody|anybody|everybody)": "users, a process, no one else; or the passive voice",
    r"(told(?!( not)? to\b)|tells? of|telling of)": "reports, says",
    r"hear[ds]?": "receives",
    r"(go|goes|going|went|gone) on": "continues, resumes",
    r"anew": "again",
    r"for ever": "forever",
    r"forth and back": "back and forth",
    r"in place of": "instead of",
    r"(take|takes|took|taken|taking) (its|the|their) place": "replaces",
    r"beside": "next to, in addition to, with",
    r"so (many|long)": "this number of; as long as",
    r"(what|it|this|that) (comes|came|becomes|became) of": "the result, the outcome",
    r"made of": "consists of",
    r"made[- ]up": "generated",
    r"pretended": "simulated",
    r"as often as": "as frequently as; each time",
    r"such (a one|ones)": "the noun again",
    r"is had": "has, in the active voice",
    r"as (\w+ ){1,3}ha(s|ve) it": "as in ...",
    r"(put|puts|set|sets|setting|putting) (it |them )?right": "fixes",
    r"mend(s|ed|ing)?": "fixes",
    r"look(s|ed|ing)? (whether|what|if|where)": "checks",
    rf"look(s|ed|ing)? at (?!([\w']+ ){{0,5}}({_WATCHED})\b)": "checks, reads, inspects",
    r"(lie|lies|lay|lying) (in|on|at|beside|below|behind|there|where|by)": "is in, is stored in",
    r"(give|gives|gave|given|giving) back": "returns, releases",
    r"hand(s|ed|ing)? out": "distributes, returns",
    r"in hand": "current, in progress",
    r"in the books": "recorded",
    r"trainings": "training runs, trainers",
    r"storeys?": "layers",
    r"an own": "its own, a separate",
    r"(none the less|all the same)": "still",
    r"for want of": "because ... is missing",
    r"without a word": "silently",
    r"(there is|there are) to (be )?\w+": "must be; or name what is left",
}
"""Phrases as regular expressions in lower case, in which a space is any white space, and what to write instead."""


class Offence(NamedTuple):
    """A phrase in a file. `line` counts from 1."""

    path: str
    line: int
    phrase: str
    instead: str

    def __str__(self) -> str:
        return f'{self.path}:{self.line}: "{self.phrase}"; write: {self.instead}'


def offences(paths: Iterable[Path] | None = None) -> list[Offence]:
    """The phrases in these files, or in all of `SCOPE`."""
    return [offence for path in (scope() if paths is None else paths) for offence in offences_in(path)]


def scope() -> list[Path]:
    """The files that are read, without those that are generated or left out."""
    found = {path.relative_to(ROOT).as_posix() for pattern in SCOPE for path in ROOT.glob(pattern)} - GENERATED
    return sorted(ROOT / name for name in found if not any(fnmatch(name, pattern) for pattern in NOT_READ))


def offences_in(path: Path) -> list[Offence]:
    """The phrases in one file, by line. Raises `KeyError` if it is not of a kind that has prose."""
    name = path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
    found: list[Offence] = []
    for first, prose in _READERS[path.suffix](path.read_text(encoding="utf-8")):
        text = _without_code(prose)
        lower = text.lower()
        for match in _ANY.finditer(lower):
            begin, end = match.span()
            instead = next(words for phrase, words in _EACH if phrase.match(lower, begin))
            found.append(Offence(name, first + text.count("\n", 0, begin), " ".join(text[begin:end].split()), instead))
    return sorted(found)


def _expression(rule: str) -> str:
    """A rule for text that is wrapped, without groups."""
    return re.sub(r"[(](?![?])", "(?:", rule).replace(" ", r"\s+")


_EACH = [(re.compile(rf"\b{_expression(rule)}\b"), instead) for rule, instead in RULES.items()]
_ANY = re.compile(rf"\b(?:{'|'.join(map(_expression, RULES))})\b")
"""All rules at once. Letters are lower-case: to ignore case would take twenty times as long."""


def _blank(match: re.Match[str]) -> str:
    """As many lines, without words."""
    return "\n" * match[0].count("\n")


_CODE_IN_PROSE = re.compile(r"`[^`]+`|</?[a-z][^<>]*>|(?<=[a-z,;:]\s)None\b")


def _without_code(text: str) -> str:
    """A code span, a tag of HTML and Python's None become `X`, so that words before and after it stay apart."""
    return _CODE_IN_PROSE.sub(lambda match: f"X{_blank(match)}", text)


Prose = Iterator[tuple[int, str]]
"""Pieces of prose, each with the number of its first line."""


_CODE = (
    r"(?s)<!-- (?:values|figures).*?<!-- end of [^>]*-->",
    r"(?ms)^ *```.*?^ *```",
    r"(?<=\n\n)(?:    .*\n)+",
    r"(?<=\])\([^)\s]+\)",
)
"""In Markdown: what programs have written, code, and the targets of links."""


def _of_markdown(text: str) -> Prose:
    for code in _CODE:
        text = re.sub(code, _blank, text)
    yield 1, text


def _of_notebook(text: str) -> Prose:
    """Of cells, whose lines have no number in the file: that of the cell, from 1."""
    for k, cell in enumerate(json.loads(text)["cells"], start=1):
        if cell["cell_type"] == "markdown":
            yield from ((k, prose) for _, prose in _of_markdown("".join(cell["source"])))


def _of_html(text: str) -> Prose:
    yield 1, re.sub(r"<(code|script|style)\b.*?</\1>|<[^>]*>", _blank, text, flags=re.DOTALL)


_SCRIPT_COMMENT = re.compile(r"(?m)(?:^|(?<=\s))//\s(.*)$|^\s*/?\*+\s(.*)$")


def _of_script(text: str) -> Prose:
    """Comments, and texts between quotes that have a space in them, without what is computed in them."""
    lines = enumerate(text.splitlines(), start=1)
    yield from _joined([(n, found[1] or found[2]) for n, line in lines if (found := _SCRIPT_COMMENT.search(line))])
    code = _SCRIPT_COMMENT.sub("", text)
    for number, line in enumerate(code.splitlines(), start=1):
        for quoted in re.findall(r'"((?:[^"\\]|\\.)*)"|`([^`]*)`', line):
            words = re.sub(r"\$\{[^}]*\}", "X", "".join(quoted))
            if " " in words:
                yield number, words


def _of_python(text: str) -> Prose:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    yield from _joined([(token.start[0], token.string) for token in tokens if token.type == tokenize.COMMENT])


def _of_yaml(text: str) -> Prose:
    lines = enumerate(text.splitlines(), start=1)
    yield from _joined([(number, found[0]) for number, line in lines if (found := re.search(r"(?:^|\s)#.*", line))])


def _joined(comments: Sequence[tuple[int, str]]) -> Prose:
    """Numbered lines of comments: those that follow one another, as one piece without their marks."""
    begin = 0
    for k in range(1, len(comments) + 1):
        if k == len(comments) or comments[k][0] != comments[k - 1][0] + 1:
            yield comments[begin][0], "\n".join(text.lstrip("#: ") for _, text in comments[begin:k])
            begin = k


_READERS: Mapping[str, Callable[[str], Prose]] = {
    ".md": _of_markdown,
    ".ipynb": _of_notebook,
    ".html": _of_html,
    ".js": _of_script,
    ".py": _of_python,
    ".yaml": _of_yaml,
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Print what is found in the files that are named, or in all, and exit with 1 if that is anything."""
    named = [Path(argument).resolve() for argument in (sys.argv[1:] if arguments is None else arguments)]
    found = offences(named or None)
    if found:
        sys.exit("\n".join(map(str, found)))


if __name__ == "__main__":
    main()
