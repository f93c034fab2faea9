"""A network and a loss of another package, by name or by path: from a job to predictions, and what is wrong with them
in words."""

from __future__ import annotations

import json
import sys
import textwrap
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from typer.testing import CliRunner

from essp.api.models import load_model
from essp.cli.main import app
from essp.embedded.composition import Embedded
from essp_common.errors import ConfigError, EsspError
from essp_common.job.registered import known_loss, known_model
from essp_common.job.spec import JobSpec
from essp_common.job.status import JobState
from essp_common.job.trainer_spec import TrainerSpec
from essp_common.runtime.config import Settings
from essp_common.wiring import Stores
from essp_engine.learning.losses import loss
from essp_engine.learning.models import Classifier
from essp_engine.learning.networks import network
from essp_engine.preflight.preflight import preflight
from essp_engine.registrations import Declared
from tests.flow.conftest import MakeJob
from tests.harness.embedded_jobs import complete, finish
from tests.harness.journeys import weights_of

pytestmark = pytest.mark.lane("promises")

STORES = Stores(("file:///",))
NETS = """
import torch
from torch import nn
from torch.nn import functional

import essp


def make():
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=4), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 2)
    )


def focal(logits, target):
    chance = functional.softmax(logits, dim=1).gather(1, target[:, None])[:, 0]
    return -((1 - chance) ** 2) * torch.log(chance)


def mean(logits, target):
    return functional.cross_entropy(logits, target)


def broken():
    raise RuntimeError("no such layer")


TINY = essp.Network(make, stem="0", head="4")
HEADLESS = essp.Network(make, stem="0", head="9")
BROKEN = essp.Network(broken, stem="0", head="4")
"""
REGISTERED = """
[essp.models]
tiny = acme_nets:TINY
headless = acme_nets:HEADLESS
broken = acme_nets:BROKEN
function = acme_nets:make
missing = acme_nets:ABSENT

[essp.losses]
focal = acme_nets:focal
mean = acme_nets:mean
number = acme_nets:REGISTERED
"""


@pytest.fixture(autouse=True)
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """It is installed, and nothing of it stays imported."""
    site = tmp_path / "site"
    information = site / "acme_nets-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: acme_nets\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text(REGISTERED)
    (site / "acme_nets.py").write_text(textwrap.dedent(NETS) + "\nREGISTERED = 1\n")
    monkeypatch.syspath_prepend(str(site))
    yield site
    sys.modules.pop("acme_nets", None)


def using(spec: JobSpec, **changes: Any) -> JobSpec:
    """The same job, all of whose trainers have these values."""
    trainers = {
        name: TrainerSpec.model_validate(trainer.model_dump() | changes) for name, trainer in spec.trainers.items()
    }
    return spec.model_copy(update={"trainers": trainers})


def test_they_train_in_a_job_and_its_model_predicts(make_job: MakeJob, videos: Path, tmp_path: Path) -> None:
    """From weights in a file, with a checksum that stays known."""
    file = tmp_path / "tiny.pt"
    layers = (nn.Conv2d(3, 16, 5), nn.ReLU(), nn.ReLU(), nn.ReLU(), nn.Linear(16, 5))
    wrapped = {f"module.{name}": tensor for name, tensor in nn.Sequential(*layers).state_dict().items()}
    torch.save({"epoch": 7, "state_dict": wrapped}, file)
    spec = using(make_job(epochs=1), model="tiny", loss="focal", weights=file.as_uri())
    with Embedded(spec, Settings()) as job:
        complete(job)
    shown = CliRunner().invoke(app, ["checkpoint", "show", spec.output, "--trainer", "flow", "--json"])
    origin = {"uri": file.as_uri(), "sha256": sha256(file.read_bytes()).hexdigest()}
    assert json.loads(shown.stdout)["origin"] == origin
    network = load_model(spec.output).streams["flow"].module
    assert isinstance(network, Classifier)
    weights = network.backbone.state_dict()
    assert (tuple(weights["0.weight"].shape), tuple(weights["4.1.weight"].shape)) == ((16, 6, 5, 5), (2, 16))
    done = CliRunner().invoke(app, ["predict", str(videos / "test"), "--model", spec.output, "--json"])
    assert done.exit_code == 0, done.output
    assert len(json.loads(done.stdout)["videos"]) == 4


def test_by_path_they_are_the_same_and_only_who_allows_their_package_trains_and_predicts(
    make_job: MakeJob, videos: Path
) -> None:
    by_name = using(make_job("by-name", epochs=1), model="tiny", loss="focal")
    by_path = using(make_job("by-path", epochs=1), model="acme_nets:TINY", loss="acme_nets:focal")
    for spec, code in ((by_name, ()), (by_path, ("acme_nets",))):
        with Embedded(spec, Settings(code=code)) as job:
            complete(job)
    assert weights_of(STORES, by_path.output) == weights_of(STORES, by_name.output)
    predict = ["predict", str(videos / "test"), "--model", by_path.output, "--json"]
    done = CliRunner().invoke(app, predict, env={"ESSP_CODE": '["acme_nets"]'})
    assert done.exit_code == 0, done.output
    assert {found["error"] for found in json.loads(done.stdout)["videos"]} == {None}
    with pytest.raises(
        EsspError, match=r"network of trainer (rgb|flow): model 'acme_nets:TINY' .*ESSP_CODE allows none"
    ):
        CliRunner().invoke(app, predict, catch_exceptions=False)
    with pytest.raises(ConfigError, match=r"model 'acme_nets:TINY' is code of a package that is not allowed here"):
        load_model(by_path.output)


@pytest.mark.parametrize("code", [(), ("acme",), ("acme_nets.more",), ("acme_nets_too", "essp")])
def test_a_path_into_no_package_that_is_allowed_is_refused_and_nothing_of_it_imported(
    make_job: MakeJob, code: tuple[str, ...]
) -> None:
    allows = f"ESSP_CODE allows {', '.join(code)} alone" if code else "ESSP_CODE allows none"
    for field, path in (("model", "acme_nets:TINY"), ("loss", "acme_nets:focal")):
        with pytest.raises(
            ConfigError, match=rf"trainers\.rgb\.{field}: {field} '{path}' is code .* {allows}\..*register"
        ):
            preflight(using(make_job(), **{field: path}), STORES, declared=Declared(code=code))
    with pytest.raises(ConfigError, match=allows):
        network("acme_nets:TINY", code)
    with pytest.raises(ConfigError, match=allows):
        loss("acme_nets:focal", code=code)
    assert "acme_nets" not in sys.modules


def test_the_master_imports_no_code_of_a_path(make_job: MakeJob) -> None:
    spec = using(make_job(), model="acme_nets:TINY", loss="acme_nets:focal")
    assert preflight(spec, STORES, declared=Declared(code=("acme_nets",))).spec.trainers == spec.trainers
    assert "acme_nets" not in sys.modules


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (
            "acme_nets:ABSENT",
            r"model 'acme_nets:ABSENT' cannot be loaded: AttributeError.*installed, or be on PYTHONPATH",
        ),
        ("acme_nets.more:TINY", r"cannot be loaded: ModuleNotFoundError"),
        ("acme_nets:make", r"lacks make, stem, head; see docs/networks\.md"),
    ],
)
def test_a_path_that_leads_to_no_network_is_named(path: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        network(path, ("acme_nets",))


@pytest.mark.parametrize(
    "path",
    ["acme_nets.TINY", "acme_nets:", ":TINY", "acme nets:TINY", "acme_nets:TINY.make", "a:b:c", "os:x()", "a/b:c"],
)
def test_what_is_neither_a_name_nor_a_path_is_refused(path: str) -> None:
    for field in ("model", "loss"):
        with pytest.raises(ValueError, match=r"is not a path; write package\.module:NAME"):
            TrainerSpec.model_validate({"stream": "rgb", field: path})


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": "tinyy"}, r"trainers\.rgb\.model: no model 'tinyy'; .*did you mean tiny\?.*essp\.models"),
        ({"loss": "foca"}, r"trainers\.rgb\.loss: no loss 'foca'; .*did you mean focal\?.*essp\.losses"),
    ],
)
def test_a_job_that_names_none_is_refused_before_it_begins(
    make_job: MakeJob, changes: dict[str, str], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        preflight(using(make_job(), **changes), STORES)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("function", "lacks make, stem, head; see docs/networks.md"),
        ("missing", "of package 'acme_nets' cannot be loaded .*ABSENT"),
    ],
)
def test_what_is_registered_and_is_no_network_is_named(name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        network(known_model(name))


@pytest.mark.parametrize(
    ("name", "said"),
    [("headless", "cannot replace its first and last layer"), ("broken", "cannot be made: RuntimeError: no such")],
)
def test_a_network_that_cannot_be_made_fails_its_job_by_name(make_job: MakeJob, name: str, said: str) -> None:
    with Embedded(using(make_job(epochs=1), model=name), Settings()) as job:
        finish(job)
        assert job.status().state is JobState.FAILED
        assert f"model {name}: " in job.status().reason
        assert said in job.status().reason


def test_a_loss_gives_one_number_a_clip() -> None:
    logits, target = torch.zeros(3, 2), torch.tensor([0, 1, 1])
    assert loss("focal")(logits, target).item() == pytest.approx(3 * 0.25 * 0.6931, abs=1e-3)
    with pytest.raises(ConfigError, match=r"loss 'mean': gave \(\) for 3 clips, where \(3,\) is due"):
        loss("mean")(logits, target)
    with pytest.raises(ConfigError, match="is not a function"):
        loss("number")


def test_no_package_can_take_the_name_of_one_of_ours(package: Path) -> None:
    text = REGISTERED.replace("tiny =", "small =").replace("focal =", "cross_entropy =")
    (package / "acme_nets-1.0.dist-info" / "entry_points.txt").write_text(text)
    (package / "touched").mkdir()  # as an installation changes the folder, so that metadata are read again
    with pytest.raises(ConfigError, match="a package registers a model 'small', which is the name of one of ESSP"):
        known_model("small")
    with pytest.raises(ConfigError, match="a package registers a loss 'cross_entropy'"):
        known_loss("cross_entropy")


def test_only_cross_entropy_is_smoothed() -> None:
    with pytest.raises(ValueError, match="label_smoothing is for cross_entropy; leave it out, or let focal do it"):
        TrainerSpec(stream="rgb", loss="focal", label_smoothing=0.1)
