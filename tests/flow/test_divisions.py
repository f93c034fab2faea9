"""`essp run --splits` and `--folds`: one job for each division, gone on with where it stopped."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from essp.catalog.build import BuildOptions, build
from essp.divisions.jobs import of_splits
from essp.embedded.composition import Embedded
from essp_common.artifacts import layout
from essp_common.artifacts.fused_model import read_model
from essp_common.job.spec import parse_spec
from essp_common.objects.numbered_log import NumberedLog
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from tests.harness.command_line import essp
from tests.harness.embedded_jobs import finish
from tests.harness.journeys import job_text, weights_of
from tests.harness.refused import refused

pytestmark = [pytest.mark.lane("promises"), pytest.mark.usefixtures("sketched")]

STORES = Stores(("file:///",))


@pytest.fixture
def job(videos: Path, tmp_path: Path) -> Path:
    """A job on a list with two divisions and three persons."""
    paths = sorted(path.relative_to(videos) for path in videos.rglob("*") if path.is_file())
    lines = ["path,label,split_1,split_2,group"]
    for number, path in enumerate(paths):
        first, second = ("test" if number % 4 == which else "train" for which in (0, 1))
        lines.append(f"{videos / path},{path.parts[-2]},{first},{second},person{number % 3}")
    (tmp_path / "list.csv").write_text("\n".join(lines) + "\n")
    build(f"file://{tmp_path}/list.csv", f"file://{tmp_path}/set.parquet", ("file:///",), BuildOptions("csv"))
    file = tmp_path / "job.yaml"
    file.write_text(job_text("ut", output="runs/ut", catalog="set.parquet", epochs=1, clips=8))
    return file


def test_the_figures_of_all_splits_are_one_table_and_nothing_is_done_twice(job: Path) -> None:
    root = job.parent / "runs" / "ut"
    spec = parse_spec(job.read_text()).model_copy(update={"output": f"file://{root}"})
    spec = spec.model_copy(
        update={"data": spec.data.model_copy(update={"catalog": f"file://{job.parent}/set.parquet"})}
    )
    _, second = of_splits(spec, "1,2", STORES)
    with Embedded(second.spec, Settings()) as half:  # as if the second split had been interrupted
        while not half.ended(0.01) and half.status().progress.done < 6:
            pass
    assert not half.status().state.ended

    planned = json.loads(essp("validate", str(job), "--splits", "1,2", "--json").stdout)["divisions"]
    assert {name: facts["videos"]["test"] for name, facts in planned.items()} == {"split-1": 5, "split-2": 5}
    assert "begins" in planned["split-1"]["resumes_at"].values()

    done = essp("run", str(job), "--splits", "1,2", "--json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout.splitlines()[-1])
    models = [read_model(STORES.under(f"file://{root}/split-{n}"), layout.MODEL_MANIFEST) for n in (1, 2)]
    tops = [model.test.fused["top1"] for model in models if model.test]
    assert [each["figures"]["fused"]["top1"] for each in found["divisions"]] == tops
    assert found["mean"]["fused"]["top1"] == pytest.approx(np.mean(tops))
    assert found["standard_deviation"]["fused"]["top1"] == pytest.approx(np.std(tops, ddof=1))
    assert set(found["mean"]) == {"rgb", "flow", "fused"}
    assert json.loads((root / "divisions.json").read_text()) == found
    assert 'href="split-2/report/report.html"' in (root / "divisions.html").read_text()
    assert (root / "split-2" / "report" / "report.html").is_file()

    whole = second.spec.model_copy(update={"output": f"file://{job.parent}/whole"})
    with Embedded(whole, Settings()) as running:
        finish(running)
    assert weights_of(STORES, second.spec.output) == weights_of(STORES, whole.output)

    starts = [NumberedLog(STORES.under(f"file://{root}/split-{n}"), layout.FENCES).newest() for n in (1, 2)]
    again = essp("run", str(job), "--splits", "1,2")
    assert again.stderr.count("which has ended") == 2
    assert "standard deviation" in again.stdout
    assert starts == [NumberedLog(STORES.under(f"file://{root}/split-{n}"), layout.FENCES).newest() for n in (1, 2)]


def test_folds_test_on_each_group_and_a_mistake_is_told_before_the_first_begins(job: Path) -> None:
    facts = json.loads(essp("validate", str(job), "--folds", "group", "--json").stdout)["divisions"]
    assert list(facts) == ["fold-person0", "fold-person1", "fold-person2"]
    assert sum(each["videos"]["test"] for each in facts.values()) == 20
    assert "fold-person2" in essp("validate", str(job), "--folds", "group").stdout
    with refused("--splits", "unknown"):
        essp("run", str(job), "--splits", "1,3")
    assert not (job.parent / "runs").exists()
