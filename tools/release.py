"""`python -m tools.release TARGET:NAME:TAG ...`: everything that a release consists of, in dist/ (`make release`).

What is released is the last commit, not the files that happen to lie around. It is built twice, in two folders: unless
both give the same bytes, and every check passes, dist/ stays as it was.

| in dist/ | |
|---|---|
| `essp_video-VERSION.tar.gz`, `.whl` | for the package index; the wheel is built from the .tar.gz |
| `essp-VERSION.tgz` | the Helm chart |
| `essp_video-VERSION.cdx.json` | the bill of materials (SBOM): what the wheel installs without an extra |
| `images.txt` | the images with their tags; `make images` builds them |
| `NOTES.txt` | what CHANGELOG.md says of this version |
| `SHA256SUMS` | of all these: `sha256sum --check SHA256SUMS` |
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tools import archives, helm
from tools.package_page import package_page
from tools.written import ROOT

DIST = ROOT / "dist"
DISTRIBUTION = "essp_video"


@dataclass(frozen=True, slots=True)
class Commit:
    """What is released."""

    name: str
    epoch: int
    """When it was made, in seconds since 1970: the time of all files in the archives."""
    version: str
    source: str | None
    """The address of the repository (`urls.Source` of pyproject.toml), if it has one."""
    notes: str


def main(images: Sequence[str]) -> None:
    os.umask(0o022)  # files that tools make have the same rights everywhere
    commit = last_commit()
    with tempfile.TemporaryDirectory(prefix="essp-release-") as name:
        folder = Path(name)
        chart_tool = helm.unpacked(folder)
        made = build(commit, folder / "first", chart_tool)
        compare(made, build(commit, folder / "second", chart_tool))
        check_archives(made, commit, chart_tool)
        environment = install(made, commit, folder / "environment")
        write_bill_of_materials(environment, made / f"{DISTRIBUTION}-{commit.version}.cdx.json")
        try_catalog(environment, made, folder / "work")
        (made / "images.txt").write_text("".join(f"{image.partition(':')[2]}\n" for image in images), encoding="utf-8")
        (made / "NOTES.txt").write_text(commit.notes, encoding="utf-8")
        (made / "SHA256SUMS").write_text(sums(made), encoding="utf-8")
        shutil.rmtree(DIST, ignore_errors=True)
        shutil.copytree(made, DIST)
    print((DIST / "SHA256SUMS").read_text(encoding="utf-8"), end="")


def last_commit() -> Commit:
    """Exits if there are changes that are not committed, or if the commit has the tag of another version."""
    if changed := output("git", "status", "--porcelain", "--untracked-files=no"):
        sys.exit(f"a release is made of the last commit; commit or stash these changes:\n{changed}")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = project["version"]
    tags = [tag for tag in output("git", "tag", "--points-at", "HEAD").split() if re.match(r"v\d", tag)]
    if tags and f"v{version}" not in tags:
        sys.exit(f"the last commit has the tag {tags[0]}, but pyproject.toml says version {version}")
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    notes = section(changelog, version)
    if notes is None and tags:
        sys.exit(f"CHANGELOG.md has no section `## {version} - DATE`; RELEASING.md says how to make it")
    return Commit(
        name=output("git", "rev-parse", "HEAD"),
        epoch=int(output("git", "log", "-1", "--format=%ct")),
        version=version,
        source=project.get("urls", {}).get("Source"),
        notes=notes or section(changelog, "Unreleased") or "",
    )


def section(changelog: str, title: str) -> str | None:
    """What stands below the heading of a version, which may have a date behind it."""
    found = re.search(rf"^## {re.escape(title)}(?: - \S+)?\n+(.*?)(?=^## |\Z)", changelog, re.DOTALL | re.MULTILINE)
    return found[1] if found else None


def build(commit: Commit, folder: Path, chart_tool: Path) -> Path:
    """Build sdist, wheel and chart of the commit below `folder`; return the folder that holds them and nothing else."""
    tree, made = folder / "tree", folder / "made"
    made.mkdir(parents=True)
    packed = subprocess.run(["git", "archive", commit.name], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
        archive.extractall(tree, filter="data")
    readme = tree / "README.md"
    readme.write_text(package_page(readme.read_text(encoding="utf-8"), commit.source, commit.version), encoding="utf-8")

    dated = {"SOURCE_DATE_EPOCH": str(commit.epoch)}
    builder = (sys.executable, "-m", "build", "--no-isolation", "--outdir", made)  # with the pinned setuptools
    run(*builder, "--sdist", tree, cwd=folder, **dated)
    sdist = made / f"{DISTRIBUTION}-{commit.version}.tar.gz"
    archives.settle(sdist, commit.epoch)
    with tarfile.open(sdist) as archive:
        archive.extractall(folder / "unpacked", filter="data")
    run(*builder, "--wheel", folder / "unpacked" / f"{DISTRIBUTION}-{commit.version}", cwd=folder, **dated)

    run(chart_tool, "package", tree / "charts" / "essp", "--destination", made, cwd=folder)
    archives.settle(made / f"essp-{commit.version}.tgz", commit.epoch)
    return made


def compare(first: Path, second: Path) -> None:
    """Exit with the names of files that differ between two builds."""
    if different := sorted(set(sums(first).splitlines()) ^ set(sums(second).splitlines())):
        sys.exit("two builds of one commit differ:\n" + "\n".join(different))


def sums(folder: Path) -> str:
    """The SHA-256 of each file, as `sha256sum --check` reads them."""
    files = sorted(path for path in folder.iterdir() if path.name != "SHA256SUMS")
    return "".join(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in files)


def check_archives(made: Path, commit: Commit, chart_tool: Path) -> None:
    """What the index and Kubernetes would object to."""
    (wheel,) = made.glob("*.whl")
    run(sys.executable, "-m", "twine", "check", "--strict", wheel, made / f"{DISTRIBUTION}-{commit.version}.tar.gz")
    run(sys.executable, "-m", "check_wheel_contents", wheel)
    chart, values = made / f"essp-{commit.version}.tgz", ROOT / "charts" / "essp" / "ci" / "minimal-values.yaml"
    run(chart_tool, "lint", "--strict", chart, "--values", values)
    run(chart_tool, "template", "essp", chart, "--values", values)


def install(made: Path, commit: Commit, environment: Path) -> Path:
    """Install the wheel and the pinned versions of what it needs in an empty environment; ask for its version."""
    venv.create(environment, with_pip=False)
    # First the wheel alone: its name then stands for this file, and the file's place gets into no list.
    pip(environment, "--no-deps", "--no-index", "--find-links", made, f"essp-video=={commit.version}")
    pip(environment, f"essp-video=={commit.version}")
    said = output(environment / "bin" / "essp", "--version", cwd=environment)
    if said != f"essp {commit.version}":
        sys.exit(f"`essp --version` of the wheel says {said!r}, not {commit.version}")
    return environment


def write_bill_of_materials(environment: Path, path: Path) -> None:
    options = ("--output-reproducible", "--output-format", "JSON", "--output-file", path)
    project = ("--pyproject", ROOT / "pyproject.toml", "--mc-type", "library")
    run(sys.executable, "-m", "cyclonedx_py", "environment", *project, *options, environment / "bin" / "python")


def try_catalog(environment: Path, made: Path, work: Path) -> None:
    """Make a video, a catalog of it, and look at the catalog, in a folder far from the sources."""
    pip(environment, "essp-video[decoder]")
    video = work / "videos" / "left" / "0.mp4"
    video.parent.mkdir(parents=True)
    code = "from essp_engine.video.synthetic import *; import sys; write_video(sys.argv[1], numbered(8, 64, 48))"
    run(environment / "bin" / "python", "-c", code, video, cwd=work)
    run(environment / "bin" / "essp", "catalog", "build", "videos", "--out", "catalog.parquet", cwd=work)
    run(environment / "bin" / "essp", "catalog", "show", "catalog.parquet", cwd=work)


def pip(environment: Path, *arguments: str | Path) -> None:
    python = environment / "bin" / "python"
    quiet = ("--quiet", "--disable-pip-version-check", "--constraint", ROOT / "constraints.txt")
    run(sys.executable, "-m", "pip", "--python", python, "install", *quiet, *arguments)


def run(*command: str | Path, cwd: Path = ROOT, **settings: str) -> None:
    """Run a command to its end. If it fails, exit with what it has written."""
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**_environment(), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    line = " ".join(str(word).removeprefix(f"{ROOT}/") for word in command)
    if done.returncode:
        sys.exit(f"{done.stdout}\nfailed: {line}")
    print(f"ok: {line}", flush=True)


def output(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a command writes to stdout."""
    done = subprocess.run(command, cwd=cwd, env=_environment(), check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _environment() -> dict[str, str]:
    """Without what would change how ESSP or Python runs."""
    return {name: value for name, value in os.environ.items() if not name.startswith(("ESSP_", "PYTHON"))}


if __name__ == "__main__":
    main(sys.argv[1:])
