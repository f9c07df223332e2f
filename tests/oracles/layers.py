"""The whole model in float64, written from the description of its layers, around the attention of joins.py.

x + attention(norm x), then x + mlp(norm x), with RMSNorm and SwiGLU; a memory holds the inputs of each layer.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor

from oracles import Content
from oracles.joins import attention_of, embedded
from oracles.parts import Part, parts_of
from poscli.model.transformer import Model


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return weight * x / torch.sqrt((x**2).mean(-1, keepdim=True) + 1e-6)


def logits(trained: Model, ids: Tensor, joined: Sequence[Part] = (), segment: int | None = None) -> Tensor:
    """Logits `[B, T, V]`; `joined` are further parts in every layer. A memory begins anew with every `segment`."""
    exact = copy.deepcopy(trained).double()
    weights = dict(exact.named_parameters())
    memory: list[Tensor | None] = [None] * len(exact.layers)
    layers = [[*parts_of(encoding), *joined] for encoding in exact.encodings]
    out = []
    for part in ids.split(segment or ids.shape[1], dim=1):
        x = embedded(layers[0], content(weights["embedding"][part], part))
        for n, own in enumerate(layers):
            before, memory[n] = memory[n], remembered(memory[n], x, trained.config.memory)
            x = layer(weights, f"layers.{n}.", own, x, before, trained.config.heads)
        out.append(norm(x, weights["norm.weight"]) @ weights["head.weight"].T)
    return torch.cat(out, dim=1)


def content(x: Tensor, ids: Tensor) -> Content:
    """Content without queries, keys and values, which embeddings do not need."""
    return Content(x, x, x, x, ids, torch.arange(x.shape[1], dtype=torch.float64))


def remembered(before: Tensor | None, x: Tensor, tokens: int) -> Tensor:
    """The last tokens of earlier segments and of this one."""
    whole = x if before is None else torch.cat([before, x], dim=1)
    return whole[:, max(0, whole.shape[1] - tokens) :]


def layer(
    weights: dict[str, Tensor], name: str, parts: Sequence[Part], x: Tensor, before: Tensor | None, heads: int
) -> Tensor:
    """One layer's output `[B, T, W]`; keys and values come from the memory `before` as well."""
    seen = norm(x if before is None else torch.cat([before, x], dim=1), weights[name + "norm_attention.weight"])

    def projected(matrix: str) -> Tensor:
        y = seen @ weights[f"{name}attention.{matrix}.weight"].T
        return y.unflatten(2, (heads, -1)).transpose(1, 2)

    pos = torch.arange(seen.shape[1], dtype=torch.float64)
    o = attention_of(parts, Content(projected("q"), projected("k"), projected("v"), seen, torch.empty(0), pos))
    o = o.transpose(1, 2).flatten(2)[:, seen.shape[1] - x.shape[1] :]
    x = x + o @ weights[name + "attention.o.weight"].T
    y = norm(x, weights[name + "norm_mlp.weight"])
    gate, up = (y @ weights[f"{name}{matrix}.weight"].T for matrix in ("gate", "up"))
    return x + (gate / (1 + torch.exp(-gate)) * up) @ weights[name + "down.weight"].T
