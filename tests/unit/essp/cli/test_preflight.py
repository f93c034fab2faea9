"""`essp validate`, `essp run` and `POST /v1/jobs` refuse the same jobs in the same words, and write nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import pytest

from essp_common.artifacts import layout
from essp_common.errors import ConfigError
from essp_common.job.feature_layout import FeatureLayout
from essp_common.job.spec import JobSpec
from essp_common.objects.directory import DirectoryStore
from essp_common.validation import MOST_PROBLEMS
from essp_common.wiring import Stores
from essp_engine.features.declared import DeclaredFeature, DeclaredOutput
from essp_engine.preflight.preflight import Preflight, preflight
from essp_engine.registrations import Declared
from essp_master.api.app import create_app
from essp_master.config import MasterSettings
from tests.harness.command_line import essp
from tests.harness.fleet import adapters_in, make_job, master_over
from tests.harness.refused import Refusal, refusals, refused
from tests.harness.serving import served


def trainer(**settings: Any) -> dict[str, Any]:
    """A job with one trainer, on `rgb`."""
    own = {"stream": "rgb", "batch_size": 2, "augment": {"crop": 16}} | settings
    return {"streams": {"rgb": {}}, "trainers": {"one": own}}


def encoder(**settings: Any) -> dict[str, Any]:
    """A job with one encoder, on `rgb`."""
    own = {"stream": "rgb", "model": "fisher_vector", "batch_size": 2, "encoder": settings}
    return {"streams": {"rgb": {}}, "trainers": {"one": own}}


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "no catalog": ({"data": {}}, "data.catalog", "missing"),
    "a catalog that is not there": ({"data": {"catalog": "file:///nowhere/c.parquet"}}, "data.catalog", "not_found"),
    "a background that the catalog has not": ({"sampling": {"background": "c3"}}, "sampling.background", "unknown"),
    "a budget too small": ({"limits": {"budget": "3KB"}}, "limits.budget", "range"),
    "an unknown strategy": (
        {"aggregation": {"strategies": ["average", "averege"]}},
        "aggregation.strategies.1",
        "unknown",
    ),
    "a parameter that a strategy has not": (
        {"aggregation": {"strategies": [{"name": "top_k", "n": 3}]}},
        "aggregation.strategies.0.n",
        "unknown",
    ),
    "an unknown feature": (
        {"streams": {"rgb": {}, "diff": {"feature": "no_such"}}},
        "streams.diff.feature",
        "unknown",
    ),
    "a parameter that a feature has not": (
        {"streams": {"rgb": {}, "diff": {"feature": "frame_diff", "params": {"lenght": 2}}}},
        "streams.diff.params.lenght",
        "unknown",
    ),
    **{
        f"a network on {feature}": (
            {
                "clip": {"frames": 16, "resize": {"height": 48, "width": 48}},
                "streams": {"rgb": {}, "words": {"feature": feature}},
                "trainers": {"one": {"stream": "words", "batch_size": 2, "augment": {"crop": 8, "flip": False}}},
                "limits": {"budget": "1GiB"},
            },
            "trainers.one.stream",
            "conflict",
        )
        for feature in ("hog", "hof", "mbh", "trajectories", "improved_trajectories")
    },
    "an encoder on pictures": (encoder(), "trainers.one.model", "conflict"),
    "more components than numbers": (
        encoder(pca=97)
        | {
            "clip": {"frames": 16, "resize": {"height": 48, "width": 48}},
            "streams": {"rgb": {"feature": "hog"}},
            "limits": {"budget": "1GiB"},
        },
        "trainers.one.encoder.pca",
        "range",
    ),
    "a crop larger than the frames": (trainer(augment={"crop": 17}), "trainers.one.augment.crop", "range"),
    "a crop larger than frames that keep their size": (
        trainer(augment={"crop": 49}) | {"clip": {"frames": 3, "resize": {"mode": "none"}}},
        "trainers.one.augment.crop",
        "range",
    ),
    "a network of clips that gets one frame": (
        trainer(model="r3d_18", augment={"crop": 17}) | {"clip": {"frames": 3, "resize": {"height": 17, "width": 17}}},
        "streams.rgb.params.frames",
        "range",
    ),
    "a network of clips that gets flow": (
        trainer(model="r3d_18", augment={"crop": 17})
        | {
            "clip": {"frames": 3, "resize": {"height": 17, "width": 17}},
            "streams": {"rgb": {"feature": "flow", "params": {"length": 2}}},
        },
        "trainers.one.model",
        "conflict",
    ),
    "a crop too small for the network": (trainer(model="alexnet"), "trainers.one.augment.crop", "range"),
    "an unknown network": (trainer(model="resnet19"), "trainers.one.model", "unknown"),
    "an unknown loss": (trainer(loss="guess"), "trainers.one.loss", "unknown"),
    "batches of one value": (trainer(batch_size=1), "trainers.one.batch_size", "range"),
    "a weight of a class that is none": (
        trainer(class_weights={"c0": 2, "c3": 1}),
        "trainers.one.class_weights",
        "unknown",
    ),
    "RandAugment of flow": (
        trainer(augment={"crop": 16, "rand_augment": {}})
        | {"streams": {"rgb": {"feature": "flow", "params": {"length": 2}}}},
        "trainers.one.augment.rand_augment",
        "conflict",
    ),
    "passes of one value": (trainer(micro_batch=1), "trainers.one.micro_batch", "range"),
    "epochs of one value": (
        trainer() | {"sampling": {"clips_per_epoch": 1}},
        "sampling.clips_per_epoch",
        "range",
    ),
    "batches of one value in a second classifier": (
        trainer(batch_size=1, model="inception_v3"),
        "trainers.one.batch_size",
        "range",
    ),
    "weights that are not there": (
        trainer(weights="file:///nowhere/w.pt"),
        "trainers.one.weights",
        "not_found",
    ),
}
"""A job that cannot run -> the field that is refused, and why."""


@pytest.fixture
def url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("ESSP_STORES", f'["file://{tmp_path}"]')  # the same as the master's
    with (
        closing(adapters_in(tmp_path)) as adapters,
        served(create_app(master_over(adapters), MasterSettings(api_open=True))) as url,
    ):
        yield url


def said_of(url: str, folder: Path, spec: JobSpec) -> list[str]:
    """What validate, run and the API say of a job."""
    file = folder / "job.json"
    file.write_text(spec.model_dump_json())
    said = []
    for command in (("validate", str(file)), ("run", str(file), "--json")):
        with pytest.raises(ConfigError) as raised:
            essp(*command)
        said.append(str(raised.value))
    answer = httpx.post(f"{url}/v1/jobs", content=file.read_bytes(), headers={"content-type": "application/json"})
    assert answer.status_code == 422
    return [*said, answer.json()["detail"]]


@pytest.mark.parametrize("name", WRONG)
def test_a_job_that_cannot_run_is_refused(tmp_path: Path, name: str) -> None:
    change, field, code = WRONG[name]
    with refused(field, code):
        preflight(make_job(tmp_path, **change), Stores((f"file://{tmp_path}",)))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", list(WRONG)[::10])
def test_a_job_that_cannot_run_is_refused_in_the_same_words(url: str, tmp_path: Path, name: str) -> None:
    change, field, _ = WRONG[name]
    validate, run, post = said_of(url, tmp_path, make_job(tmp_path, **change))
    assert validate == run == post
    assert validate.startswith(f"{field}: ")
    assert not (tmp_path / "out").exists()


def test_all_that_is_wrong_with_a_job_is_said_at_once(url: str, tmp_path: Path) -> None:
    spec = make_job(
        tmp_path,
        streams={"rgb": {}},
        trainers={
            "one": {"stream": "rgb", "batch_size": 2, "loss": "guess", "augment": {"crop": 17}},
            "two": {"stream": "rgb", "batch_size": 2, "class_weights": {"c3": 1}, "augment": {"crop": 16}},
        },
        limits={"budget": "3KB"},
    )
    with pytest.raises(ConfigError) as error:
        preflight(spec, Stores((f"file://{tmp_path}",)))
    assert refusals(error.value) == [
        ("trainers.one.loss", "unknown"),
        ("trainers.two.class_weights", "unknown"),
        ("trainers.one.augment.crop", "range"),
        ("limits.budget", "range"),
    ]
    validate, run, post = said_of(url, tmp_path, spec)
    assert validate == run == post == str(error.value)
    assert [line.partition(":")[0].strip() for line in validate.splitlines()[1:]] == [
        field for field, _ in refusals(error.value)
    ]


def test_of_the_problems_of_many_trainers_as_many_are_named_as_people_read(tmp_path: Path) -> None:
    crops = {f"t{n}": {"stream": "rgb", "batch_size": 2, "augment": {"crop": 17}} for n in range(25)}
    with pytest.raises(ConfigError) as error:
        preflight(make_job(tmp_path, streams={"rgb": {}}, trainers=crops), Stores((f"file://{tmp_path}",)))
    *named, last = error.value.parts
    assert len(named) == MOST_PROBLEMS
    assert str(last) == "and 5 more problems"


def test_an_output_of_another_job_is_refused_in_the_same_words(url: str, tmp_path: Path) -> None:
    store = DirectoryStore(str(tmp_path / "out"))
    store.put(layout.SPEC, make_job(tmp_path, sampling={"seed": 5}).model_dump_json().encode())
    before = sorted(tmp_path.glob("out/**/*"))
    spec = make_job(tmp_path)
    validate, run, post = said_of(url, tmp_path, spec)
    assert validate == run == post
    assert "holds another job, which differs in sampling" in validate
    assert sorted(tmp_path.glob("out/**/*")) == before
    done = essp("validate", str(tmp_path / "job.json"), "--fresh", "--json")
    assert json.loads(done.stdout)["resumes_at"] == {"rgb": "begins", "diff": "begins"}


def test_an_output_that_is_a_file_is_refused_in_the_same_words(url: str, tmp_path: Path) -> None:
    (tmp_path / "out").write_bytes(b"mine")
    validate, run, post = said_of(url, tmp_path, make_job(tmp_path))
    assert validate == run == post == f"output: {tmp_path}/out is a file; give a folder"
    assert (tmp_path / "out").read_bytes() == b"mine"


def test_a_job_that_was_given_more_epochs_goes_on_with_those_whatever_its_file_says(tmp_path: Path) -> None:
    """By --epochs or while it ran: the file that it was started with starts it again."""
    store, stores = DirectoryStore(str(tmp_path / "out")), Stores((f"file://{tmp_path}",))
    store.put(layout.SPEC, make_job(tmp_path, epochs=5).model_dump_json().encode())
    found = preflight(make_job(tmp_path), stores)
    assert found.spec.epochs == 5
    assert len([warning for warning in found.warnings if warning.startswith("epochs: 2 are requested")]) == 1
    assert preflight(make_job(tmp_path), stores, fresh=True).spec.epochs == 2
    assert not [one for one in preflight(make_job(tmp_path, epochs=5), stores).warnings if one.startswith("epochs:")]


def test_more_trainers_are_no_other_job_and_fewer_are_refused_in_the_same_words(url: str, tmp_path: Path) -> None:
    one = make_job(tmp_path).model_dump(mode="json", include={"trainers"})["trainers"]
    more = {"trainers": one | {"two": trainer()["trainers"]["one"]}}
    store = DirectoryStore(str(tmp_path / "out"))
    store.put(layout.SPEC, make_job(tmp_path, **more).model_dump_json().encode())
    validate, run, post = said_of(url, tmp_path, make_job(tmp_path))
    assert validate == run == post
    assert "trainers.two: " in validate
    assert "a job can only be extended; add it to the job file" in validate
    store.put(layout.SPEC, make_job(tmp_path).model_dump_json().encode())
    assert preflight(make_job(tmp_path, **more), Stores((f"file://{tmp_path}",))).spec.trainers.keys() == {*one, "two"}


def test_more_epochs_are_no_other_job_and_change_what_a_cosine_has_done(tmp_path: Path) -> None:
    stores = Stores((f"file://{tmp_path}",))
    cosine = trainer(optimizer={"schedule": "cosine"})

    def warnings(**change: Any) -> str:
        return " ".join(preflight(make_job(tmp_path, **change), stores).warnings)

    stores.under(make_job(tmp_path).output).put(
        layout.SPEC, make_job(tmp_path, epochs=2, **cosine).model_dump_json().encode()
    )
    assert "cosine" not in warnings(epochs=2, **cosine)
    assert (
        "trainers.one.optimizer.schedule: a cosine ends with the last epoch, which was epoch 2 until now; with 4 the"
        in warnings(epochs=4, **cosine)
    )
    file = tmp_path / "job.json"
    file.write_text(make_job(tmp_path, epochs=2, **cosine).model_dump_json())
    assert "with 3 the rate rises again" in essp("validate", str(file), "--epochs", "3").stderr


@pytest.mark.parametrize(
    "change",
    [
        trainer(batch_size=1, partial_bn=True),
        trainer(batch_size=1, model="vgg19", augment={"crop": 32}) | {"clip": {"resize": {"height": 32, "width": 32}}},
        trainer(batch_size=1) | {"streams": {"rgb": {"params": {"frames": 2}}}},
    ],
    ids=["frozen statistics", "no normalisation", "two frames a clip"],
)
def test_single_clips_are_refused_only_where_normalisation_cannot_take_them(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    spec = make_job(tmp_path, **change, **{"limits": {"budget": "64MiB"}})
    preflight(spec, Stores((f"file://{tmp_path}",)))


def test_a_registered_feature_is_mirrored_only_if_it_says_what_it_becomes(tmp_path: Path) -> None:
    """Its code is in another image; the declaration is all that is known of it."""
    stores = Stores((f"file://{tmp_path}",))

    def found(layout: FeatureLayout, channels: int = 2, axes: int = 4, **augment: Any) -> Preflight:
        shape = ("T", "H", "W", channels)[4 - axes :]
        declared = {"depth": DeclaredFeature("depth", 1, DeclaredOutput(shape=shape), layout)}
        settings = trainer(augment={"crop": 16} | augment) | {"streams": {"rgb": {"feature": "depth"}}}
        return preflight(make_job(tmp_path, **settings), stores, declared=Declared(declared))

    def refusal(*given: Any, **augment: Any) -> list[Refusal]:
        with pytest.raises(ConfigError) as error:
            found(*given, **augment)
        return refusals(error.value)

    assert refusal(FeatureLayout()) == [("trainers.one.augment.flip", "conflict")]
    assert refusal(FeatureLayout(), flip=False, evaluation_crops=10) == [
        ("trainers.one.augment.evaluation_crops", "conflict")
    ]
    assert found(FeatureLayout(), flip=False).layouts == {"rgb": FeatureLayout()}
    assert found(FeatureLayout(mirrored="plain")).layouts == {"rgb": FeatureLayout(mirrored="plain")}
    no_picture: list[Refusal] = [("trainers.one.stream", "conflict")]
    assert refusal(FeatureLayout(values="descriptor"), flip=False) == no_picture
    assert refusal(FeatureLayout(), axes=3, flip=False) == no_picture
    wrong_layout: list[Refusal] = [("streams.rgb.feature", "conflict")]
    assert refusal(FeatureLayout(mirrored="horizontal_motion"), channels=3) == wrong_layout
    assert refusal(FeatureLayout(values="colours", mirrored="plain"), channels=4) == wrong_layout


def test_trainers_that_would_be_the_same_are_warned_of(tmp_path: Path) -> None:
    """The seed of a training is that of the job unless it has one of its own; its name does not count."""
    own = {"stream": "rgb", "batch_size": 2, "augment": {"crop": 16}}
    stores = Stores((f"file://{tmp_path}",))

    def warnings(**second: Any) -> str:
        trainers = {"one": own, "two": own | second}
        spec = make_job(tmp_path, streams={"rgb": {}}, trainers=trainers, limits={"budget": "1MiB"})
        return " ".join(preflight(spec, stores).warnings)

    assert "trainers one and two do not differ in anything that matters" in warnings(threads=2)
    assert "trainers one and two do not differ in anything that matters" in warnings(checkpoint={"bits": 8})
    assert not warnings(seed=1)
    assert not warnings(seed=1, checkpoint={"bits": 8})
    rounded = warnings(seed=1, checkpoint={"bits": 8, "scope": "global"})
    assert "trainers.two.checkpoint.scope: global uses one range" in rounded
    assert not warnings(optimizer={"lr": 0.1})
