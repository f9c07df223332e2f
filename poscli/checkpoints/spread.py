"""Checkpoints that are too large for one GPU: accelerate spreads their layers, and each needs its encoding there."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from poscli.equation import Encoding
from poscli.system.device import places_of_layers
from poscli.system.memory import free_memory

SHARE_OF_WEIGHTS = 0.8  # of a GPU's free memory; the rest is for what layers compute


def placement(folder: Path, dtype: torch.dtype | None, device: torch.device) -> dict[str, Any]:
    """What transformers is told of where the weights in a folder go: nothing if they fit on the device.

    Otherwise accelerate puts whole layers on one GPU after the other, and into main memory where these are too small,
    if `places_of_layers` allows for that.
    """
    first, *others = places_of_layers(device)
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    needed = stored * (2 if dtype is torch.float32 else 1)  # most are stored in half precision
    if not others or needed <= SHARE_OF_WEIGHTS * free_memory(first):
        return {}
    most = {
        place.index if place.type == "cuda" else "cpu": int(SHARE_OF_WEIGHTS * free_memory(place))
        for place in (first, *others)
    }
    return {"device_map": "auto", "max_memory": most}


def devices_of_layers(trunk: Any) -> list[torch.device]:
    """On which device each layer of a stock model without its head computes."""
    layers = next(getattr(trunk, name) for name in ("layers", "h", "blocks") if hasattr(trunk, name))
    first = next(trunk.parameters()).device
    places = (getattr(getattr(layer, "_hf_hook", None), "execution_device", None) for layer in layers)
    return [first if place is None else torch.device(place) for place in places]


def on_devices(encodings: Sequence[Encoding], devices: Sequence[torch.device]) -> tuple[Encoding, ...]:
    """The encodings of layers, with a copy of each on every further device where one of its layers is."""
    copies: dict[tuple[int, torch.device], Encoding] = {}
    placed = []
    for encoding, device in zip(encodings, devices, strict=False):  # before a model has its encodings there are none
        if device != devices[0] and (id(encoding), device) not in copies:
            copies[id(encoding), device] = copy.deepcopy(encoding).to(device)
        placed.append(copies.get((id(encoding), device), encoding))
    return tuple(placed)


def weight_of(module: nn.Module, name: str) -> Tensor:
    """A weight of a module; a copy, if accelerate keeps it elsewhere until the module computes."""
    weight: Tensor = getattr(module, name)
    if not weight.is_meta:
        return weight
    from accelerate.utils import align_module_device

    with align_module_device(module):
        return getattr(module, name).clone()
