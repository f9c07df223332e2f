"""The engine `blocks`, eager, for encodings with row blanks or relative values: O(block x length) memory."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from poscli.attention.biases import at_even_distances, biased_blocks, biases, is_narrow, joined
from poscli.attention.place import BlockSizes
from poscli.attention.skew import descending, unskew
from poscli.equation import Encoding, Operands
from poscli.equation.reference import beside_null, relative_values, tempered


def run(encoding: Encoding, x: Operands, sizes: BlockSizes) -> Tensor:
    """Attention output `[B, H, T, E]` of any encoding.

    Evaluations in half precision compute scores in float32, as fused kernels do: bfloat16 rounds scores above 32 to
    quarters.
    """
    dtype = x.v_BHSE.dtype
    if is_narrow(dtype) and not torch.is_grad_enabled():
        x = replace(x, q_BHTD=x.q_BHTD.float(), k_BHSD=x.k_BHSD.float(), v_BHSE=x.v_BHSE.float())
    blocks = biased_blocks(encoding, replace(x, carried={}), sizes, dense=True)
    return joined((_block(encoding, block, bias) for block, bias in blocks), x).to(dtype)


def _block(encoding: Encoding, x: Operands, bias: Tensor) -> Tensor:
    """Attention output `[B, H, T, E]` of one block of queries; in place, as each pass over the scores costs time."""
    if "similarity" in encoding.blanks:
        s_BHTS = tempered(x, encoding.fast_similarity(x) * encoding.scale)
    else:
        s_BHTS = tempered(x, x.q_BHTD * encoding.scale) @ x.k_BHSD.mT
    s_BHTS = s_BHTS.add_(bias.flip(-2))
    if "scores" in encoding.blanks:
        s_BHTS = _hidden(encoding, x, encoding.fast_scores(s_BHTS, x), bias)
    p_BHTS = beside_null(encoding.fast_weights, s_BHTS, x)
    if "reweight" in encoding.blanks:
        p_BHTS = encoding.fast_reweight(p_BHTS, x.distances())
    o_BHTE = p_BHTS @ x.v_BHSE
    if "relative_values" not in encoding.blanks:
        return o_BHTE
    if x.step is None:
        return o_BHTE + relative_values(encoding, x, p_BHTS)
    c_HND = descending(at_even_distances(encoding, "relative_values", x), x.queries, fill=0)
    by_distance = unskew(p_BHTS.flip(2), c_HND.shape[1])
    return o_BHTE + (by_distance @ c_HND.to(p_BHTS.dtype)).flip(2)


def _hidden(encoding: Encoding, x: Operands, s_BHTS: Tensor, bias: Tensor) -> Tensor:
    """Scores with -inf where the bias has it."""
    if torch.is_grad_enabled():  # not in place: autograd may need the result of `scores`
        return s_BHTS.masked_fill(bias.flip(-2) == -math.inf, -math.inf)
    first = 0 if biases(encoding) else x.keys - x.queries  # without a bias only the future is hidden
    s_BHTS[..., first:].masked_fill_(bias[..., first:].flip(-2) == -math.inf, -math.inf)
    return s_BHTS
