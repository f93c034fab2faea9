"""`--fresh` in a folder with work of its user: what ESSP did not write stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from essp_common.artifacts import layout
from essp_common.artifacts.job_copy import JOB, is_copy
from essp_common.errors import ConfigError
from essp_common.objects.directory import DirectoryStore
from essp_common.wiring import Stores
from tests.harness.command_line import essp
from tests.harness.journeys import job_text, weights_of

MINE = {
    "trainers/people.csv": "coach notes",
    "model/net.py": "class Net: ...",
    "report/thesis.tex": r"\documentclass{thesis}",
    "predictions.parquet": "mine",
    "notes.txt": "keep",
}


@pytest.mark.usefixtures("sketched")
def test_what_is_not_essps_survives_every_way_to_begin_anew(catalog: Path, tmp_path: Path) -> None:
    project = tmp_path / "project"
    for name, text in {**MINE, "spec.json": '{"mine": 1}'}.items():
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text(text)

    def mine() -> dict[str, str]:
        return {name: (project / name).read_text() for name in MINE}

    def job(name: str) -> str:
        file = tmp_path / f"{name}.yaml"
        file.write_text(job_text(name, output=f"file://{project}", catalog=f"file://{catalog}", epochs=1, clips=4))
        return str(file)

    for command in ("validate", "run"):
        with pytest.raises(ConfigError, match=r"spec\.json was not written by ESSP"):
            essp(command, job("first"), "--fresh")
    (project / "spec.json").unlink()
    with pytest.raises(ConfigError, match=r"is not the output of a job, and holds model/net\.py, .* and more"):
        essp("run", job("first"), "--fresh")
    assert mine() == MINE
    assert {str(path.relative_to(project)) for path in project.rglob("*") if path.is_file()} == set(MINE)

    assert essp("run", job("first")).exit_code == 0
    before = weights_of(Stores(("file:///",)), f"file://{project}")
    keys = {info.key for info in DirectoryStore(str(project)).list()}
    assert [key for key in keys - set(MINE) if not layout.is_own(key, ("any", "training"))] == [JOB]
    assert is_copy(DirectoryStore(str(project))), "of this file its content proves whose it is"

    told = essp("validate", job("first"), "--fresh").stderr
    assert "--fresh removes job first in" in told
    assert "4 files of yours between them stay" in told
    with pytest.raises(ConfigError, match="cannot ask for confirmation without a terminal; add --yes"):
        essp("run", job("second"), "--fresh")
    assert weights_of(Stores(("file:///",)), f"file://{project}") == before
    done = essp("run", job("second"), "--fresh", "--yes")
    assert done.exit_code == 0, done.output
    assert "--fresh removes job first in" in done.stderr
    assert mine() == MINE
