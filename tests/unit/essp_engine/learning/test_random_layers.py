"""Random numbers of a network belong to the clip and the seed, and to nobody else."""

from __future__ import annotations

import pytest
import torch

from essp_common.errors import ConfigError
from essp_engine.learning.models import build, state_bytes
from essp_engine.learning.randomness import Share, initial_weights
from essp_engine.learning.torchvision_compat import torchvision
from tests.unit.essp_engine.learning.described_models import clips, description, of_clips, own

pytestmark = pytest.mark.slow


def test_stochastic_depth_repeats_with_its_seed_and_is_that_of_the_clip() -> None:
    """In a network with dropped branches, which are rows of the batch; also where a rank holds a part of it."""
    model = build(of_clips("swin3d_t", 2, dropout=0.0), seed=0).train()
    x = clips(3, 3, frames=2, side=32)
    before = torch.random.get_rng_state()
    runs = []
    with torch.no_grad():
        for seed in (5, 5, 6):
            model.dropout.reseed(seed)
            runs.append(model(x).logits)
        model.dropout.reseed(5, Share(3, (1, 2)))
        part = model(x[1:]).logits
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.allclose(part, runs[0][1:], rtol=1e-4, atol=1e-5)
    sources = [layer for layer in model.modules() if type(layer).__name__ == "StochasticDepth"]
    assert not sources


@pytest.mark.parametrize("name", ["mvit_v2_s", "s3d"])
def test_dropout_of_networks_of_clips_is_the_jobs_where_they_have_one(name: str) -> None:
    model = build(of_clips(name, 16, dropout=0.25), seed=0)
    assert [layer.p for layer in model.modules() if type(layer).__name__ == "SeededDropout"] == [0.25]
    assert not [layer for layer in model.modules() if isinstance(layer, torch.nn.Dropout) and layer.p > 0]


def test_dropout_repeats_with_its_seed_and_leaves_the_global_generator_alone() -> None:
    model = build(description("small"), seed=0).train()
    x = clips(4, 3)
    before = torch.random.get_rng_state()
    runs = []
    for seed in (5, 5, 6):
        model.dropout.reseed(seed)
        runs.append([model(x).logits for _ in range(2)])
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])
    assert not torch.equal(runs[0][0], runs[0][1])
    assert not torch.equal(runs[0][0], runs[2][0])


@pytest.mark.parametrize(
    "kind",
    [
        torch.nn.Dropout,
        torch.nn.Dropout1d,
        torch.nn.Dropout2d,
        torch.nn.Dropout3d,
        torch.nn.AlphaDropout,
        torch.nn.FeatureAlphaDropout,
    ],
)
def test_every_kind_of_dropout_repeats_with_its_seed_and_is_that_of_the_clip(
    monkeypatch: pytest.MonkeyPatch, kind: type[torch.nn.Module]
) -> None:
    """Wherever a network has the layer."""
    model = own(monkeypatch, kind(0.5))
    x = clips(4, 3)
    before = torch.random.get_rng_state()
    runs = []
    for seed in (5, 5, 6):
        model.dropout.reseed(seed)
        runs.append(model(x).logits)
    model.dropout.reseed(5, Share(4, (1, 3)))
    part = model(x[[1, 3]]).logits
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(runs[0], runs[1])
    assert not torch.equal(runs[0], runs[2])
    assert torch.allclose(part, runs[0][[1, 3]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("kind", "same"),
    [
        (torch.nn.Dropout2d, (2, 3)),
        (torch.nn.AlphaDropout, ()),
        (torch.nn.FeatureAlphaDropout, (2, 3)),
    ],
)
def test_seeded_layers_give_what_those_of_torch_give(
    monkeypatch: pytest.MonkeyPatch, kind: type[torch.nn.Module], same: tuple[int, ...]
) -> None:
    """The same two values with the same probabilities, for ten standard deviations."""
    layer = own(monkeypatch, kind(0.3)).backbone.get_submodule("layer")
    ones = torch.ones(100, 1000, 2, 2)
    with initial_weights(0):
        theirs, ours = kind(0.3)(ones), layer(ones)
    assert ours.unique().tolist() == pytest.approx(theirs.unique().tolist())
    assert ours.mean().item() == pytest.approx(theirs.mean().item(), abs=0.03)
    if same:
        assert torch.equal(ours, ours[:, :, :1, :1].expand_as(ours))
    assert torch.equal(layer.eval()(ones), ones)
    assert torch.equal(own(monkeypatch, kind(1.0)).backbone.get_submodule("layer")(ones), ones * 0)


@pytest.mark.parametrize(
    ("layer", "said"),
    [
        (torch.nn.MultiheadAttention(8, 2, dropout=0.1), "layer is a MultiheadAttention .* give it dropout=0"),
        (torch.nn.TransformerEncoderLayer(8, 2), "layer.self_attn is a MultiheadAttention"),
        (torch.nn.LSTM(8, 8, 2, dropout=0.1), "layer is a LSTM .* give it dropout=0"),
        (torch.nn.GRU(8, 8, 2, dropout=0.1), "layer is a GRU"),
        (torch.nn.RNN(8, 8, 2, dropout=0.1), "layer is a RNN"),
        (torch.nn.RReLU(), "layer is a RReLU .* use nn.LeakyReLU"),
        (torch.nn.FractionalMaxPool2d(2, output_size=4), "layer is a FractionalMaxPool2d"),
        (torchvision.ops.DropBlock2d(0.1, 3), "layer is a DropBlock2d .* use nn.Dropout2d"),
    ],
)
def test_layers_whose_random_numbers_cannot_be_repeated_are_refused(
    monkeypatch: pytest.MonkeyPatch, layer: torch.nn.Module, said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        own(monkeypatch, layer)


@pytest.mark.parametrize(
    "layer", [torch.nn.MultiheadAttention(8, 2), torch.nn.LSTM(8, 8), torch.nn.RReLU(0.2, 0.2), torch.nn.Dropout(0.0)]
)
def test_layers_that_draw_no_random_number_stay(monkeypatch: pytest.MonkeyPatch, layer: torch.nn.Module) -> None:
    model = own(monkeypatch, layer)
    assert model.backbone.get_submodule("layer") is layer
    assert [each.p for each in model.modules() if type(each).__name__ == "SeededDropout"] == [0.25]


def test_dropout_keeps_the_mean() -> None:
    model = build(description("alexnet", dropout=0.25), seed=0).train()
    [first, _] = [layer for layer in model.modules() if type(layer).__name__ == "SeededDropout"]
    out = first(torch.ones(100_000))
    assert out.unique().tolist() == pytest.approx([0, 1 / 0.75])
    assert out.mean().item() == pytest.approx(1, abs=0.02)  # ten standard deviations
    assert torch.equal(first.eval()(torch.ones(10)), torch.ones(10))


def test_initial_weights_depend_on_the_seed_alone() -> None:
    before = torch.random.get_rng_state()
    one = state_bytes(build(description("small"), seed=3))
    torch.rand(5)
    assert state_bytes(build(description("small"), seed=3)) == one
    assert state_bytes(build(description("small"), seed=4)) != one
    torch.random.set_rng_state(before)
    with initial_weights(3):
        torch.rand(5)
    assert torch.equal(torch.random.get_rng_state(), before)
