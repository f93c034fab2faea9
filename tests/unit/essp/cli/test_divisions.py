"""`--splits` and `--folds`: what is run, what is left alone, and what is said when one job does not end."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer

from essp.cli.divisions import checked, command_again, divisions_of, option_of, run_all
from essp_common.catalog.catalog import Catalog
from essp_common.catalog.file import write_catalog
from essp_common.catalog.rows import VideoRow
from essp_common.errors import ConfigError
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState, JobStatus
from essp_common.objects.directory import DirectoryStore
from essp_common.runtime.process import EXIT_INTERRUPTED
from essp_common.wiring import Stores
from essp_engine.registrations import NOTHING
from tests.harness.statuses import status

STORES = Stores(("file:///",))
AGAIN = command_again("job.yaml", option_of(None, "group"), " --epochs 7")


@pytest.fixture
def job(tmp_path: Path) -> JobSpec:
    """Of three groups with three videos of each class."""
    rows = [
        VideoRow(
            f"{n:02}", f"file:///v/{n}.mp4", f"c{n % 2}", "train", 1, "e", width=64, height=64, frame_count=50,
            last_frame=49, group=f"g{n % 3}",
        )
        for n in range(18)
    ]  # fmt: skip
    write_catalog(DirectoryStore(str(tmp_path)), "set.parquet", Catalog(rows))
    document = {
        "name": "ut",
        "output": f"file://{tmp_path}/ut",
        "data": {"catalog": f"file://{tmp_path}/set.parquet"},
        "trainers": {"rgb": {"stream": "rgb", "batch_size": 2}},
    }
    return JobSpec.model_validate(document)


def run(job: JobSpec, states: list[JobState]) -> list[str]:
    """Run all folds, whose jobs are left in these states; those that were begun."""
    begun: list[str] = []

    def one(spec: JobSpec) -> JobStatus:
        begun.append(spec.name)
        return status().model_copy(update={"state": states[len(begun) - 1]})

    folds = divisions_of(job, None, "group", STORES)
    with pytest.raises(typer.Exit) as left:
        run_all(job, folds, checked(folds, STORES, False, False, NOTHING), STORES, False, False, AGAIN, one)
    begun.append(f"exit {left.value.exit_code}")
    return begun


def test_an_interruption_ends_all_and_tells_the_command_that_goes_on(
    job: JobSpec, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = run(job, [JobState.COMPLETED, JobState.RUNNING])
    assert begun == ["ut-fold-g0", "ut-fold-g1", f"exit {EXIT_INTERRUPTED}"]
    said = capsys.readouterr().err
    assert said.splitlines() == [
        "1 of 3: fold-g0",
        "2 of 3: fold-g1",
        "to continue: essp run job.yaml --folds group --epochs 7",
    ]


def test_a_job_that_failed_ends_all_with_its_exit_code(job: JobSpec, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(job, [JobState.FAILED]) == ["ut-fold-g0", "exit 1"]
    assert "fold-g0 has failed; when that is repaired, continue with: essp run job.yaml" in capsys.readouterr().err


def test_one_of_both_options_is_given(job: JobSpec) -> None:
    with pytest.raises(ConfigError, match="one of --splits and --folds, not both"):
        divisions_of(job, "1,2", "group", STORES)
    assert divisions_of(job, None, None, STORES) == ()
