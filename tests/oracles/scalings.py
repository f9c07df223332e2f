"""Oracles of the scaled rotary encodings whose first training was on shorter texts than L, as checkpoints state it."""

from __future__ import annotations

from torch import Tensor

from oracles import Content, oracle
from oracles.rotary import by_pairs, by_parts, linear, ntk, powers, products, scale_of, su, temperature
from poscli.encodings import Encoding

ORIGINAL, FACTOR, ATTENTION = 8, 4, 1.3  # tokens of the first training; s; the factor on cos and sin


@oracle("rope-linear(original=8)")
def interpolation(e: Encoding, c: Content) -> Tensor:
    return products(c, linear(scale_of(c, ORIGINAL)))


@oracle("rope-ntk(original=8)")
def ntk_aware(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(scale_of(c, ORIGINAL)))


@oracle("rope-dynamic(factor=3, original=8)")
def dynamic(e: Encoding, c: Content) -> Tensor:
    return products(c, ntk(3 * scale_of(c, ORIGINAL) - 2))


@oracle("yarn(original=8, beta_slow=0.1)")
def yarn(e: Encoding, c: Content) -> Tensor:
    s = scale_of(c, ORIGINAL)
    return products(c, by_pairs(s, 0.1, 32, ORIGINAL), times=temperature(s))


@oracle("yarn(factor=4, original=8, beta_slow=0.1, truncate=false)")
def yarn_between_pairs(e: Encoding, c: Content) -> Tensor:
    return products(c, by_pairs(FACTOR, 0.1, 32, ORIGINAL, truncate=False), times=temperature(FACTOR))


@oracle("yarn(factor=4, original=8, beta_slow=0.1, ramp=turns, attention=1.3)")
def yarn_by_turns(e: Encoding, c: Content) -> Tensor:
    return products(c, by_parts(FACTOR, 0.1, 32, original=ORIGINAL), times=ATTENTION)


@oracle("llama3(original=8, low=0.1, high=2)")
def llama3(e: Encoding, c: Content) -> Tensor:
    return products(c, by_parts(scale_of(c, ORIGINAL), 0.1, 2, original=ORIGINAL))


@oracle("longrope(original=8, start=ntk)")
def longrope(e: Encoding, c: Content) -> Tensor:
    s = scale_of(c, ORIGINAL)
    return products(c, ntk(s), times=su(s, ORIGINAL))


@oracle("longrope(factor=4, start=pi, attention=1.3, keep_first=3)")
def longrope_with_a_factor(e: Encoding, c: Content) -> Tensor:
    return products(c, linear(FACTOR), times=ATTENTION, keep=3)


@oracle("p-rope(p=0.5, factor=4)")
def p_rope(e: Encoding, c: Content) -> Tensor:
    return products(c, [theta / FACTOR if m < 2 else 0 * theta for m, theta in enumerate(powers())])
