"""The engine for most encodings: torch's fused attention with the bias as a view.

Memory is O(heads x length) for a function of the distance and O(block x length) for other biases.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from poscli.attention.biases import BIASES, biased_blocks
from poscli.attention.fused import biased_attention, fused_attention, potential_attention
from poscli.attention.operands import Operands
from poscli.attention.reference import tempered

# Training on CPU: small blocks, each with the keys it sees and a mask, are faster than one causal call. A step of
# `tiny` took 281 ms against 329 at 512 tokens, 387 against 404 at 1024 and 582 against 553 at 2048.
ROWS, LONG = 128, 1024


def sdpa(x: Operands) -> Tensor:
    """Attention output `[B, H, T, E]` of any encoding that leaves whole rows and the values alone."""
    scale, x = x.encoding.scale, replace(x, q_BHTD=tempered(x, x.q_BHTD))
    trained = torch.is_grad_enabled() and x.q_BHTD.device.type == "cpu" and x.queries <= LONG
    if not x.encoding.blanks & BIASES and x.queries in (1, x.keys) and not trained:
        q, k, v = x.q_BHTD, x.k_BHSD, x.v_BHSE
        return fused_attention(q, k, v, is_causal=x.queries > 1, scale=scale)
    if x.encoding.blanks & BIASES == {"potential"} and x.q_BHTD.device.type == "cpu" and x.queries == x.keys <= LONG:
        assert x.features_BHSF is not None
        c_BHS = x.encoding.potential(x.features_BHSF)
        of_keys = (c_BHS[..., :1] - c_BHS)[:, :, None].to(x.q_BHTD.dtype)
        return potential_attention(x.q_BHTD, x.k_BHSD, x.v_BHSE, of_keys, scale)
    blocks = biased_blocks(x, dense=False, most=ROWS if trained else None)
    if torch.is_grad_enabled():
        return torch.cat([_block(block, bias, scale) for block, bias in blocks], dim=2)
    out, start = x.v_BHSE.new_empty(*x.q_BHTD.shape[:3], x.v_BHSE.shape[-1]), 0
    for block, bias in blocks:  # results kept between buffers that grow would leave holes in the heap
        out[:, :, start : start + block.queries] = _block(block, bias, scale)
        start += block.queries
    return out


def _block(x: Operands, bias: Tensor, scale: float) -> Tensor:
    return biased_attention(x.q_BHTD.flip(2), x.k_BHSD, x.v_BHSE, bias, scale).flip(2)
