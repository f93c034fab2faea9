"""`essp checkpoint`: what there is, whether it is whole, how far it moved, and copies of models in fewer bytes."""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pytest
import torch

import essp
from essp.checkpoints.programs import export_programs
from essp_common.artifacts import checkpoint, layout
from essp_common.artifacts.checkpoint_files import BadCheckpoint
from essp_common.artifacts.fused_model import open_model
from essp_common.artifacts.manifest import MODEL_FILE
from essp_common.artifacts.sealed import sealed
from essp_common.errors import ConfigError, Conflict, EsspError, NotFound, PermanentError
from essp_common.objects.directory import DirectoryStore
from essp_common.tensors.packed import described, pack
from essp_common.wiring import Stores
from essp_engine.learning.models import Classifier, as_tensors, starting_weights
from tests.harness.command_line import essp as command
from tests.harness.predictor_bench import WEIGHTS, model_at, of_first_clips
from tests.harness.training_jobs import Stage, job_spec, phase_plans, train


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two epochs of ten clips, saved every four, and at the end."""
    root = tmp_path_factory.mktemp("trained")
    stage = Stage(job_spec(root, checkpoint={"every": 4, "keep": 9}), phase_plans(2))
    train(stage)
    return root


@pytest.fixture
def output(trained: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(trained, tmp_path / "output"))


def store_of(output: Path) -> DirectoryStore:
    return DirectoryStore.from_url(f"file://{output}")


def as_json(*words: str) -> Any:
    done = command(*words, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_all_checkpoints_are_listed_with_what_they_are(output: Path) -> None:
    found = as_json("checkpoint", "ls", str(output))
    steps = checkpoint.steps(store_of(output), "one")
    assert [each["step"] for each in found] == steps
    assert [each["step"] for each in found if each["latest"]] == steps[-1:]
    assert [each["step"] for each in found if each["final"]] == steps[-1:]
    assert sum(each["best"] for each in found) == 1
    newest = found[-1]
    files = [path for path in output.glob(f"trainers/one/checkpoints/{newest['step']:010d}-*/*")]
    assert newest["bytes"] == sum(path.stat().st_size for path in files)
    assert {each["problem"] for each in found} == {""}
    text = command("checkpoint", "ls", str(output)).stdout
    assert "TRAINER" in text
    [best] = [each for each in found if each["best"]]
    assert newest["step"] != best["step"]
    assert [each["weights_of"] for each in found] == [None] * (len(found) - 1) + [best["step"]]
    assert newest["epoch"] == best["epoch"]
    assert f"latest, final: best ({best['step']:,})" in text


def test_a_checkpoint_is_shown_with_its_place_and_files(output: Path) -> None:
    shown = command("checkpoint", "show", str(output), "--step", "4").stdout
    assert "4 clips, 1 updates" in shown
    assert "phase 0, clip 4" in shown
    assert "model.tensors" in shown
    final = as_json("checkpoint", "show", str(output))
    assert final["final"]
    words = " ".join(command("checkpoint", "show", str(output)).stdout.split())
    assert f"yes: nothing follows it; its weights are from step {final['best']['step']:,}, the best" in words
    with pytest.raises(NotFound, match=r"trainer one has no checkpoint 5; there are 4, 8, 10"):
        command("checkpoint", "show", str(output), "--step", "5")


def test_a_whole_output_is_verified_and_a_damaged_one_named(output: Path) -> None:
    assert as_json("checkpoint", "verify", str(output))["damaged"] == {}
    [weights] = output.glob("trainers/one/checkpoints/0000000008-*/model.tensors")
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    [manifest] = output.glob("trainers/one/checkpoints/0000000010-*/manifest.json")
    manifest.unlink()
    done = command("checkpoint", "verify", str(output), "--json")
    assert done.exit_code == 1
    damaged = json.loads(done.stdout)["damaged"]
    assert damaged.keys() == {"one 8", "one 10"}
    assert "its SHA-256 differs from the manifest" in damaged["one 8"]
    assert "is missing" in damaged["one 10"]
    assert "unusable" in command("checkpoint", "ls", str(output)).stdout


@pytest.mark.parametrize("when", ["as it is listed", "as its manifest is read", "as its files are read"])
def test_what_a_running_job_removes_meanwhile_is_not_damaged(
    output: Path, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Just before its manifest is read for the first or the second time, or its weights are."""
    wanted = MODEL_FILE if when == "as its files are read" else "manifest.json"
    asked = 2 if when == "as its manifest is read" else 1
    [removed] = output.glob("trainers/one/checkpoints/0000000008-*")
    times = [0]

    class Running(DirectoryStore):
        def open(self, key: str) -> BinaryIO:
            times[0] += f"/{removed.name}/{wanted}" in key
            if times[0] == asked and removed.exists():
                shutil.rmtree(removed)
            return super().open(key)

    monkeypatch.setattr("essp.cli.checkpoint._store", lambda output: Running.from_url(f"file://{output}"))
    found = as_json("checkpoint", "verify", str(output))
    assert times[0] >= asked
    assert found["damaged"] == {}
    assert found["passed_over"] == ["one 8"]
    assert found["checkpoints"] == len(checkpoint.steps(store_of(output), "one"))


@pytest.mark.parametrize("newest", ["none", "an older one"])
def test_what_a_running_job_is_writing_is_not_damaged(output: Path, newest: str) -> None:
    """Its files come before its manifest, and that before it is said to be complete."""
    store = store_of(output)
    for info in list(store.list("trainers/one/")):
        if "/checkpoints/0000000004-" not in info.key and (newest == "none" or "/checkpoints/" in info.key):
            store.delete(info.key)
    if newest == "an older one":
        for info in list(store.list("trainers/one/latest/")):
            store.put(info.key, json.dumps({"owner": 1, "step": 4, "incarnation": 1}).encode())
    store.put("trainers/one/checkpoints/0000000008-0000000001/model.tensors", b"the first of its files")
    found = as_json("checkpoint", "verify", str(output))
    assert (found["checkpoints"], found["damaged"], found["passed_over"]) == (1, {}, ["one 8"])
    assert "one 8: skipped, as it is being written" in command("checkpoint", "verify", str(output)).stdout
    assert "one 8: it is being written" in command("checkpoint", "ls", str(output)).stdout


def test_a_difference_is_that_of_the_weights(output: Path) -> None:
    found = as_json("checkpoint", "diff", str(output), "4", "8")
    one, other = (weights_at(output, step) for step in (4, 8))
    for moved in found["moved"]:
        before, after = one[moved["name"]].double(), other[moved["name"]].double()
        assert moved["largest"] == pytest.approx(float((after - before).abs().max()))
        if before.norm():
            assert moved["relative"] == pytest.approx(float((after - before).norm() / before.norm()))
    assert {moved["name"] for moved in found["moved"]} == one.keys()
    assert as_json("checkpoint", "diff", str(output), "4", "4")["same"]
    assert "the same to the last bit" in command("checkpoint", "diff", str(output), "4", "4").stdout
    assert "backbone" in command("checkpoint", "diff", str(output), "4", "8").stdout


def weights_at(output: Path, step: int) -> dict[str, torch.Tensor]:
    store = store_of(output)
    manifest = checkpoint.read(store, "one", step)
    return as_tensors(checkpoint.load_arrays(store, manifest, [MODEL_FILE])[MODEL_FILE])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("ls", "nowhere"), "holds no checkpoint of a training; give the output of a training job"),
        (("show", "nowhere"), "holds no checkpoint of a training; give the output of a training job"),
        (("diff", "nowhere", "1", "2"), "holds no checkpoint of a training; give the output of a training job"),
        (("ls", "{output}", "--trainer", "two"), "holds no checkpoint of trainer two"),
        (("show", "{output}", "--trainer", "two"), "--trainer: there is no trainer two; there are one"),
        (("diff", "{output}", "4", "5"), "there are 4, 8, 10"),
        (("export", "{output}", "--out", "x"), "is the output of a job that has not completed, so it has no model yet"),
        (("export", "nowhere", "--out", "x"), "there is no model at"),
    ],
)
def test_what_is_asked_wrongly_is_answered_with_what_there_is(
    output: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EsspError, match=message):
        command("checkpoint", *(word.format(output=output) for word in words))


# --- copies of models ---


def scores(uri: str) -> dict[str, Any]:
    """What each network says of the same clips, made up."""
    rng = np.random.default_rng(1)
    answers = {}
    for name, stream in essp.load_model(uri).streams.items():
        assert isinstance(stream.module, Classifier)
        channels = len(stream.module.mean)
        clip = rng.integers(0, 256, (4, 40, 40, channels)).astype(np.uint8)
        answers[name] = stream.score(clip)
    return answers


def test_an_exact_copy_gives_the_same_answers_in_fewer_bytes(tmp_path: Path) -> None:
    model = model_at(tmp_path)
    done = as_json("checkpoint", "export", model, "--out", str(tmp_path / "copy"))
    assert done["size"] < 0.95
    assert {member["error"] for member in done["members"]} == {0.0}
    expected, found = scores(model), scores(str(tmp_path / "copy"))
    assert expected.keys() == found.keys()
    for name, answer in expected.items():
        assert np.array_equal(answer, found[name])


def test_a_copy_and_a_loaded_model_fuse_as_the_model_does(tmp_path: Path) -> None:
    """By a strategy that counts the first half of each video alone."""
    as_json("checkpoint", "export", of_first_clips(tmp_path), "--out", str(tmp_path / "copy"), "--bits", "8")
    loaded = essp.load_model(tmp_path / "copy")
    assert (loaded.strategy, loaded.rule) == ("linear parts=2", None)
    clips = {
        name: np.random.default_rng(seed).random((3, 4, len(loaded.classes)))
        for seed, name in enumerate(loaded.streams)
    }
    clips = {name: own / own.sum(axis=2, keepdims=True) for name, own in clips.items()}
    by_hand = sum(WEIGHTS[name] * own[:, :2].mean(axis=1) for name, own in clips.items())
    np.testing.assert_allclose(loaded.fuse(clips), by_hand, rtol=1e-6)
    with pytest.raises(ConfigError, match="linear parts=2 reads the score of each clip"):
        loaded.fuse({name: own.mean(axis=1) for name, own in clips.items()})
    with pytest.raises(ConfigError, match=r"fuses by linear parts=2, and model\.json of programs can only say"):
        export_programs(loaded, DirectoryStore.from_url(f"file://{tmp_path}/program"), "onnx", (40, 40))


def test_a_copy_of_eight_bits_is_a_quarter_and_says_so(tmp_path: Path) -> None:
    model = model_at(tmp_path)
    done = as_json("checkpoint", "export", model, "--out", str(tmp_path / "copy"), "--bits", "8")
    assert done["size"] < 0.3
    assert all(0 < member["error"] < 0.01 for member in done["members"])
    store, manifest = open_model(Stores(("file:///",)), f"file://{tmp_path}/copy")
    assert [member.bits for member in manifest.members] == [8] * len(WEIGHTS)
    for member in manifest.members:
        bits = {each.name: each.bits for each in described(store.get(member.file)) if len(each.shape) > 1}
        assert set(bits.values()) == {8}
    expected, found = scores(model), scores(str(tmp_path / "copy"))
    for name, answer in expected.items():
        assert np.abs(answer - found[name]).max() < 0.02


def test_a_copy_never_takes_the_place_of_a_model(tmp_path: Path) -> None:
    model = model_at(tmp_path)
    before = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    with pytest.raises(Conflict, match=r"manifest\.json is there already; name another folder"):
        command("checkpoint", "export", model, "--out", str(tmp_path / "model"), "--bits", "4")
    assert {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()} == before


def test_weights_that_are_none_are_named(tmp_path: Path) -> None:
    """Whatever lies beside a manifest that has its hash: no file of tensors, or that of another network."""
    store = store_of(tmp_path)
    model_at(tmp_path)
    _, manifest = open_model(Stores(("file:///",)), f"file://{tmp_path}")
    other = checkpoint_bytes()
    for data, words in ((b"nothing", "are not a file of tensors"), (other, "belong to another network")):
        member = manifest.members[0].model_copy(update={"sha256": hashlib.sha256(data).hexdigest()})
        store.put(f"model/{member.file}", data)
        store.put(
            "model/manifest.json", sealed(manifest.model_copy(update={"members": (member, *manifest.members[1:])}))
        )
        with pytest.raises(PermanentError, match=words):
            essp.load_model(tmp_path)


OF_ANOTHER_SIZE = r"its arrays have 67,108,864 bytes, and [0-9,]+ are the most that can be in it"


@cache
def bomb() -> bytes:
    """64 MiB in a few kilobytes."""
    return pack({"zeros": np.zeros((2**12, 2**12), np.float32)})


def with_bomb(output: Path, step: int) -> None:
    """A checkpoint of somebody else's, whole as far as its hashes say."""
    store = store_of(output)
    manifest = checkpoint.read(store, "one", step)
    files = [
        file.model_copy(update={"size_bytes": len(bomb()), "sha256": hashlib.sha256(bomb()).hexdigest(), "base": None})
        for file in manifest.files
        if file.name == MODEL_FILE
    ]
    store.put(manifest.prefix + MODEL_FILE, bomb())
    store.put(manifest.key, sealed(manifest.model_copy(update={"files": tuple(files)})))


def test_checkpoints_of_more_bytes_than_their_network_has_are_not_unpacked(output: Path) -> None:
    assert len(bomb()) < 2**14
    with_bomb(output, 8)
    with pytest.raises(BadCheckpoint, match=OF_ANOTHER_SIZE):
        command("checkpoint", "diff", str(output), "4", "8")
    with_bomb(output, checkpoint.steps(store_of(output), "one")[-1])
    store_of(output).put(layout.SPEC, job_spec(output).model_copy(update={"epochs": 2}).model_dump_json().encode())
    with pytest.raises(BadCheckpoint, match=OF_ANOTHER_SIZE):
        starting_weights(Stores(("file:///",)), f"file://{output}/trainers/one")


def test_a_model_of_more_bytes_than_its_network_has_is_not_unpacked(tmp_path: Path) -> None:
    model = model_at(tmp_path)
    _, manifest = open_model(Stores(("file:///",)), model)
    first = manifest.members[0].model_copy(update={"sha256": hashlib.sha256(bomb()).hexdigest()})
    (tmp_path / "model" / first.file).write_bytes(bomb())
    hostile = manifest.model_copy(update={"members": (first, *manifest.members[1:])})
    (tmp_path / "model/manifest.json").write_bytes(sealed(hostile))
    with pytest.raises(PermanentError, match=f"{first.file}: {OF_ANOTHER_SIZE}"):
        command("checkpoint", "export", model, "--out", str(tmp_path / "copy"))


def checkpoint_bytes() -> bytes:
    return pack({"weight": np.zeros((2, 3), np.float32)})
