"""The whole model in float64, written from the description of its layers, around the attention of layer.py.

x + attention(norm x), then x + mlp(norm x), with RMSNorm and SwiGLU.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor

from oracles import Content
from oracles.layer import attention_of, embedded, mixed, parts_of
from poscli.model.transformer import Model


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6)


def logits(trained: Model, ids: Tensor) -> Tensor:
    """Logits `[B, T, V]`."""
    exact = copy.deepcopy(trained).double()
    weights, pos = dict(exact.named_parameters()), torch.arange(ids.shape[1], dtype=torch.float64)
    x = weights["embedding"][ids]
    x = embedded(parts_of(exact.encodings[0]), Content(x, x, x, x, ids, pos))
    for n, encoding in enumerate(exact.encodings):
        layer = {name.removeprefix(f"layers.{n}."): weight for name, weight in weights.items()}
        seen = norm(x, layer["norm_attention.weight"])
        seen = mixed(parts_of(encoding), Content(x, x, x, seen, ids, pos))
        projected = [seen @ layer[f"attention.{matrix}.weight"].T for matrix in "qkv"]
        q, k, v = (y.unflatten(2, (trained.config.heads, -1)).transpose(1, 2) for y in projected)
        o = attention_of(parts_of(encoding), Content(q, k, v, seen, ids, pos)).transpose(1, 2).flatten(2)
        x = x + o @ layer["attention.o.weight"].T
        y = norm(x, layer["norm_mlp.weight"])
        gate, up = (y @ layer[f"{matrix}.weight"].T for matrix in ("gate", "up"))
        x = x + (gate / (1 + torch.exp(-gate)) * up) @ layer["down.weight"].T
    return norm(x, weights["norm.weight"]) @ weights["head.weight"].T
