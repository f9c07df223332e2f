"""poscli's model rebuilt in another library: x-transformers.

Layers, widths, heads, vocabulary, RMSNorm before each block and SwiGLU are equal; biases are off where the library
has an option for that. Both models train with poscli's optimizer (Muon for the matrices of the layers, AdamW for the
rest), so that training steps differ only by the forward and backward passes of the libraries. For bfloat16 the library
runs in torch's autocast.
"""

from __future__ import annotations

import contextlib
import importlib.util
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.bench.conditions import Row
from poscli.bench.synthetic import VOCAB, synthetic_tokens
from poscli.bench.timing import Work
from poscli.config.needs import Needs
from poscli.config.run import Recipe, RunConfig
from poscli.system.errors import UsageError, near
from poscli.training.muon import Muon

X_TRANSFORMERS = "x-transformers"
PEERS = {X_TRANSFORMERS: "x_transformers"}  # name for pip -> module
FORWARD_BACKWARD = "forward+backward"  # workload: a training step without its optimizer


@dataclass(frozen=True)
class Peer:
    """The model of one encoding in another library."""

    library: str  # with its version
    model: nn.Module
    attention: str  # fused or eager
    differs: str  # how the library's version of the encoding differs; "" if it does not
    needs: Needs

    @property
    def size(self) -> int:
        """Number of parameters."""
        return sum(p.numel() for p in self.model.parameters())

    def columns(self) -> Row:
        """The columns that describe the model."""
        return {
            "peer": self.library,
            "peer_attention": self.attention,
            "peer_differs": self.differs,
            "peer_parameters": self.size,
        }


def check_peer(name: str) -> str:
    """The name of a library with its version; UsageError if it is unknown or not installed."""
    if name not in PEERS:
        raise UsageError(f"--against {name!r} is no library to compare with: {near(name, PEERS)}")
    if importlib.util.find_spec(PEERS[name]) is None:
        raise UsageError(f"--against {name}: it is not installed; pip install {name}")
    return f"{name} {version(name)}"


def encodings() -> list[str]:
    """Canonical specs of the encodings that x-transformers has too."""
    return list(_constructor_arguments())


def build(config: RunConfig, device: torch.device) -> Peer:
    """The model of a run in x-transformers."""
    library = importlib.import_module(PEERS[X_TRANSFORMERS])
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
    return Peer(
        f"{X_TRANSFORMERS} {version(X_TRANSFORMERS)}",
        _Cast(model, config.precision, device),
        attention="fused" if fused else "eager",
        differs=entry.get("differs", ""),
        needs=Needs(at_once=scores, kept=scores / 2),
    )


def forward_backward(model: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], tokens: Tensor) -> Work:
    """Loss and gradients of a batch `[B, T + 1]`, for a model of either library."""

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
    """Calling it takes the next training step of the other library's model.

    The order is that of poscli's trainer: gradients, clipping, optimizer.
    """

    def __init__(self, model: nn.Module, config: RunConfig, device: torch.device) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.tokens, self.clip = batch_of(config, device), config.recipe.clip
        self.gradients = forward_backward(model, self.parameters, self.tokens)
        self.optimizers = _optimizers(model, config.recipe)

    def __call__(self) -> None:
        self.gradients()
        nn.utils.clip_grad_norm_(self.parameters, self.clip).item()
        for optimizer in self.optimizers:
            optimizer.step()


def _optimizers(model: nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the layers, AdamW for everything else, as in poscli's own optimizer."""
    used = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = {name for name, p in used if p.ndim == 2 and ".layers." in name and name.endswith(".weight")}
    muon = Muon([p for name, p in used if name in matrices], lr=recipe.matrix_lr, momentum=recipe.momentum)
    rest = [p for name, p in used if name not in matrices]
    return muon, torch.optim.AdamW(rest, lr=recipe.head_lr, betas=(0.9, recipe.beta2), weight_decay=0.0)


class _Cast(nn.Module):
    """The model in the precision of the run."""

    def __init__(self, model: nn.Module, precision: str, device: torch.device) -> None:
        super().__init__()
        self.model, self.device, self.dtype = model, device.type, getattr(torch, precision)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        lower = self.dtype != torch.float32
        with torch.autocast(self.device, self.dtype) if lower else contextlib.nullcontext():
            return self.model(tokens_BT)


@cache
def _constructor_arguments() -> dict[str, dict[str, Any]]:
    """The content of x_transformers.toml, by encoding."""
    return tomllib.loads((Path(__file__).parent / "x_transformers.toml").read_text(encoding="utf-8"))


def _filled(arguments: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """Arguments with the letters D and L replaced by their numbers."""
    return {name: numbers.get(value, value) if isinstance(value, str) else value for name, value in arguments.items()}
