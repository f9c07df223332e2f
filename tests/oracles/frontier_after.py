"""Oracles of ways to read beyond the training length: dynamic groups of positions, and positions drawn in training.

No training step begins in these tests, so positions are those of evaluation; test_properties.py is about the draws.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oracles.layer import Part, part
from oracles.rotary import L, by_pairs, by_parts, powers, scale_of, turned
from oracles.rotary_other import remapped
from poscli.encodings import Encoding


@remapped(
    *("jet-long", "jet-long(near=0)+randomized(40)", "jet-long+randomized(60)", "jet-long(near=15)+randomized(400)"),
    "jet-long(near=4, base=50, layout=interleaved)+randomized(100)",
)
def jet_long(e: Encoding, pos: list[int]) -> Callable[[int, int], int]:
    """The distance of the tokens up to w_0, and of their groups beyond it.

    The size of a group is the smallest for which no group has a number that training had no position for. Random
    positions make groups of several sizes, with near and far keys.
    """
    assert e.spec != "jet-long" or e.near == L / 2
    group = next(g for g in range(1, 1000) if max(pos) // g < L)
    return lambda i, j: i - j if i - j <= e.near else i // group - j // group


@part(
    *("randomized-yarn", "randomized-yarn(max=100, beta_fast=2, beta_slow=0.1)", "randomized-yarn(factor=3)"),
    *("randomized-yarn(max=16, ramp=turns, beta_slow=0.1)", "randomized-yarn(max=24, original=8, beta_slow=0.1)"),
    "randomized-yarn(max=64, ramp=turns, base=50, beta_fast=2, beta_slow=0.1, layout=interleaved)",
)
def randomized_yarn(e: Encoding) -> Part:
    """Yarn whose factor is never below that of the range of training."""

    def turn(x: Tensor, pos: Tensor) -> Tensor:
        least = torch.tensor(e.max / e.original, dtype=torch.float64)
        followed = torch.maximum(scale_of(pos, e.original), least)
        s = followed if e.factor is None else torch.tensor(float(e.factor), dtype=torch.float64)
        parts = by_parts if e.ramp == "turns" else by_pairs
        theta = torch.stack(parts(e, s, e.beta_slow, e.beta_fast))
        assert theta.shape == torch.stack(powers()).shape
        return turned(x, pos[:, None] * theta, e.layout, 0.1 * torch.log(s) + 1)

    return Part(query=turn, key=turn)


@part("random-floats", "rope+random-floats", "alibi+random-floats(span=1)", "sinusoidal+random-floats(span=40)")
def random_floats(e: Encoding) -> Part:
    """(2k - 1) / (2 max(n, L)) for k = 1 .. n, times the range."""

    def positions(pos: Tensor) -> Tensor:
        n = max(L, round(float(pos[-1])) + 1)
        return e.span * (2 * (pos + 1) - 1) / (2 * n)

    return Part(positions=positions)
