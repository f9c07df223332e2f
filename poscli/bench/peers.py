"""The same model in another library, timed in the same turns.

Layers, widths, heads, vocabulary, RMSNorm before each block, SwiGLU and no biases where the library lets one. Both
train with poscli's optimizer (Muon for the matrices of the layers, AdamW for the rest), so that a step differs by the
library's forward and backward passes alone; those are timed by themselves as well. Under bfloat16 the library runs in
torch's autocast, as its users would.
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

from poscli.bench.measure import Work
from poscli.bench.memory import Needs
from poscli.bench.work import synthetic_tokens
from poscli.config import Recipe, RunConfig
from poscli.data import VOCAB
from poscli.errors import UsageError, near
from poscli.muon import Muon

PEERS = {"x-transformers": "x_transformers"}  # name for pip -> module
FORWARD_BACKWARD = "forward+backward"


@dataclass(frozen=True)
class Peer:
    """An encoding in the other library."""

    model: nn.Module
    attention: str  # fused or eager
    differs: str
    needs: Needs

    @property
    def size(self) -> int:
        """Parameters."""
        return sum(p.numel() for p in self.model.parameters())


def check_peer(name: str) -> str:
    """The library with its version; UsageError if it is unknown or not installed."""
    if name not in PEERS:
        raise UsageError(f"there is nothing to compare with named {name!r}: {near(name, PEERS)}")
    if importlib.util.find_spec(PEERS[name]) is None:
        raise UsageError(f"--against {name}: it is not installed; pip install {name}")
    return f"{name} {version(name)}"


def encodings() -> list[str]:
    """Canonical specs of what the other library has too."""
    return list(_table())


def has(encoding: str) -> bool:
    """Is it one of those?"""
    return encoding in _table()


def build(config: RunConfig, device: torch.device) -> Peer:
    """The model of a run's shape and encoding in x-transformers."""
    library = importlib.import_module(PEERS["x-transformers"])
    shape, entry = config.model, _table()[config.encoding]
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
        _Cast(model, config.precision, device),
        attention="fused" if fused else "eager",
        differs=entry.get("differs", ""),
        needs=Needs(at_once=scores, kept=scores / 2),
    )


def forward_backward(model: Callable[[Tensor], Tensor], parameters: list[nn.Parameter], tokens: Tensor) -> Work:
    """Loss and gradients of a batch `[B, T + 1]`, for either library."""

    def work() -> None:
        for parameter in parameters:
            parameter.grad = None
        logits = model(tokens[:, :-1]).float()
        F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten()).backward()

    return work


def batch_of(config: RunConfig, device: torch.device) -> Tensor:
    """A training batch `[B, T + 1]`."""
    return synthetic_tokens(config.batch, config.length + 1).to(device)


class PeerStep:
    """Training steps of the other library's model, in the same order as the trainer's."""

    def __init__(self, model: nn.Module, config: RunConfig, device: torch.device) -> None:
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.tokens, self.clip = batch_of(config, device), config.recipe.clip
        self.gradients = forward_backward(model, self.parameters, self.tokens)
        self.optimizers = _optimizers(model, config.recipe)

    def __call__(self) -> None:
        """Take the next step."""
        self.gradients()
        nn.utils.clip_grad_norm_(self.parameters, self.clip).item()
        for optimizer in self.optimizers:
            optimizer.step()


def _optimizers(model: nn.Module, recipe: Recipe) -> tuple[torch.optim.Optimizer, ...]:
    """Muon for the matrices of the layers, AdamW for everything else, as poscli divides them."""
    used = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = {name for name, p in used if p.ndim == 2 and ".layers." in name and name.endswith(".weight")}
    muon = Muon([p for name, p in used if name in matrices], lr=recipe.matrix_lr, momentum=recipe.momentum)
    rest = [p for name, p in used if name not in matrices]
    return muon, torch.optim.AdamW(rest, lr=recipe.head_lr, betas=(0.9, recipe.beta2), weight_decay=0.0)


class _Cast(nn.Module):
    """Logits in the precision of the run."""

    def __init__(self, model: nn.Module, precision: str, device: torch.device) -> None:
        super().__init__()
        self.model, self.device, self.dtype = model, device.type, getattr(torch, precision)

    def forward(self, tokens_BT: Tensor) -> Tensor:
        lower = self.dtype != torch.float32
        with torch.autocast(self.device, self.dtype) if lower else contextlib.nullcontext():
            return self.model(tokens_BT)


@cache
def _table() -> dict[str, dict[str, Any]]:
    return tomllib.loads((Path(__file__).parent / "x_transformers.toml").read_text(encoding="utf-8"))


def _filled(arguments: dict[str, Any], numbers: dict[str, int]) -> dict[str, Any]:
    """Arguments with the numbers that letters stand for."""
    return {name: numbers.get(value, value) if isinstance(value, str) else value for name, value in arguments.items()}
