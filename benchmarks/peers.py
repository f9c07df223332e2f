"""Other implementations of a Transformer, in which the model of a run is rebuilt, to be timed beside poscli.

`x-transformers` is a library; x_transformers.toml has the arguments of its constructors for each encoding that it has,
too. `nanogpt-like` is the GPT of plain_gpt.py. A further peer is one class, and an entry of `PEERS`.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import tomllib
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from plain_gpt import GPT, BucketedBias, LearnedPositions, LinearBias, PlainPositions, RotaryPositions
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.bench.timing import Row, Work
from poscli.bench.workloads import synthetic_tokens
from poscli.config.run import RunConfig
from poscli.config.size import Needs
from poscli.data.tokenizers.bytes import VOCAB
from poscli.system.errors import UsageError, near
from poscli.training.optimizer import Muon


@dataclass(frozen=True)
class PeerModel:
    """The model of one encoding in a peer."""

    title: str  # of the peer
    model: nn.Module
    attention: str  # fused or eager
    differs: str  # how the model and its version of the encoding differ from poscli's; "" if they do not
    needs: Needs
    attention_in_training: str = ""  # if it is another one than in evaluation

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def columns(self, training: bool) -> Row:
        """The columns that describe the model, in a training step or in an evaluation."""
        return {
            "peer": self.title,
            "peer_attention": (training and self.attention_in_training) or self.attention,
            "peer_differs": self.differs,
            "peer_parameters": self.size,
        }


class Peer(ABC):
    """Another implementation. `name` is what the command line calls it."""

    name: str

    @property
    def title(self) -> str:
        """The name, with the version if it has one."""
        return self.name

    def check_installed(self) -> None:  # noqa: B027 - what needs no package has nothing to check
        """UsageError if a package is missing."""

    @abstractmethod
    def encodings(self) -> list[str]:
        """Canonical specs of the encodings that the peer has too."""

    @abstractmethod
    def build(self, config: RunConfig, device: torch.device) -> PeerModel:
        """The model of a run, whose encoding is one of `encodings`, on a device."""


class InPrecision(nn.Module):
    """A model in the precision of a run: torch's autocast where that is lower than float32."""

    def __init__(self, model: nn.Module, precision: str, device: torch.device) -> None:
        super().__init__()
        self.model, self.device, self.dtype = model, device.type, getattr(torch, precision)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        lower = self.dtype != torch.float32
        with torch.autocast(self.device, self.dtype) if lower else contextlib.nullcontext():
            return self.model(tokens_BT)


MODULE = "x_transformers"


class XTransformers(Peer):
    """The library x-transformers, in the version that is installed.

    Layers, widths, heads, vocabulary, RMSNorm before each block and SwiGLU are equal to poscli's; biases are off where
    the library has an option for that.
    """

    name = "x-transformers"

    @property
    def title(self) -> str:
        return f"{self.name} {version(self.name)}"

    def check_installed(self) -> None:
        if importlib.util.find_spec(MODULE) is None:
            raise UsageError(f"{self.name} is not installed; pip install {self.name}")

    def encodings(self) -> list[str]:
        return list(_constructor_arguments())

    def build(self, config: RunConfig, device: torch.device) -> PeerModel:
        library = importlib.import_module(MODULE)
        shape, entry = config.model, _constructor_arguments()[config.encoding]
        numbers = {"D": shape.width // shape.heads, "L": config.length}
        fused = entry.get("fused", True)
        layers = library.Decoder(
            dim=shape.width,
            depth=shape.layers,
            heads=shape.heads,
            attn_dim_head=shape.width // shape.heads,
            attn_flash=fused,
            use_rmsnorm=True,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=shape.mlp / shape.width,
            verbose=False,
            **_filled(entry["layers"], numbers),
        )
        wrapper = {"use_abs_pos_emb": False, "max_seq_len": config.length} | _filled(entry.get("wrapper", {}), numbers)
        model = library.TransformerWrapper(num_tokens=VOCAB, attn_layers=layers, **wrapper).to(device)
        scores = entry.get("scores", 0)
        return PeerModel(
            self.title,
            InPrecision(model, config.precision, device),
            attention="fused" if fused else "eager",
            differs=entry.get("differs", ""),
            needs=Needs(at_once=scores, kept=scores / 2),
        )


@cache
def _constructor_arguments() -> dict[str, dict[str, Any]]:
    """The content of x_transformers.toml, by encoding."""
    return tomllib.loads((Path(__file__).parent / "x_transformers.toml").read_text(encoding="utf-8"))


def _filled(arguments: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """Arguments with the letters D and L replaced by their numbers."""
    return {name: numbers.get(value, value) if isinstance(value, str) else value for name, value in arguments.items()}


DIFFERS = "LayerNorm, and GELU with 1.5 times as many hidden units as SwiGLU has"
EAGER_KEPT = 1.25  # matrices [B, H, S, S] that a layer of eager attention keeps for the backward pass, measured on CPU


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
    """The GPT of plain_gpt.py.

    GELU takes two matrices where SwiGLU takes three, so its hidden layer is 1.5 times as wide: both models have equally
    many parameters and matrix operations, but for the position encoding.
    """

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


PEERS: dict[str, Peer] = {peer.name: peer for peer in (XTransformers(), NanoGPTLike())}


def find_peer(name: str) -> Peer:
    """The peer with a name; UsageError if there is none, or if it is not installed."""
    if name not in PEERS:
        raise UsageError(f"{name!r} is nothing to compare with: {near(name, PEERS)}")
    PEERS[name].check_installed()
    return PEERS[name]


def forward_backward(model: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], tokens: Tensor) -> Work:
    """Loss and gradients of a batch `[B, T + 1]`, for poscli's model or a peer's."""

    def work() -> None:
        for parameter in parameters:
            parameter.grad = None
        logits = model(tokens[:, :-1]).float()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()

    return work


def batch_of(config: RunConfig, device: torch.device) -> Tensor:
    """A training batch of a run, `[B, T + 1]`."""
    return synthetic_tokens(config.batch, config.length + 1).to(device)


class PeerStep:
    """Calling it takes the next training step of a peer's model: gradients, clipping, optimizer, as poscli's trainer.

    The optimizer is poscli's, too, Muon for the matrices of the layers and AdamW for the rest, so that steps differ by
    the forward and backward passes of the two implementations alone.
    """

    def __init__(self, model: nn.Module, config: RunConfig, device: torch.device) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.tokens, self.clip = batch_of(config, device), config.recipe.clip
        self.gradients = forward_backward(model, self.parameters, self.tokens)
        recipe, used = config.recipe, [(name, p) for name, p in model.named_parameters() if p.requires_grad]
        matrices = {name for name, p in used if p.ndim == 2 and ".layers." in name and name.endswith(".weight")}
        rest = [p for name, p in used if name not in matrices]
        self.optimizers = (
            Muon([p for name, p in used if name in matrices], lr=recipe.matrix_lr, momentum=recipe.momentum),
            torch.optim.AdamW(rest, lr=recipe.head_lr, betas=(0.9, recipe.beta2), weight_decay=0.0),
        )

    def __call__(self) -> None:
        self.gradients()
        nn.utils.clip_grad_norm_(self.parameters, self.clip).item()
        for optimizer in self.optimizers:
            optimizer.step()
