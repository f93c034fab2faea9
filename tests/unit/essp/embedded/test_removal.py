"""Removing the output of a job that ran without a master: `essp job rm OUTPUT`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import typer

from essp.embedded.claim import Claim
from essp.embedded.removal import remove_output
from essp_common.artifacts import layout
from essp_common.artifacts.job_copy import JOB, write_copy
from essp_common.artifacts.removal import holder_of
from essp_common.errors import Conflict, NotFound, Unavailable
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import numbered
from essp_common.wiring import Stores
from tests.harness.command_line import essp
from tests.harness.refused import refused

STORES = Stores(("file:///",))
FENCE = numbered(layout.FENCES, 3)
NOTES = "trainers/notes.txt"


def run_in(folder: Path, name: str, **more: Any) -> Path:
    """The output of a training job, with a file of the user."""
    output = folder / name
    spec = JobSpec.model_validate(
        {"name": name, "output": f"file://{output}", "trainers": {"rgb": {"stream": "rgb"}}, **more}
    )
    store = DirectoryStore(str(output))
    for key in (layout.history("rgb"), layout.MODEL_MANIFEST, FENCE, NOTES):
        store.put(key, b"12345")
    store.put(layout.SPEC, spec.model_dump_json().encode())
    write_copy(store, spec)
    return output


def files_in(output: Path) -> set[str]:
    return {str(path.relative_to(output)) for path in output.rglob("*") if path.is_file()}


def test_a_job_is_removed_after_it_was_asked_for(tmp_path: Path) -> None:
    output = run_in(tmp_path / "runs", "first")
    before = files_in(output)
    told = json.loads(essp("job", "rm", str(output), "--dry-run", "--json").stdout)
    assert (told["job"], told["objects"], told["bytes"], told["kept"]) == ("first", 2, 10, [NOTES])
    asked = essp("job", "rm", str(output), typed="n\n")
    assert (asked.exit_code, "It has not ended" in asked.stderr) == (1, True)
    assert files_in(output) == before
    done = essp("job", "rm", str(output), "--yes")
    assert "1 file of yours stay" in done.stdout, done.stdout
    assert files_in(output) == {FENCE, NOTES}
    with pytest.raises(NotFound, match="not the output of a job"):
        essp("job", "rm", str(output), "--yes")


def test_a_name_alone_is_a_master_s_job_wherever_the_command_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unused_port: int
) -> None:
    output = run_in(tmp_path, "first")
    before = files_in(output)
    monkeypatch.chdir(tmp_path)
    server = f"http://127.0.0.1:{unused_port}"
    with pytest.raises(Unavailable, match=r"write \./first"):
        essp("job", "rm", "first", "--yes", "--server", server)
    assert files_in(output) == before
    assert essp("job", "rm", "./first", "--yes").exit_code == 0


def test_no_job_that_another_one_stands_on_is_removed(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    output, link = run_in(runs, "first"), tmp_path / "link"
    os.symlink(runs, link)
    weights = f"file://{link}/first/trainers/rgb"
    other = run_in(runs, "second", trainers={"rgb": {"stream": "rgb", "weights": weights}})
    before = files_in(output)
    with pytest.raises(Conflict, match="second"):
        essp("job", "rm", str(output), "--yes")
    assert files_in(output) == before
    assert essp("job", "rm", str(other), "--yes").exit_code == 0
    assert essp("job", "rm", str(output), "--yes").exit_code == 0


def test_no_output_in_use_is_removed(tmp_path: Path) -> None:
    output = run_in(tmp_path / "runs", "first")
    before = files_in(output)
    with Claim(STORES.under(f"file://{output}")), pytest.raises(Conflict, match=f"kill {os.getpid()}"):
        essp("job", "rm", str(output), "--yes")
    assert files_in(output) == before


def test_nothing_is_changed_in_a_folder_that_is_not_an_output(tmp_path: Path) -> None:
    run_in(tmp_path, "first")
    (tmp_path / "mine.txt").write_text("mine")
    before = files_in(tmp_path)
    with pytest.raises(NotFound, match=f"name one output, as {tmp_path}/first"):
        essp("job", "rm", str(tmp_path), "--yes")
    (tmp_path / layout.SPEC).write_text('{"mine": 1}')
    with refused("", "taken"):
        essp("job", "rm", str(tmp_path), "--yes")
    assert files_in(tmp_path) == before | {layout.SPEC}


def test_a_removal_that_was_interrupted_is_completed_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = run_in(tmp_path / "runs", "first")
    delete = DirectoryStore.delete

    def failing(store: DirectoryStore, key: str) -> None:
        if key == JOB:
            raise Unavailable("the disk does not answer")
        delete(store, key)

    with monkeypatch.context() as patched:
        patched.setattr(DirectoryStore, "delete", failing)
        with pytest.raises(Unavailable):
            remove_output(f"file://{output}", STORES, typer.echo)
    assert holder_of(DirectoryStore(str(output))) is not None, "it is still an output"
    remove_output(f"file://{output}", STORES, typer.echo)
    assert files_in(output) == {FENCE, NOTES}


def test_the_outputs_next_to_it_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There may be thousands of them."""
    output, other = (run_in(tmp_path / "runs", name) for name in ("first", "second"))
    read: list[str] = []
    get = DirectoryStore.get

    def noted(store: DirectoryStore, key: str) -> bytes:
        read.append(store.uri(key))
        return get(store, key)

    monkeypatch.setattr(DirectoryStore, "get", noted)
    assert essp("job", "rm", str(output), "--yes").exit_code == 0
    assert read.count(f"file://{other}/{layout.SPEC}") == 1
