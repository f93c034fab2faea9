"""Nothing is removed but what ESSP is proved to have written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from essp.report.folder import _KEPT
from essp_common.artifacts import layout
from essp_common.artifacts.manifest import MODEL_FILE, OPTIMIZER_FILE, TRAINED_FILE
from essp_common.artifacts.removal import NoOutput, check_free, holder_of, removal_of, remove, write_owner
from essp_common.errors import ConfigError
from essp_common.job.extract_spec import ExtractSpec
from essp_common.job.fields import _NAME
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.objects.numbered_log import numbered

NAMES = st.from_regex(_NAME, fullmatch=True).filter(lambda name: not name.endswith("\n"))
NUMBERS = st.integers(1, 10**10 - 1)
DIGESTS = st.text("0123456789abcdef", min_size=64, max_size=64)
TRAINING = JobSpec.model_validate({"name": "j", "output": "file:///out", "trainers": {"rgb": {"stream": "rgb"}}})
PREDICTION = JobSpec.model_validate({"name": "p", "output": "file:///out", "predictor": {"model": "file:///model"}})
EXTRACTION = JobSpec.model_validate({"name": "e", "output": "file:///out", "extract": {}})


@st.composite
def keys(draw: st.DrawFn) -> str:
    """A key that the product writes, made as the product makes it."""
    trainer, number, digest = draw(NAMES), draw(NUMBERS), draw(DIGESTS)
    folder = layout.checkpoint(trainer, draw(st.integers(0, 10**18 - 1)), number)
    part = f"{layout.PARTS}{digest[:16]}/{draw(NAMES)}/{number:010d}/"
    return draw(
        st.sampled_from(
            (
                *(layout.SPEC, layout.OWNER, layout.CATALOG, layout.MODEL_MANIFEST, layout.PREDICTIONS),
                *(folder + name for name in (MODEL_FILE, TRAINED_FILE, OPTIMIZER_FILE, layout.CHECKPOINT_MANIFEST)),
                *(numbered(log, number) for log in (layout.latest(trainer), layout.HISTORY, layout.FENCES)),
                *(numbered(log, number) for log in (layout.SNAPSHOTS, layout.LOCKS)),
                *(layout.scores(trainer, purpose, number % 10_000) for purpose in ("validation", "test", "embed")),
                *(layout.history(trainer), layout.chapter(number, number), layout.fused_scores("test")),
                *(layout.model_weights(trainer, digest), layout.model_state(digest), layout.SEGMENTS),
                *(f"{part}{trainer}.parquet", f"{part}done.json", f"{layout.PARTS}runs/{number}"),
                *(layout.REPORT + "report.html", layout.REPORT + "confusion.png", _KEPT.format(number % 1000 + 1)),
                f"{layout.DEADLETTERS}{1_700_000_000_000}-{number}.json",
            )
        )
    )


@given(keys())
def test_what_the_product_writes_is_known_and_what_only_looks_like_it_is_not(key: str) -> None:
    folder, _, name = key.rpartition("/")
    assert layout.is_own(key)
    near = (f"{key}.bak", f"{key}~", f"{key}\n", f"{key}/x", f"x/{key}", f" {key}", f"{folder}/-{name}", f"{key} (1)")
    assert not [other for other in (*near, key.upper()) if other != key and layout.is_own(other)]


def output_with(folder: Path, spec: JobSpec | None, *keys: str) -> DirectoryStore:
    store = DirectoryStore(str(folder))
    for key in keys:
        store.put(key, b"12345")
    if spec is not None:
        store.put(layout.SPEC, (spec.model_dump_json(indent=2) + "\n").encode())
    return store


OWN = (
    "trainers/rgb/checkpoints/0000000010-0000000001/model.tensors",
    "trainers/rgb/checkpoints/0000000010-0000000001/manifest.json",
    "trainers/rgb/latest/0000000002",
    "trainers/rgb/history.json",
    "model/manifest.json",
    f"model/rgb-{'0a' * 8}.safetensors",
    "history/0000000003",
    "report/report.html",
)
OTHERS = (
    "model/net.py",
    f"model/mine-{'0a' * 8}.safetensors",
    "report/thesis.tex",
    "trainers/people.csv",
    "trainers/coach/history.json",
    "trainers/rgb/checkpoints/0000000010-0000000001/plot.png",
    "history/2024",
    "predictions.parquet",
    "catalog.parquet",
    "spec.json.orig",
    "notes.txt",
)


def test_only_what_the_job_wrote_goes(tmp_path: Path) -> None:
    output = output_with(tmp_path, TRAINING, *OWN, *OTHERS, "fences/0000000001", "locks/0000000001")
    found = removal_of(output)
    assert found is not None
    assert (found.job, set(found.keys), found.bytes) == ("j", set(OWN), 5 * len(OWN))
    assert set(found.kept) == set(OTHERS) - {"spec.json.orig", "notes.txt"}, "where no job writes nobody looks"
    assert "8 objects, 40 B; 9 files of yours" in found.words
    assert [key.endswith("manifest.json") for key in found.keys[:2]] == [True, True], "what is cut short is not whole"
    remove(output, found)
    left = {info.key for info in output.list()}
    assert left == {*OTHERS, layout.SPEC, "fences/0000000001", "locks/0000000001"}
    assert (again := removal_of(output)) is not None
    assert not again.keys


def test_what_a_prediction_wrote_is_not_what_a_training_wrote(tmp_path: Path) -> None:
    output = output_with(tmp_path, PREDICTION, "predictions.parquet", "model/manifest.json", "catalog.parquet")
    found = removal_of(output)
    assert found is not None
    assert (found.keys, found.kept) == (("predictions.parquet",), ("model/manifest.json",))


@pytest.mark.parametrize(
    ("spec", "own"),
    [
        (PREDICTION, {"predictions.parquet"}),
        (EXTRACTION, {"features/manifest.json", "features/rgb-videos.parquet", "features/rgb/part-00000.parquet"}),
        (
            EXTRACTION.model_copy(update={"extract": ExtractSpec(format="npy")}),
            {"features/manifest.json", "features/rgb-videos.parquet", "features/rgb/part-00000.parquet"}
            | {"features/rgb/a/1.npy"},
        ),
    ],
)
def test_features_are_what_an_extraction_wrote_in_its_format(tmp_path: Path, spec: JobSpec, own: set[str]) -> None:
    """Of any other job, features below its output are the user's."""
    everything = {
        *("predictions.parquet", "features/manifest.json", "features/rgb-videos.parquet"),
        *("features/rgb/part-00000.parquet", "features/rgb/a/1.npy", "features/rgb/means.csv"),
    }
    found = removal_of(output_with(tmp_path, spec, *everything))
    assert found is not None
    assert (set(found.keys), set(found.kept)) == (own, everything - own)


DOCUMENTS = {
    "another program's": '{"mine": 1}',
    "with the required fields of a job": '{"name": "net", "output": "file:///o", "trainers": {"a": {"stream": "rgb"}}}',
    "a job file of a person": json.dumps(
        {"name": "j", "output": ".", "data": {"catalog": "c"}, "clip": {}, "trainers": {"rgb": {"stream": "rgb"}}}
    ),
    "a list": "[1, 2]",
    "a number": "17",
    "null": "null",
    "empty": "",
    "cut off": TRAINING.model_dump_json()[:300],
    "deep": "[" * 100_000,
    "large": '{"a": "' + "x" * 2**24 + '"}',
    "of a later version": TRAINING.model_dump_json().replace('"epochs":10', '"epochs":"until noon"'),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_folder_with_a_spec_of_somebody_else_is_no_output(tmp_path: Path, name: str) -> None:
    output = output_with(tmp_path, None, *OWN)
    output.put(layout.SPEC, DOCUMENTS[name].encode())
    for look in (holder_of, removal_of):
        with pytest.raises(ConfigError):
            look(output)


def test_a_folder_that_is_no_output_is_not_emptied_and_says_what_is_in_the_way(tmp_path: Path) -> None:
    output = output_with(tmp_path, None, "locks/0000000001", "fences/0000000004", "catalog.parquet")
    assert removal_of(output) is None, "nothing but what stays"
    output.put("model/net.py", b"")
    with pytest.raises(NoOutput, match=r"not the output of a job, and holds model/net\.py; nothing in it is removed"):
        removal_of(output)


def test_a_job_writes_over_nothing_in_a_folder_that_is_no_output(tmp_path: Path) -> None:
    output = output_with(tmp_path, None, "predictions.parquet", "model/net.py", "report/thesis.tex")
    check_free(output, TRAINING)
    with pytest.raises(NoOutput, match=r"write over predictions\.parquet"):
        check_free(output, PREDICTION)
    output.put("report/report.html", b"my own")
    with pytest.raises(NoOutput, match=r"write over report/report\.html"):
        check_free(output, TRAINING)


def test_no_link_leads_a_removal_out_of_the_output(tmp_path: Path) -> None:
    elsewhere = output_with(tmp_path / "elsewhere", None, "0000000010-0000000001/model.tensors")
    output = output_with(tmp_path / "out", TRAINING, "trainers/rgb/history.json", "report/loss.png")
    (tmp_path / "out/trainers/rgb/checkpoints").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "picture.png").write_text("mine")
    (tmp_path / "out/report/confusion.png").symlink_to(tmp_path / "picture.png")
    found = removal_of(output)
    assert found is not None
    assert found.kept == ("trainers/rgb/checkpoints/0000000010-0000000001/model.tensors",)
    (tmp_path / "report").mkdir()
    (tmp_path / "report/loss.png").write_text("mine")
    (tmp_path / "out/report/loss.png").unlink()
    (tmp_path / "out/report/confusion.png").unlink()
    (tmp_path / "out/report").rmdir()
    (tmp_path / "out/report").symlink_to(tmp_path / "report")  # since it was looked at
    remove(output, found)
    assert [info.key for info in elsewhere.list()] == ["0000000010-0000000001/model.tensors"]
    assert (tmp_path / "report/loss.png").read_text() == (tmp_path / "picture.png").read_text() == "mine"
    assert not (tmp_path / "out/trainers/rgb/history.json").exists()


def test_the_spec_of_another_output_proves_nothing_here(tmp_path: Path) -> None:
    output_with(tmp_path / "other", TRAINING)
    output = output_with(tmp_path / "out", None, *OWN)
    (tmp_path / "out/spec.json").symlink_to(tmp_path / "other/spec.json")
    with pytest.raises(NoOutput):
        removal_of(output)


def test_an_output_says_of_which_team_it_is(tmp_path: Path) -> None:
    output = output_with(tmp_path, TRAINING)

    def team() -> str | None:
        found = holder_of(output)
        assert found is not None
        return found.team

    assert team() is None
    write_owner(output, "vision")
    assert team() == "vision"
    write_owner(output, "")
    assert team() is None
    output.put(layout.OWNER, b"mine")
    with pytest.raises(ConfigError, match="does not say whose output"):
        team()
