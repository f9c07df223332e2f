"""Values inside the engines of attention that no output shows, because a softmax cancels them or a name hid them."""

from __future__ import annotations

import torch
from toys import HEAD_WIDTH, HEADS, WIDTH, draw, make

from poscli.attention import ENGINES
from poscli.attention.fused import biased_attention
from poscli.attention.sizes import BlockSizes
from poscli.attention.tile_inputs import TileInputs
from poscli.equation.operands import Operands
from poscli.equation.reference import operands
from poscli.verify.probe import SpecUnderTest


def operands_of(spec: str, queries: int, keys: int) -> Operands:
    """Random operands of the last queries."""
    encoding = make(spec)
    q, k, v = (draw(2, HEADS, t, HEAD_WIDTH, seed=n) for n, t in enumerate((queries, keys, keys)))
    features = encoding.features(draw(2, keys, WIDTH, seed=3))
    return operands(encoding, q, k, v, encoding.locate(keys, torch.device("cpu")), features)


@torch.no_grad()
def test_the_potential_of_a_key_is_relative_to_the_first_query_of_its_block() -> None:
    """Token 3 + 1 where three tokens are past and the block begins at query 1: larger numbers would lose digits."""
    encoding, x = make("fox"), operands_of("fox", queries=4, keys=7)
    tile = TileInputs.of(encoding, x)
    c = encoding.potential(x.features_BHSF)
    bias = tile.key_bias(slice(1, 3), slice(0, 5))
    assert torch.equal(bias, (c[:, :, 4:5] - c[:, :, :5])[:, :, None].float())
    assert torch.equal(tile.potential_drop(slice(1, 4), slice(3, 4)), (c[:, :, 4:5] - c[:, :, 6:7]).float())


def test_gradients_of_values_are_compared_beside_a_parameter_named_v() -> None:
    subject = SpecUnderTest("transformer-xl", 0)
    (encoding,) = subject.encodings
    found = subject.attention(encoding, ENGINES["reference"], torch.float64, 3, 5)
    assert found["dv"].shape == (2, 4, 5, 8)
    assert found["dencoding.v"].shape == encoding.v.shape


def test_a_learned_bias_takes_the_fused_kernel_of_other_devices_too() -> None:
    """On `meta`, which has shapes and no numbers, and is no CPU."""
    q, bias = torch.empty(2, HEADS, 5, HEAD_WIDTH, device="meta"), torch.empty(1, HEADS, 5, 5, device="meta")
    assert biased_attention(q, q, q, bias.requires_grad_(), 0.5, BlockSizes()).shape == q.shape
