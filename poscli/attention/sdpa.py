"""The engine `sdpa`, for most encodings: torch's fused attention with the bias as a view.

Memory is O(heads x length) for a distance bias and O(block x length) for other biases.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from poscli.attention.biases import biased_blocks, biases, joined
from poscli.attention.fused import biased_attention, fused_attention, potential_attention
from poscli.attention.place import SINKS_REFUSED, Place, blanks_refused
from poscli.attention.sizes import BlockSizes
from poscli.equation import Encoding, Operands
from poscli.equation.reference import tempered


def refuses(encoding: Encoding, _: Place) -> str:
    """Why torch's fused attention cannot compute an encoding; '' if it can."""
    if reason := blanks_refused(encoding, "sdpa"):
        return reason
    return SINKS_REFUSED if encoding.sinks and encoding.reach else ""


def run(encoding: Encoding, x: Operands, sizes: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of an encoding that is not refused."""
    scale, x = encoding.scale, replace(x, q_BHTD=tempered(x, x.q_BHTD))
    on_cpu, short = x.q_BHTD.device.type == "cpu", x.queries <= sizes.training_tokens
    trained = torch.is_grad_enabled() and on_cpu
    if not biases(encoding) and x.queries in (1, x.keys) and not (trained and short):
        q, k, v = x.q_BHTD, x.k_BHSD, x.v_BHSE
        return fused_attention(q, k, v, is_causal=x.queries > 1, scale=scale)
    # A temperature multiplies the potential of a key differently in every row, so no number per key can hold it.
    one_per_key = biases(encoding) == {"potential"} and x.temperature_HT is None
    if one_per_key and on_cpu and short and x.queries == x.keys:
        assert x.features_BHSF is not None
        c_BHS = encoding.potential(x.features_BHSF)
        of_keys = (c_BHS[..., :1] - c_BHS)[:, :, None].to(x.q_BHTD.dtype)
        return potential_attention(x.q_BHTD, x.k_BHSD, x.v_BHSE, of_keys, scale, sizes)
    blocks = biased_blocks(encoding, x, sizes, dense=False, most=sizes.training_queries if trained else None)
    return joined((_block(block, bias, scale, sizes) for block, bias in blocks), x)


def _block(x: Operands, bias: Tensor, scale: float, sizes: BlockSizes) -> Tensor:
    return biased_attention(x.q_BHTD.flip(2), x.k_BHSD, x.v_BHSE, bias, scale, sizes).flip(2)
