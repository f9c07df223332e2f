"""Every scaling of rope that checkpoints have: cos and sin as transformers' Llama computes them, in float32."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from oracles import configs
from oracles import libraries as lib
from torch import Tensor
from toys import make, shape

from poscli.encodings.longrope import LongRoPE

WIDTH = 64  # numbers per head
LENGTH, ORIGINAL = 1024, 256  # tokens: of the last training and of the first
LENGTHS = (100, ORIGINAL, ORIGINAL + 1, 4 * ORIGINAL)
BASE = 500000.0
BEGUN = {"original_max_position_embeddings": ORIGINAL}
SHORT, LONG = ([1 + slope * m**1.5 for m in range(WIDTH // 2)] for slope in (0.01, 0.2))
LISTS = {"short_factor": SHORT, "long_factor": LONG}
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "factor": 8.0}
# DeepSeek's two numbers of a factor s: (0.1 mscale ln s + 1) / (0.1 mscale_all_dim ln s + 1)
DEEPSEEK = (0.1 * 1.2 * math.log(40) + 1) / (0.1 * 0.7 * math.log(40) + 1)

CASES: list[tuple[str, str, int, dict[str, Any]]] = [  # spec, rope_type, max_position_embeddings, and the other keys
    ("rope()", "default", LENGTH, {}),
    ("rope-linear(factor=4)", "linear", LENGTH, {"factor": 4.0}),
    ("rope-dynamic(original=256)", "dynamic", ORIGINAL, {"factor": 2.0}),
    ("rope-dynamic(factor=5, original=256)", "dynamic", ORIGINAL, {"factor": 5.0}),
    ("yarn(factor=4)", "yarn", LENGTH, {"factor": 4.0}),
    ("yarn(factor=4, original=256)", "yarn", LENGTH, {"factor": 4.0, **BEGUN}),
    ("yarn(factor=4, original=256, truncate=false)", "yarn", LENGTH, {"factor": 4.0, "truncate": False, **BEGUN}),
    (
        "yarn(factor=9, original=256, attention=1.7, beta_fast=20, beta_slow=2)",
        "yarn",
        LENGTH,
        {"factor": 9.0, "attention_factor": 1.7, "beta_fast": 20.0, "beta_slow": 2.0, **BEGUN},
    ),
    (
        f"yarn(factor=40, original=256, attention={DEEPSEEK})",
        "yarn",
        LENGTH,
        {"factor": 40.0, "mscale": 1.2, "mscale_all_dim": 0.7, **BEGUN},
    ),
    ("llama3(factor=8)", "llama3", LENGTH, {**LLAMA3, "original_max_position_embeddings": LENGTH}),
    ("llama3(factor=8, original=256)", "llama3", LENGTH, {**LLAMA3, **BEGUN}),
    ("longrope(factor=4, original=256)", "longrope", LENGTH, {**LISTS, **BEGUN}),
    ("longrope(original=256, attention=1.25)", "longrope", LENGTH, {**LISTS, **BEGUN, "attention_factor": 1.25}),
    ("p-rope(p=0.25)", "proportional", LENGTH, {"partial_rotary_factor": 0.25}),
    ("p-rope(p=0.4, factor=8)", "proportional", LENGTH, {"partial_rotary_factor": 0.4, "factor": 8.0}),
]
SUPPORTED = [case for case in CASES if case[1] in configs.kinds()]  # the fourth version has no `proportional`


def ours(spec: str, count: int) -> Tensor:
    """Cos and sin times the factor on them, `[2, T, pairs]`: what each pair (1, 0) is rotated to."""
    encoding = make(spec.replace(")", f", base={BASE})").replace("(, ", "("), shape(LENGTH, heads=1, width=WIDTH))
    if isinstance(encoding, LongRoPE):
        encoding.use_factors(torch.tensor(SHORT), torch.tensor(LONG))
    x = torch.cat([torch.ones(WIDTH // 2), torch.zeros(WIDTH // 2)]).double().expand(1, 1, count, -1)
    return torch.stack(encoding.query(x, torch.arange(count))[0, 0].chunk(2, dim=-1))


def theirs(kind: str, length: int, keys: dict[str, Any], count: int) -> tuple[Tensor, Tensor]:
    """Cos and sin, `[2, T, pairs]`, and how far they may be off.

    Units of rounding are 2^-24 of a number. The exponent 2m/D is off by a unit, which base^(2m/D) multiplies by at most
    ln base. Powers, quotients, a ramp between two frequencies and the product with the position are at most 12 more
    roundings. So an angle is off by (ln base + 12) units of itself, and cos and sin by that and three units of 1: their
    own rounding, and that of the factor on them.
    """
    embedding = lib.llama.LlamaRotaryEmbedding(configs.llama(kind, WIDTH, length, BASE, **keys))
    found = torch.stack(embedding(torch.zeros(1, 1), torch.arange(count)[None]))[:, 0, :, : WIDTH // 2].double()
    times = found.square().sum(0).sqrt()
    angles = torch.arange(count)[:, None] * embedding.inv_freq.double()
    return found, times * 2**-24 * ((math.log(BASE) + 12) * angles + 3)


@pytest.mark.parametrize("count", LENGTHS)
@pytest.mark.parametrize(("spec", "kind", "length", "keys"), SUPPORTED)
def test_cos_and_sin_are_those_of_transformers(
    spec: str, kind: str, length: int, keys: dict[str, Any], count: int
) -> None:
    """Below, at and above the length of the first training."""
    expected, limit = theirs(kind, length, keys, count)
    error = (ours(spec, count) - expected).abs()
    assert (error <= limit).all(), float((error / limit).max())
