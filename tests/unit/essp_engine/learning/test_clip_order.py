"""Which networks have clips first wherever they drop something, found without knowing what they compute."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import pytest
import torch
from torch import Tensor, nn

from essp_common.errors import ConfigError
from essp_engine.learning.clip_order import require_clips_first
from essp_engine.learning.models import Classifier, build
from essp_engine.learning.network import Network
from essp_engine.learning.networks import NETWORKS
from essp_engine.learning.randomness import Share
from tests.unit.essp_engine.learning.described_models import clips, description

CHANNELS, TOKENS = 8, 256
DropOut = Callable[[Tensor, nn.Module], Tensor]
"""Of tokens `(B, T, C)`, and dropout, tokens of which some are dropped."""


class Tokens(nn.Module):
    """A network that drops from tokens in a way of its own."""

    def __init__(self, drop: DropOut, batch_first: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS, 4, stride=4)
        self.place = nn.Parameter(torch.zeros(1, TOKENS, CHANNELS))
        self.dropout = nn.Dropout()
        self.block = nn.TransformerEncoderLayer(CHANNELS, 2, 16, dropout=0, batch_first=batch_first)
        self.block.dropout1 = nn.Dropout()
        self.head = nn.Linear(CHANNELS, 2)
        self._drop = drop
        self._batch_first = batch_first

    def forward(self, x: Tensor) -> Tensor:
        tokens = self._drop(self.stem(x).flatten(2).transpose(1, 2) + self.place, self.dropout)
        tokens = self.block(tokens) if self._batch_first else self.block(tokens.transpose(0, 1)).transpose(0, 1)
        found: Tensor = self.head(tokens.mean(dim=1))
        return found


def first(tokens: Tensor, dropout: nn.Module) -> Tensor:
    return cast("Tensor", dropout(tokens))


def rows_of_tokens(tokens: Tensor, dropout: nn.Module) -> Tensor:
    return cast("Tensor", dropout(tokens.flatten(0, 1))).view_as(tokens)


def features(tokens: Tensor, dropout: nn.Module) -> Tensor:
    return tokens * cast("Tensor", dropout(tokens.mean(dim=(1, 2))))[:, None, None]


def tokens_first(tokens: Tensor, dropout: nn.Module) -> Tensor:
    return cast("Tensor", dropout(tokens.transpose(0, 1))).transpose(0, 1)


def tokens_of_all_clips(tokens: Tensor, dropout: nn.Module) -> Tensor:
    flat = tokens.transpose(0, 1).flatten(0, 1)
    return cast("Tensor", dropout(flat)).view(TOKENS, -1, CHANNELS).transpose(0, 1)


def of_no_clip(tokens: Tensor, dropout: nn.Module) -> Tensor:
    return tokens + cast("Tensor", dropout(torch.ones_like(tokens[0])))


def with_neighbours(tokens: Tensor, dropout: nn.Module) -> Tensor:
    return cast("Tensor", dropout(tokens - tokens.mean(dim=0)))


def needs_numbers(tokens: Tensor, dropout: nn.Module) -> Tensor:
    if tokens.isnan().any():
        raise RuntimeError("the input contained non-finite values")
    return cast("Tensor", dropout(tokens))


def network(
    monkeypatch: pytest.MonkeyPatch, drop: DropOut, batch_first: bool = True, dropout: float = 0.5
) -> Classifier:
    entry = Network(lambda: Tokens(drop, batch_first), "stem", "head")
    monkeypatch.setitem(cast("dict[str, Network]", NETWORKS), "small", entry)
    return build(description("small", dropout=dropout), seed=0).train()


@pytest.mark.parametrize("drop", [first, rows_of_tokens, features])
def test_what_has_clips_first_is_divided_and_left_as_it_was(monkeypatch: pytest.MonkeyPatch, drop: DropOut) -> None:
    model = network(monkeypatch, drop)
    model.backbone.get_submodule("block").eval()
    before = {layer: layer.training for layer in model.modules()}
    require_clips_first(model, 64)
    assert {layer: layer.training for layer in model.modules()} == before
    x = clips(4, 3)
    model.dropout.reseed(5, Share(4, (0, 1, 2, 3)))
    whole = model(x).logits
    model.dropout.reseed(5, Share(4, (1, 3)))
    assert torch.allclose(model(x[[1, 3]]).logits, whole[[1, 3]], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("drop", [tokens_first, tokens_of_all_clips, of_no_clip, with_neighbours])
def test_what_has_not_is_refused(monkeypatch: pytest.MonkeyPatch, drop: DropOut) -> None:
    with pytest.raises(ConfigError, match=r"backbone\.dropout of the network drops from .*batch_first=True"):
        require_clips_first(network(monkeypatch, drop), 64)


def test_dropout_within_a_transformer_of_torch_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"block\.dropout1"):
        require_clips_first(network(monkeypatch, first, batch_first=False), 64)


def test_a_network_that_takes_no_nan_is_taken_at_its_word(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    model = network(monkeypatch, needs_numbers)
    require_clips_first(model, 64)
    assert "is not known: the input contained non-finite values" in caplog.text
    assert model.training


def test_what_is_never_dropped_may_have_any_order(monkeypatch: pytest.MonkeyPatch) -> None:
    require_clips_first(network(monkeypatch, tokens_first, dropout=0.0), 64)
