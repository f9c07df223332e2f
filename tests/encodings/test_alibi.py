"""ALiBi's slopes in every variant that checkpoints have, and on trained models with other slopes."""

from __future__ import annotations

import math

import pytest
import torch
from oracles import libraries as lib
from torch import Tensor
from toys import LENGTH, draw, make, model, perturbed, rounding, shape, tokens

from poscli.attention import ENGINES, attend
from poscli.encodings.alibi import slopes
from poscli.equation import Positions
from poscli.evaluation.posthoc import posthoc_spec, with_encoding

FLOAT32, BFLOAT16 = 2**-24, 2**-8  # the largest relative error of rounding to the nearest number


@pytest.mark.parametrize("heads", [1, 2, 3, 6, 8, 12, 16, 32, 40, 71, 112, 128])
def test_bloom_mpt_and_falcon_have_the_slopes_of_the_authors(heads: int) -> None:
    """Of any number of heads, in one order. A power of a rounded base multiplies its error by the exponent <= H."""
    ours = torch.tensor(slopes(heads), dtype=torch.float64)
    two = torch.ones(1, 2)
    mpt = -lib.mpt.build_mpt_alibi_tensor(heads, 2)[:, 0, 0]
    bloom, falcon = (each.build_alibi_tensor(two, heads, torch.float32)[:, 0, 1] for each in (lib.bloom, lib.falcon))
    for theirs, unit in ((mpt, FLOAT32), (bloom, FLOAT32), (falcon, BFLOAT16)):
        assert float((theirs.double() / ours - 1).abs().max()) <= (heads + 4) * FLOAT32 + unit


@pytest.mark.parametrize(("heads", "most"), [(4, 3.0), (6, 3.0), (12, 16.0)])
def test_the_largest_exponent_is_that_of_mpt(heads: int, most: float) -> None:
    theirs = -lib.mpt.build_mpt_alibi_tensor(heads, 2, alibi_bias_max=most)[:, 0, 0].double()
    bias = make(f"alibi(most={most})", shape(heads=heads, width=8 * heads)).distance_bias(torch.ones(1))
    torch.testing.assert_close(-bias[:, 0].double(), theirs, rtol=(most + 4) * FLOAT32, atol=0)


def falcon_attention(heads: int, x: Tensor, mask: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The output `[B, T, W]` of Falcon's attention before its last projection, and its q, k and v `[B, H, T, D]`."""
    width, tokens = x.shape[-1], x.shape[1]
    torch.manual_seed(0)
    config = lib.transformers.FalconConfig(hidden_size=width, num_attention_heads=heads, alibi=True, multi_query=False)
    config._attn_implementation = "eager"
    layer = lib.falcon.FalconAttention(config, layer_idx=0).eval()
    layer.dense.weight.data = torch.eye(width)
    alibi = lib.falcon.build_alibi_tensor(mask, heads, torch.float32)
    hidden = torch.full((tokens, tokens), torch.finfo(torch.float32).min).triu(1)[None, None]
    with torch.no_grad():
        qkv = layer._split_heads(layer.query_key_value(x))
        return layer(x, alibi=alibi, attention_mask=hidden)[0], tuple(each.transpose(1, 2) for each in qkv)


@pytest.mark.parametrize(("heads", "tokens", "rounded"), [(8, 200, False), (6, 256, False), (12, 40, True)])
def test_falcon_subtracts_the_penalty_before_the_division(heads: int, tokens: int, rounded: bool) -> None:
    """Falcon multiplies in bfloat16: slopes, positions above 256 and their products are rounded.

    The slopes of 6 and of 8 heads are powers of two, so up to 256 tokens nothing is rounded. Otherwise a penalty
    m_h j / sqrt(D) is off by at most three roundings of itself. Where scores are off by e, weights are off by a factor
    of at most exp(2e), and the output by exp(2e) - 1 times the largest value. Float32 adds to e 2^-24 (D + 4) times the
    largest score.
    """
    width, steep = 8, max(slopes(heads))
    x = draw(1, tokens, heads * width)
    theirs, (q, k, v) = falcon_attention(heads, x, torch.ones(1, tokens, dtype=torch.long))
    encoding = make("alibi(before_scale=true)", shape(heads=heads, width=heads * width))
    at = Positions(pos=torch.arange(tokens), step=1.0)
    ours = attend(ENGINES["reference"], encoding, q, k, v, at, None).transpose(1, 2).flatten(2)
    largest = steep * tokens / math.sqrt(width)
    off = (3 * BFLOAT16 * largest if rounded else 0) + FLOAT32 * (width + 4) * (largest + float((q @ k.mT).abs().max()))
    error = (theirs - ours).abs().max()
    assert error <= math.expm1(2 * off) * v.abs().max()
    assert (error > 1e-5) == rounded


@torch.no_grad()
@pytest.mark.parametrize("trained", ["alibi", "alibi(trainable=true)", "alibi(most=4)"])
def test_a_quarter_of_the_slopes_is_interpolation_by_4(trained: str) -> None:
    """m_h (i - j) / 4, whichever is divided; slopes that were trained, too."""
    made, text = perturbed(model(trained)), tokens(2, 3 * LENGTH)
    scaled, squeezed = (
        with_encoding(made, posthoc_spec(trained, target, shape()), trained)(text)
        for target in ("alibi(scale=0.25)", "interpolated(4)")
    )
    limit = rounding(made, text)
    torch.testing.assert_close(scaled, squeezed, rtol=0, atol=limit)
    assert not torch.allclose(scaled, made(text), rtol=0, atol=100 * limit)
