"""poscli's model rebuilt in another library: x-transformers.

Layers, widths, heads, vocabulary, RMSNorm before each block and SwiGLU are equal; biases are off where the library
has an option for that.
"""

from __future__ import annotations

import importlib.util
import tomllib
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from poscli.bench.peers.peer import InPrecision, Peer, PeerModel
from poscli.bench.synthetic import VOCAB
from poscli.config.needs import Needs
from poscli.config.run import RunConfig
from poscli.system.errors import UsageError

MODULE = "x_transformers"


class XTransformers(Peer):
    """The library x-transformers, in the version that is installed."""

    name = "x-transformers"

    @property
    def title(self) -> str:
        return f"{self.name} {version(self.name)}"

    def check_installed(self) -> None:
        if importlib.util.find_spec(MODULE) is None:
            raise UsageError(f"--against {self.name}: it is not installed; pip install {self.name}")

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
