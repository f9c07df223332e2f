"""Putting poscli's attention and positions into a stock model of transformers.

Most model types call a function that is registered under a name, and get their rotations from a module, which is made
to return angles of zero. BLOOM, MPT and Falcon compute attention in their own code, one function per type below; they
also build masks of T x T numbers before the first layer, so that the loop over their layers is replaced as well.

Shapes: B windows, T tokens, H heads, D head width, W model width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from poscli.checkpoints.model import Seats, trunk_of
from poscli.system.errors import UsageError

NAME = "poscli"  # of the attention function registered with transformers
SEATS = "poscli_seats"  # the attribute under which an attention module finds the encodings

Trunk = Callable[[Any, Tensor], Tensor]  # from a model without its head and token ids [B, T] to states [B, T, W]


def install(stock: Any, seats: Seats) -> None:
    """Make a stock model run on the encodings of `seats`; UsageError if its attention cannot be replaced."""
    model_type, trunk = stock.config.model_type, trunk_of(stock)
    if model_type in OWN_ATTENTION:
        attention, run = OWN_ATTENTION[model_type]
        for n, layer in enumerate(_layers(trunk)):
            module = layer.self_attention if hasattr(layer, "self_attention") else layer.attn
            module.forward = partial(attention, module, seats, n)
        trunk.forward = partial(_without_masks, trunk, run)
        return
    _register()
    stock.config._attn_implementation = NAME
    for module in trunk.modules():
        if hasattr(module, "layer_idx") and "Attention" in type(module).__name__:
            setattr(module, SEATS, seats)
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = partial(_unrotated, module.forward)
        if hasattr(module, "_update_causal_mask"):  # OPT in version 4 builds a mask of T x T numbers
            module._update_causal_mask = lambda *_, **__: None
    _replace_table(trunk, seats)


def _register() -> None:
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, _attention)
    AttentionMaskInterface.register(NAME, lambda *_, **__: None)  # attention is causal without a mask


def _attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: Any, **given: Any
) -> tuple[Tensor, None]:
    """The function that model types call in the place of their attention; returns `[B, T, H, D]`."""
    if changed := [name for name in ("softcap", "s_aux") if given.get(name) is not None]:
        raise UsageError(f"{type(module).__name__} changes its scores by {changed[0]}, which poscli does not compute")
    scaling = given.get("scaling")
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    o_BHTD = getattr(module, SEATS).attend(module.layer_idx, query, key, value, scaling)
    return o_BHTD.transpose(1, 2).contiguous(), None


def _unrotated(forward: Callable[..., tuple[Tensor, Tensor]], *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """The cos and sin of angles of zero, in the shape that a rotary module returns."""
    cos, sin = forward(*given, **named)
    return torch.ones_like(cos), torch.zeros_like(sin)


def _replace_table(trunk: Any, seats: Seats) -> None:
    """Let the first encoding's blank `embed` be what GPT-2 and OPT add to the token embeddings."""
    if hasattr(trunk, "wpe"):
        table, width = trunk.wpe, trunk.wpe.embedding_dim
        table.forward = partial(_embedded, table, seats, width)
    decoder = getattr(trunk, "decoder", trunk)
    if hasattr(decoder, "embed_positions"):
        table = decoder.embed_positions
        table.forward = partial(_embedded, table, seats, table.embedding_dim)


def _embedded(table: nn.Embedding, seats: Seats, width: int, *_: Any, **__: Any) -> Tensor:
    """What the encoding adds to every token's embedding, `[1, T, W]`."""
    first = seats.encodings[0]
    pos = seats.positions[id(first)].pos
    nothing = torch.zeros(1, len(pos), width, dtype=table.weight.dtype, device=table.weight.device)
    ids = torch.zeros(1, len(pos), dtype=torch.long, device=table.weight.device)
    return first.embed(nothing, pos, ids) if "embed" in first.blanks else nothing


def table_of(stock: Any) -> Tensor | None:
    """The rows of a learned table of positions, `[L, W]`; None for a model without one."""
    trunk = trunk_of(stock)
    if hasattr(trunk, "wpe"):
        return trunk.wpe.weight
    decoder = getattr(trunk, "decoder", trunk)
    if hasattr(decoder, "embed_positions"):
        table = decoder.embed_positions
        return table.weight[table.offset :]
    return None


def _layers(trunk: Any) -> Any:
    return trunk.blocks if hasattr(trunk, "blocks") else trunk.h


def _without_masks(trunk: Any, run: Trunk, input_ids: Tensor, **_: Any) -> Any:
    from transformers.modeling_outputs import BaseModelOutputWithPast

    states: Any = run(trunk, input_ids)
    return BaseModelOutputWithPast(last_hidden_state=states)


def _bloom(trunk: Any, ids_BT: Tensor) -> Tensor:
    x_BTW = trunk.word_embeddings_layernorm(trunk.word_embeddings(ids_BT))
    for block in trunk.h:
        x_BTW = block(x_BTW, alibi=None, attention_mask=None)[0]
    return trunk.ln_f(x_BTW)


def _bloom_attention(
    module: Any, seats: Seats, layer: int, hidden_states: Tensor, residual: Tensor, *_: Any, **__: Any
) -> tuple[Tensor, None]:
    q, k, v = module._reshape(module.query_key_value(hidden_states))
    o_BHTD = seats.attend(layer, q, k, v, module.inv_norm_factor)
    return module.dense(_merged(o_BHTD)) + residual, None


def _mpt(trunk: Any, ids_BT: Tensor) -> Tensor:
    x_BTW = trunk.wte(ids_BT)
    for block in trunk.blocks:
        x_BTW = block(x_BTW, position_bias=None, attention_mask=None)[0]
    return trunk.norm_f(x_BTW)


def _mpt_attention(module: Any, seats: Seats, layer: int, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    q, k, v = (x.unflatten(2, (module.n_heads, -1)).transpose(1, 2) for x in mixed.chunk(3, dim=2))
    return module.out_proj(_merged(seats.attend(layer, q, k, v, module.softmax_scale))), None


def _falcon(trunk: Any, ids_BT: Tensor) -> Tensor:
    x_BTW = trunk.word_embeddings(ids_BT)
    for block in trunk.h:
        x_BTW = block(x_BTW, alibi=None, attention_mask=None)[0]
    return trunk.ln_f(x_BTW)


def _falcon_attention(module: Any, seats: Seats, layer: int, hidden_states: Tensor, **_: Any) -> tuple[Tensor, None]:
    q, k, v = (x.transpose(1, 2) for x in module._split_heads(module.query_key_value(hidden_states)))
    o_BHTD = seats.attend(layer, q, k, v, 1 / math.sqrt(module.head_dim))
    return module.dense(_merged(o_BHTD)), None


def _merged(o_BHTD: Tensor) -> Tensor:
    return o_BHTD.transpose(1, 2).flatten(2)


OWN_ATTENTION: dict[str, tuple[Callable[..., Any], Trunk]] = {
    "bloom": (_bloom_attention, _bloom),
    "mpt": (_mpt_attention, _mpt),
    "falcon": (_falcon_attention, _falcon),
}
