"""`python -m benchmarks.papers NAME`: repeat a paper's experiments, and write them beside its page.

    python -m benchmarks.papers essp --resume                      # go on where the last run stopped
    python -m benchmarks.papers essp --only extract_first --videos UT_INTERACTION
    python -m benchmarks.papers oneaccess --resume --rounds 5 --images CIFAR --photos FOLDER --tensorflow PYTHON
    python -m benchmarks.papers essp --draw                        # tables and figures again, from the JSON files

Each part writes `docs/papers/NAME/PART.json`, step by step, and its table and figure into `docs/papers/NAME.md`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from benchmarks.papers.check_qzp import parts as check_qzp
from benchmarks.papers.document import write_page
from benchmarks.papers.essp import parts as essp
from benchmarks.papers.io import parts as io
from benchmarks.papers.oneaccess import parts as oneaccess
from benchmarks.papers.study import Options, Part, run

ROOT = Path(__file__).parents[2]
PAPERS: Mapping[str, Mapping[str, Part]] = {
    "essp": essp.PARTS,
    "oneaccess": oneaccess.PARTS,
    "check-qzp": check_qzp.PARTS,
    "io": io.PARTS,
}
"""Name of a page in docs/papers -> its parts."""


def main(
    paper: Annotated[str, typer.Argument(help=f"Which paper: {', '.join(PAPERS)}.")],
    only: Annotated[list[str] | None, typer.Option(help="Names of parts; may be repeated.")] = None,
    resume: Annotated[bool, typer.Option(help="Keep the steps that the last run has made.")] = False,
    draw: Annotated[bool, typer.Option(help="Measure nothing; write the page from the JSON files.")] = False,
    quick: Annotated[bool, typer.Option(help="Small numbers that mean nothing, to see that everything runs.")] = False,
    rounds: Annotated[int, typer.Option(help="How often each thing is measured.", min=1)] = 3,
    videos: Annotated[
        Path | None, typer.Option(help="Real videos, a folder for each class.", file_okay=False, exists=True)
    ] = None,
    images: Annotated[
        Path | None, typer.Option(help="CIFAR-10 as images, a folder or archive with train and test.", exists=True)
    ] = None,
    photos: Annotated[Path | None, typer.Option(help="A folder of photographs.", file_okay=False, exists=True)] = None,
    tensorflow: Annotated[
        Path | None, typer.Option(help="Python of an environment with tensorflow-cpu, to measure tf.data.", exists=True)
    ] = None,
    work: Annotated[Path, typer.Option(help="Where made files are kept.")] = ROOT / "benchmarks/results/papers",
    results: Annotated[Path, typer.Option(help="Where the JSON files and figures go.")] = ROOT / "docs/papers",
) -> None:
    """Repeat a paper's experiments, part by part."""
    paper = paper.replace("_", "-")
    if paper not in PAPERS:
        _refuse(f"no paper {paper}; there are: {', '.join(PAPERS)}")
    parts, folder = PAPERS[paper], results / paper
    unknown = [name for name in only or () if name not in parts]
    if unknown:
        _refuse(f"no part {', '.join(unknown)}; there are: {', '.join(parts)}")
    if not draw:
        given = {"videos": videos, "images": images, "photos": photos, "tensorflow": tensorflow}
        absolute = {name: None if path is None else path.absolute() for name, path in given.items()}
        options = Options(work.absolute(), rounds=rounds, quick=quick, **absolute)
        for name in only or parts:
            if lacking := [f"--{need}" for need in parts[name].needs if given[need] is None]:
                print(f"# {name}: left out; it needs {' and '.join(lacking)}", file=sys.stderr)
                continue
            try:
                run(parts[name], options, folder / f"{name}.json", resume)
            except ValueError as error:
                _refuse(str(error))
    page = results / f"{paper}.md"
    if not page.exists():
        return
    for name in write_page(page, parts, folder):
        print(f"# {name}: not measured yet", file=sys.stderr)


def _refuse(why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise typer.Exit(2)


if __name__ == "__main__":
    typer.run(main)
