"""poscli's model rebuilt in plain PyTorch, as people write a GPT: our own code, so that it needs no other library.

Layers, widths, heads and vocabulary are equal. GELU takes two matrices where SwiGLU takes three, so its hidden layer is
1.5 times as wide: the models have equally many parameters and matrix operations, but for the position encoding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from poscli.bench.peers.peer import InPrecision, Peer, PeerModel
from poscli.bench.peers.plain_positions import (
    BucketedBias,
    LearnedPositions,
    LinearBias,
    PlainPositions,
    RotaryPositions,
)
from poscli.bench.peers.plain_pytorch import GPT
from poscli.bench.synthetic import VOCAB
from poscli.config.needs import Needs
from poscli.config.run import RunConfig

DIFFERS = "LayerNorm, and GELU with 1.5 times as many hidden units as SwiGLU has"
EAGER_KEPT = (
    1.25  # matrices [B, H, S, S] that a layer of eager attention keeps for the backward pass, as measured on CPU
)


@dataclass(frozen=True)
class Written:
    """How people write one encoding in plain PyTorch."""

    positions: type[PlainPositions]
    differs: str = ""
    mask: bool = False  # whether its bias is a mask [1, H, S, S]
    learned_mask: bool = False


ENCODINGS = {
    "none": Written(PlainPositions),
    "learned": Written(LearnedPositions),
    "rope": Written(RotaryPositions, differs="angles in float32"),
    "alibi": Written(LinearBias, mask=True),
    "t5": Written(BucketedBias, mask=True, learned_mask=True),
}


class NanoGPTLike(Peer):
    """The GPT of plain_pytorch.py."""

    name = "nanogpt-like"

    def encodings(self) -> list[str]:
        return list(ENCODINGS)

    def build(self, config: RunConfig, device: torch.device) -> PeerModel:
        shape, written = config.model, ENCODINGS[config.encoding]
        positions = written.positions(config.length, shape.width, shape.heads)
        model = GPT(VOCAB, shape.layers, shape.width, math.ceil(1.5 * shape.mlp), positions).to(device)
        # On CPU, torch's fused attention has no gradient of a mask: torch then computes all scores.
        eager = written.learned_mask and device.type == "cpu"
        return PeerModel(
            self.title,
            InPrecision(model, config.precision, device),
            attention="fused",
            differs="; ".join(filter(None, [DIFFERS, written.differs])),
            needs=Needs(at_once=float(written.mask), kept=EAGER_KEPT if eager else 0.0),
            attention_in_training="eager" if eager else "",
        )
