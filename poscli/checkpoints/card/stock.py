"""What the installed transformers makes of a config.json: its positions in numbers, without the weights.

transformers reads the file and builds the model without memory for weights. Only the modules that compute rotations
are then built with their numbers, fresh for each length of text, because some keep what they computed for the last one.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from poscli.checkpoints.card.layers import FAR, Measured, Turns
from poscli.checkpoints.pretrained import quiet
from poscli.system.errors import UsageError


@dataclass(frozen=True)
class Stock:
    """The reading of the installed transformers."""

    version: str
    layers: tuple[Measured, ...] = ()
    refusal: str = ""  # why it cannot make a model of the file, in which case there are no layers

    @property
    def name(self) -> str:
        return f"transformers {self.version}"

    @property
    def major(self) -> int:
        return int(self.version.split(".")[0])


def stock_reading(folder: Path, length: int) -> Stock:
    """How transformers reads the config.json of a folder; `length` is the trained length.

    UsageError if transformers is not installed.
    """
    try:
        import transformers
    except ImportError as error:
        raise UsageError(
            "poscli card compares with transformers, which is missing: pip install transformers"
        ) from error
    try:
        with quiet():
            return Stock(transformers.__version__, tuple(_layers(folder, length)))
    except Exception as error:  # noqa: BLE001 - whatever a library raises on a configuration is the finding
        said = " ".join(str(error).split()) or "no message"
        return Stock(transformers.__version__, refusal=f"{type(error).__name__}: {said}")


def _layers(folder: Path, length: int) -> Iterator[Measured]:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    known: dict[tuple[str, str], tuple[Turns, Turns]] = {}
    for attention in attentions(model):
        name, layer_type = rotation_of(model, attention)
        if (name, layer_type) not in known:
            module = model.get_submodule(name) if name else None
            known[name, layer_type] = (_turns(module, layer_type, 1), _turns(module, layer_type, FAR * length))
        yield Measured(*known[name, layer_type], window_of(attention))


def attentions(model: Any) -> list[Any]:
    """The attention modules of a stock model, one for each layer, in order."""
    found = [module for module in model.modules() if type(module).__name__.endswith("Attention")]
    return [module for module in found if hasattr(module, "layer_idx")] or found


def rotation_of(model: Any, attention: Any) -> tuple[str, str]:
    """The name of the module that turns a layer's queries and keys, "" for none, and the layer's type if it asks."""
    rotations = {name: module for name, module in model.named_modules() if _rotates(module)}
    if not rotations or getattr(model.config, "alibi", False) or not getattr(attention, "use_rope", True):
        return "", ""
    local = bool(getattr(attention, "is_sliding", False))
    by_locality = {name.endswith("_local"): name for name in rotations}  # Gemma 3 in version 4 has two modules
    name = by_locality.get(local) or next(iter(rotations))
    asks = "layer_type" in inspect.signature(inspect.unwrap(type(rotations[name]).forward)).parameters
    return name, attention.layer_type if asks else ""


def frequencies(module: Any, layer_type: str) -> Turns:
    """The numbers that a module of rotations holds at the moment."""
    prefix = f"{layer_type}_" if layer_type else ""
    speeds, amplitude = getattr(module, f"{prefix}inv_freq"), getattr(module, f"{prefix}attention_scaling")
    return Turns(tuple(speeds.double().tolist()), float(amplitude))


def window_of(attention: Any) -> int | None:
    """The window of a layer, which some classes hold themselves and others look up in the configuration."""
    if hasattr(attention, "sliding_window"):
        window = attention.sliding_window
    else:
        reads = "sliding_window" in inspect.getsource(type(attention))
        window = getattr(attention.config, "sliding_window", None) if reads else None
    return None if window is None else int(window)


def _rotates(module: Any) -> bool:
    return type(module).__name__.endswith("RotaryEmbedding")


def _turns(module: Any, layer_type: str, tokens: int) -> Turns:
    """What a fresh module of this class does in a text of so many tokens."""
    if module is None:
        return Turns(())
    fresh = type(module)(config=module.config)
    fresh(torch.zeros(1), torch.tensor([[tokens - 1]]), *([layer_type] if layer_type else []))
    return frequencies(fresh, layer_type)
