"""What makes a release the same each time, and its page readable. `make release` itself builds twice and compares."""

from __future__ import annotations

import io
import re
import tarfile
from pathlib import Path

import pytest

from tools.archives import settle
from tools.package_page import package_page
from tools.release import section
from tools.written import ROOT

FILES = {
    "essp/Chart.yaml": b"name: essp\n",
    f"essp/{'deep/' * 30}values.yaml": b"a: 1\n",
    "essp/run.sh": b"#!/bin/sh\n",
}


def packed(path: Path, names: list[str], mtime: int, user: str, umask: int) -> Path:
    """The files as a tool may pack them that knows nothing of repeatable builds."""
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.uname = len(FILES[name]), mtime, user
            member.mode = (0o777 if name.endswith(".sh") else 0o666) & ~umask
            archive.addfile(member, io.BytesIO(FILES[name]))
    return path


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    names = sorted(FILES)
    first = packed(tmp_path / "a.tgz", names, mtime=1, user="alice", umask=0o022)
    second = packed(tmp_path / "b.tgz", names[::-1], mtime=2**31, user="bob", umask=0o007)
    settle(first, epoch=1_700_000_000)
    settle(second, epoch=1_700_000_000)
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes()[4:8] == (1_700_000_000).to_bytes(4, "little"), "the time in the header of gzip"
    with tarfile.open(first) as archive:
        content = {member.name: archive.extractfile(member) for member in archive}
        assert {name: file.read() for name, file in content.items() if file} == FILES
        assert {member.name: member.mode for member in archive} == {
            name: 0o755 if name.endswith(".sh") else 0o644 for name in FILES
        }
        assert {member.mtime for member in archive} == {1_700_000_000}


def test_a_link_in_an_archive_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tgz", "w:gz") as archive:
        link = tarfile.TarInfo("essp/link")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.raises(ValueError, match="essp/link"):
        settle(tmp_path / "a.tgz", epoch=0)


def test_the_page_of_the_package_has_no_link_that_leads_nowhere() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    page = package_page(readme, None, "1.2.3")
    targets = re.findall(r"\]\(([^)\s]+)\)", page)
    assert [target for target in targets if "://" not in target] == []
    for fence in re.findall(r"^```.*?^```", readme, flags=re.DOTALL | re.MULTILINE):
        assert fence in page


@pytest.mark.parametrize(
    ("text", "page", "page_with_address"),
    [
        ("See [the\nloader](docs/loader.md#state).", "See the\nloader.",
         "See [the\nloader](https://h/essp/blob/v1.2.3/docs/loader.md#state)."),
        ("a\n\n![A flow](docs/flow.svg)\n\nb", "a\n\nb", "a\n\n![A flow](https://h/essp/raw/v1.2.3/docs/flow.svg)\n\nb"),
        ("[it](https://example.org/a)", "[it](https://example.org/a)", "[it](https://example.org/a)"),
        ("```\n[a](b)\n```\n", "```\n[a](b)\n```\n", "```\n[a](b)\n```\n"),
        ("`rows[0]` (see [a](b))", "`rows[0]` (see a)", "`rows[0]` (see [a](https://h/essp/blob/v1.2.3/b))"),
    ],
)  # fmt: skip
def test_links_of_the_page(text: str, page: str, page_with_address: str) -> None:
    assert package_page(text, None, "1.2.3") == page
    assert package_page(text, "https://h/essp", "1.2.3") == page_with_address


def test_notes_are_the_section_of_the_version() -> None:
    changelog = (
        "# Changelog\n\n## Unreleased\n\n## 0.2.0 - 2027-01-01\n\n### Added\n\n- b\n\n## 0.1.0 - 2026-11-28\n\n- a\n"
    )
    assert section(changelog, "0.2.0") == "### Added\n\n- b\n\n"
    assert section(changelog, "0.1.0") == "- a\n"
    assert section(changelog, "Unreleased") == ""
    assert section(changelog, "0.1") is None
