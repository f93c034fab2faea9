"""Networks of timm and transformers, against the libraries themselves, with random weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor, nn

from essp_common.artifacts.manifest import ModelDescription
from essp_common.errors import ConfigError
from essp_common.job.network_limits import limits_of
from essp_engine.learning.models import Classifier, build
from essp_engine.learning.networks import network
from tests.harness.refused import refused
from tests.lanes import often
from tests.unit.essp_engine.learning.described_models import description

pytestmark = pytest.mark.lane("promises")

SIDE = 32
_TINY: dict[str, dict[str, Any]] = {
    "timesformer": {"num_frames": 2, "image_size": SIDE},
    "videomae": {"num_frames": 4, "image_size": SIDE},
    "videoprism_vision_model": {
        **{"num_frames": 2, "image_size": 36, "num_spatial_layers": 1, "num_temporal_layers": 1},
    },
    "vivit": {"num_frames": 2, "image_size": SIDE, "pooler_output_size": 32},
    "vjepa2": {
        **{"frames_per_clip": 4, "crop_size": SIDE, "num_pooler_layers": 1, "pred_hidden_size": 12},
        **{"pred_num_attention_heads": 2, "pred_num_hidden_layers": 1, "num_attention_heads": 4, "hidden_size": 48},
    },
}
EVERYDAY = ("videomae", "vjepa2")
"""One that most use, and the one whose configuration and input have other names."""
_ALL = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


def described(name: str, channels: int = 3, frames: int = 1, feature: str = "rgb") -> ModelDescription:
    return description(name, feature, channels).model_copy(update={"frames": frames})


def clips(count: int, frames: int, side: int, channels: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 256, (count, frames, side, side, channels), dtype=torch.uint8, generator=generator)


# --- timm ---


@pytest.mark.parametrize("name", often(["test_vit", "test_convnext", "test_resnet"], 1))
def test_a_network_of_timm_scores_as_timm_does_with_weights_of_its_file(name: str) -> None:
    import timm

    torch.manual_seed(3)
    theirs = timm.create_model(name, pretrained=False, num_classes=1000).eval()
    side = theirs.pretrained_cfg["input_size"][-1]
    ours = build(described(f"timm:{name}"), seed=0, weights=theirs.state_dict()).eval()
    pictures = clips(2, 1, side)
    mean, std = (torch.tensor(theirs.pretrained_cfg[key]).view(-1, 1, 1) for key in ("mean", "std"))
    theirs.reset_classifier(4)
    own_head = _last_layer(ours)
    theirs.get_classifier().load_state_dict(own_head.state_dict())
    with torch.no_grad():
        expected = theirs((pictures[:, 0].permute(0, 3, 1, 2) / 255 - mean) / std)
        assert_allclose(ours(pictures).logits, expected, rtol=0, atol=1e-4)


def test_flow_goes_through_a_network_of_timm() -> None:
    stacks = clips(2, 1, 160, channels=20)
    made = build(described("timm:test_vit", 20, feature="flow"), seed=0)
    assert made(stacks).logits.shape == (2, 4)


def test_the_same_seed_makes_the_same_network_and_the_same_dropout() -> None:
    """Stochastic depth of timm's Swin draws from the generator of the classifier, not from torch's."""
    runs = []
    for _ in range(2):
        made = build(described("timm:swin_tiny_patch4_window7_224"), seed=7).train()
        made.dropout.reseed(5)
        with torch.no_grad():
            runs.append(made(clips(4, 1, 224)).logits)
        torch.rand(10)
    assert torch.equal(*runs)


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("timm:resnet19", "unknown"),
        ("timm:test_vit.nobody", "unknown"),
        ("timm:deit_tiny_distilled_patch16_224", "unsupported"),
        ("hf:videomay", "unknown"),
        ("hf:nobody/nothing", "missing"),
    ],
)
def test_a_network_that_a_library_does_not_have_is_refused(name: str, code: str) -> None:
    with refused("", code):
        network(name)


# --- transformers ---


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Puts files of a repository into a cache of Hugging Face, as if they had been fetched."""
    from huggingface_hub import constants, file_download

    for module in (constants, file_download):
        monkeypatch.setattr(module, "HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))

    def put(name: str, **files: dict[str, Any]) -> str:
        folder = tmp_path / f"models--us--{name}"
        (folder / "refs").mkdir(parents=True)
        (folder / "refs/main").write_text("0" * 40)
        snapshot = folder / "snapshots" / ("0" * 40)
        snapshot.mkdir(parents=True)
        for file, content in files.items():
            (snapshot / f"{file}.json").write_text(json.dumps(content))
        return f"hf:us/{name}"

    return put


def tiny(family: str) -> dict[str, Any]:
    return {"model_type": family, **_ALL, **_TINY[family]}


@pytest.mark.parametrize("family", often(sorted(_TINY, key=EVERYDAY.__contains__, reverse=True), len(EVERYDAY)))
def test_a_video_classifier_scores_as_transformers_does(family: str, repository: Callable[..., str]) -> None:
    from transformers import AutoConfig, AutoModelForVideoClassification

    facts = tiny(family)
    name = repository(family, config=facts, preprocessor_config={"image_mean": [0.1] * 3, "image_std": [0.5] * 3})
    config = AutoConfig.for_model(**facts, num_labels=4)
    torch.manual_seed(3)
    theirs = AutoModelForVideoClassification.from_config(config).eval()
    frames, side = facts.get("num_frames") or facts["frames_per_clip"], facts.get("image_size") or facts["crop_size"]
    ours = build(described(name, frames=frames), seed=0, weights=theirs.state_dict()).eval()
    theirs.classifier.load_state_dict(_last_layer(ours).state_dict())
    seen = clips(2, frames, side)
    pixels = (seen.permute(0, 1, 4, 2, 3) / 255 - 0.1) / 0.5
    with torch.no_grad():
        expected = theirs(**{theirs.main_input_name: pixels}).logits.reshape(2, 4)
        assert_allclose(ours(seen).logits, expected, rtol=0, atol=1e-4)
    assert network(name).clips


@pytest.mark.parametrize("family", ["videomae", "timesformer", "vivit", "vjepa2"])
def test_pictures_are_normalised_as_by_the_processor_of_the_family(family: str) -> None:
    import transformers
    from transformers.models.auto.video_processing_auto import VIDEO_PROCESSOR_MAPPING_NAMES

    entry = network(f"hf:{family}")
    assert entry.side is not None
    processor = getattr(transformers, VIDEO_PROCESSOR_MAPPING_NAMES[family]["torchvision"])()
    video = clips(1, 16, entry.side)[0].permute(0, 3, 1, 2)
    theirs = processor([video], return_tensors="pt", do_resize=False, do_center_crop=False, do_sample_frames=False)
    expected = next(iter(theirs.values()))[0]
    mean, std = (torch.tensor(values).view(-1, 1, 1) for values in (entry.photograph.mean, entry.photograph.std))
    assert_allclose((video - mean) / std, expected, rtol=0, atol=1e-5)


def test_the_limits_of_families_are_those_of_their_networks() -> None:
    for family in _TINY:
        entry, limits = network(f"hf:{family}"), limits_of(f"hf:{family}")
        assert limits.clip_frames is not None
        if entry.frames is not None:
            assert limits.clip_frames == (entry.frames, entry.frames)


def test_another_number_of_frames_is_refused(repository: Callable[..., str]) -> None:
    name = repository("videomae", config=tiny("videomae"))
    with pytest.raises(ConfigError) as error:
        build(described(name, frames=8), seed=0)
    assert error.value.code == "conflict"


def test_a_repository_of_another_kind_is_refused(repository: Callable[..., str]) -> None:
    with refused("", "unsupported"):
        network(repository("bert", config={"model_type": "bert"}))


# --- both ---


def test_an_empty_batch_has_no_scores_and_zero_gradients(repository: Callable[..., str]) -> None:
    """At the end of an epoch a rank may have no clips, and still takes part in the sum of gradients."""
    for name, frames, side in (
        ("timm:swin_tiny_patch4_window7_224", 1, 224),
        (repository("videomae", config=tiny("videomae")), 4, SIDE),
    ):
        made = build(described(name, frames=frames), seed=0).train()
        scores = made(clips(0, frames, side)).logits
        assert scores.shape == (0, 4)
        scores.sum().backward()
        gradients = [parameter.grad for parameter in made.parameters() if parameter.grad is not None]
        assert gradients
        assert not any(gradient.any() for gradient in gradients)


def _last_layer(classifier: Classifier) -> nn.Module:
    head = classifier.head
    return head[-1] if isinstance(head, nn.Sequential) else head
