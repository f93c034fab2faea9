"""What ESSP knows of a network: how to make it, where its first and last layers are, and what its input is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from essp_engine.learning.inputs import IMAGENET, SIGNED, Scale


@dataclass(frozen=True, slots=True)
class Network:
    """A network that jobs name, with the paths of its first and last layers, which are replaced by layers for the
    channels of the stream and the classes of the catalog.

    It takes `(B, C, H, W)` float32, normalised, and returns `(B, K)` logits. B may be 0 when it trains on several
    ranks, and must then pass through the same batch normalisations. It may draw random numbers only in dropout layers,
    which are replaced, too, because a resumed training must get the same numbers. An installed package registers a
    network for jobs under the entry points `essp.models` (docs/networks.md):

        TINY = essp.Network(make, stem="0", head="4")

    make: creates it with random weights, for any number of channels and classes.
    stem: path of the first convolution.
    head: path of the last layer: linear, or a convolution with a single position.
    photograph: the normalisation of colours with which the network's public weights were trained.
    signed: the normalisation of signed values; None: it accepts only photographs.
    auxiliary_head: path of the last layer of the auxiliary classifier, if the network has one.
    side: the only input side that it accepts; None: any side that is large enough for its pooling.
    clips: whether it sees the frames of a clip at once, `(B, C, T, H, W)`, instead of one by one, `(B, C, H, W)`.
    frames: the only number of frames that a network of clips sees at once; None: any.
    """

    make: Callable[[], nn.Module]
    stem: str
    head: str
    photograph: Scale = IMAGENET
    signed: Scale | None = SIGNED
    auxiliary_head: str | None = None
    side: int | None = None
    clips: bool = False
    frames: int | None = None
