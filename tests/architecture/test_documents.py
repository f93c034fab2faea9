"""What the Markdown files promise: links lead somewhere, named files, commands and make verbs exist, lines fit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from configparser import ConfigParser
from functools import cache
from pathlib import Path

import pytest
import typer
from typer.core import TyperGroup

from essp.cli.main import app

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (".github", "docs", "charts", "docker", "essp", "essp_common", "essp_engine", "services", "tests", "tools")
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), ROOT / "benchmarks" / "README.md", *(p for f in FOLDERS for p in (ROOT / f).rglob("*.md"))]
)
COLUMNS = 120
MADE_BY_PROGRAMS = ("<!-- values", "<!-- figures")
"""Marks after which a program has written the text, up to the mark that says `end of`."""


def offences(
    find: Callable[[Path], Iterable[object]], documents: Iterable[Path] = DOCUMENTS
) -> dict[str, list[object]]:
    """What a check finds in each document, by the document's path; of those in which it finds anything."""
    found = ((path.relative_to(ROOT).as_posix(), list(find(path))) for path in documents)
    return {path: offences for path, offences in found if offences}


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def without_generated(text: str) -> str:
    for mark in MADE_BY_PROGRAMS:
        text = re.sub(rf"{mark}.*?<!-- end of [^>]*-->", "", text, flags=re.DOTALL)
    return text


def without_fences(text: str) -> str:
    return re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)


def code_of(text: str) -> list[str]:
    """What stands in code blocks and between backticks."""
    blocks = re.findall(r"^ *```[a-z]*\n(.*?)^ *```", text, flags=re.DOTALL | re.MULTILINE)
    indented = re.findall(r"^    .*$", without_fences(text), flags=re.MULTILINE)
    return blocks + indented + re.findall(r"`([^`\n]+)`", without_fences(text))


def anchors_of(document: Path) -> set[str]:
    text = without_fences(document.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ +(.*)$", text, flags=re.MULTILINE)
    slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
    return slugs | set(re.findall(r'<a id="([^"]+)">', text))


@cache
def names_of_tests() -> set[str]:
    """The names of all tests there are, those of suites too."""
    modules = (ROOT / "tests").rglob("*.py")
    return {name for module in modules for name in re.findall(r"def (test_\w+)\(", module.read_text(encoding="utf-8"))}


def dead_links(path: Path) -> Iterator[str]:
    for target in re.findall(r"\]\(([^)\s]+)\)", without_fences(text_of(path))):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        document = (path.parent / file).resolve() if file else path
        if not document.exists() or (anchor and anchor not in anchors_of(document)):
            yield target


def test_links_lead_somewhere() -> None:
    assert offences(dead_links) == {}


def long_lines(path: Path) -> Iterator[str]:
    """Tables, code and addresses may be as long as they need to be."""
    for line in without_fences(without_generated(text_of(path))).splitlines():
        if len(line) > COLUMNS and not line.startswith(("|", "    ")) and "://" not in line:
            yield line


def test_lines_are_short() -> None:
    assert offences(long_lines) == {}


def unknown_verbs(path: Path) -> set[str]:
    verbs = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), flags=re.MULTILINE))
    used = {verb for code in code_of(text_of(path)) for verb in re.findall(r"^make ([a-z-]+)", code, re.MULTILINE)}
    return used - verbs


def test_make_verbs_exist() -> None:
    assert offences(unknown_verbs) == {}


def unknown_words(line: str) -> list[str]:
    """Of a command line that begins with `essp`: sub-commands and options that there are not."""
    words, command = line.split()[1:], typer.main.get_command(app)
    context = typer.Context(command)
    while isinstance(command, TyperGroup) and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        name = words.pop(0)
        found = command.get_command(context, name)
        if found is None:
            return [name]
        command = found
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
    named = [option for word in words for option in re.findall(r"^(--[a-z][a-z-]*)", word)]
    return [option for option in named if option not in options | {"--help"}]


def unknown_commands(path: Path) -> Iterator[str]:
    codes = (code.replace("\\\n", " ") for code in code_of(text_of(path)))
    pattern = r"(?:^|[;&|] |run --rm )(essp [a-z][^#;&|\n]*)"
    for line in (line for code in codes for line in re.findall(pattern, code, flags=re.MULTILINE)):
        if unknown := unknown_words(line):
            yield f"{line}: {unknown}"


def test_commands_exist() -> None:
    """With their sub-commands and options."""
    assert offences(unknown_commands) == {}


@cache
def settings() -> set[str]:
    """The environment variables that mean something: fields of settings classes, and what other files read."""
    patterns = ("essp*/**/config.py", "services/**/config.py", "essp_engine/**/settings.py")
    places = [path for pattern in patterns for path in ROOT.glob(pattern)]
    fields = "".join(path.read_text(encoding="utf-8") for path in places)
    found = {f"ESSP_{name.upper()}" for name in re.findall(r"^    (\w+): ", fields, flags=re.MULTILINE)}
    folders = ("essp", "essp_common", "essp_engine", "docker", "charts", "tests/harness", "tests/lerobot")
    readers = [p for f in folders for p in (ROOT / f).rglob("*") if p.suffix in (".py", ".yaml", ".tpl", ".example")]
    for path in [*readers, ROOT / "docker-compose.yml"]:
        found |= set(re.findall(r"ESSP_[A-Z0-9_]+", path.read_text(encoding="utf-8")))
    return found


def unknown_settings(path: Path) -> set[str]:
    return set(re.findall(r"ESSP_[A-Z0-9_]+", without_generated(text_of(path)))) - settings()


def test_named_settings_exist() -> None:
    assert offences(unknown_settings) == {}


def missing_files(path: Path) -> Iterator[str]:
    """A name with a folder is looked for from the root, `tests` and the document; a module anywhere."""
    text = without_fences(without_generated(text_of(path)))
    for name in re.findall(r"`([\w./-]+\.(?:py|md|tpl|proto|sh|css|js))(?:::[\w\[\].]+)?`", text):
        nearby = any((folder / name).exists() for folder in (ROOT, ROOT / "tests", path.parent, *path.parent.parents))
        if not nearby and not any(file.endswith(f"/{name}") for file in files()):
            yield name


@cache
def files() -> tuple[str, ...]:
    """The files below the folders of modules."""
    found = (file for folder in (*FOLDERS, "benchmarks", "proto") for file in (ROOT / folder).rglob("*.*"))
    return tuple(file.relative_to(ROOT).as_posix() for file in found)


def test_named_files_exist() -> None:
    assert offences(missing_files) == {}


def missing_tests(path: Path) -> set[str]:
    return set(re.findall(r"`(?:[\w/]+\.py::)?(test_\w+)(?:\[[^`]*\])?`", text_of(path))) - names_of_tests()


def test_named_tests_exist() -> None:
    assert offences(missing_tests) == {}


@pytest.mark.parametrize(
    ("find", "text"),
    [
        (dead_links, "[a](nowhere.md)"),
        (dead_links, "# A heading\n[b](#another-heading)"),
        (long_lines, "x" * (COLUMNS + 1)),
        (unknown_verbs, "`make tea`"),
        (unknown_commands, "```\nessp bake\n```"),
        (unknown_commands, "```\nessp run --hot job.yaml\n```"),
        (unknown_settings, "`ESSP_TEMPERATURE`"),
        (missing_files, "`essp/oven.py`"),
        (missing_tests, "`test_that_nobody_wrote`"),
    ],
)
def test_what_is_wrong_is_named(find: Callable[[Path], Iterable[object]], text: str, tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text(text, encoding="utf-8")
    assert len(list(find(document))) == 1


def layers_of(contracts: ConfigParser, container: str) -> list[list[str]]:
    """The layers that import-linter checks inside a package, from the top."""
    for contract in map(contracts.__getitem__, contracts.sections()):
        if contract.get("containers", "").split() == [container]:
            return [re.findall(r"\w+", line) for line in contract["layers"].split("\n") if line.strip()]
    raise AssertionError(f"no layers of {container} in .importlinter")


@pytest.mark.parametrize("container", ["essp", "essp_common", "essp_engine"])
def test_the_drawing_shows_the_layers_that_are_checked(container: str) -> None:
    contracts = ConfigParser()
    contracts.read(ROOT / ".importlinter")
    drawing = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    drawn = re.search(rf"^{container}/ +(.*?)(?:\n\n|\n```)", drawing, flags=re.MULTILINE | re.DOTALL)
    assert drawn
    assert [line.split() for line in drawn[1].split("\n")] == layers_of(contracts, container)


def test_the_front_page_tells_the_figures_that_were_published() -> None:
    table, front = ((ROOT / name).read_text(encoding="utf-8") for name in ("benchmarks/README.md", "README.md"))
    published = dict(re.findall(r"^\| `([\w.]+)` \| ([\d.e+-]+) ", table, flags=re.MULTILINE))
    told = re.findall(r"\| `([\w.]+)` \| ([\d.]+) \|$", front, flags=re.MULTILINE)
    assert told
    for name, ratio in told:
        decimals = len(ratio.partition(".")[2])
        assert ratio == f"{float(published[name]):.{decimals}f}", name


def test_decisions_have_a_number_a_status_and_a_date() -> None:
    """Gaps in the numbers are those of pages that have become design notes."""
    folder = ROOT / "docs" / "decisions"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    for path in sorted(folder.glob("0*.md")):
        title, _, status, *_ = path.read_text(encoding="utf-8").splitlines()
        number = int(path.name[:4])
        assert title.startswith(f"# {number}. "), path.name
        found = re.fullmatch(r"(Accepted|Superseded by \d+), (\d{4}-\d\d-\d\d)\.(?: Changed .*)?", status)
        assert found, f"{path.name}: {status}"
        row = f"| {number} | [{title.partition('. ')[2]}]({path.name}) | {found[1].lower()} | {found[2]} |\n"
        assert row in listed, path.name


def test_design_notes_are_listed() -> None:
    folder = ROOT / "docs" / "design"
    listed = (folder / "README.md").read_text(encoding="utf-8")
    for path in folder.glob("*.md"):
        title = path.read_text(encoding="utf-8").partition("\n")[0].removeprefix("# ")
        assert path.name == "README.md" or f"| [{title}]({path.name}) | " in listed, path.name


def test_the_glossary_says_each_word_once() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8")
    entries = re.findall(r'^- <a id="([^"]+)"></a>\*\*([^*]+)\*\*: ', text, flags=re.MULTILINE)
    assert len(entries) == len(re.findall(r"^- ", text, flags=re.MULTILINE))
    words = [word for _, word in entries]
    assert sorted(set(words)) == sorted(words)
    assert [anchor for anchor, _ in entries] == [word.replace(" ", "-") for word in words]


def test_the_site_lists_each_page_once() -> None:
    """By hand, since what belongs together is for people to say. `make site` builds it."""
    index = (ROOT / "docs" / "site" / "index.md").read_text(encoding="utf-8")
    trees = re.findall(r"^```\{toctree\}\n(.*?)^```", index, flags=re.MULTILINE | re.DOTALL)
    entries = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    listed = [re.sub(r".*<(.*)>", r"\1", entry) for entry in entries]
    listed_elsewhere = {ROOT / "docs" / "decisions", ROOT / "docs" / "design"}
    own, elsewhere = ROOT / "docs" / "site", [ROOT / f for f in (".github", "tests", "tools")]
    pages = [
        f"/{path.relative_to(ROOT).with_suffix('')}"
        for path in (*DOCUMENTS, *(ROOT / "docs").rglob("*.ipynb"))
        if own not in path.parents
        and not any(folder in path.parents for folder in elsewhere)
        and (path.parent not in listed_elsewhere or path.stem == "README")
    ]
    assert sorted(listed) == sorted(pages)
