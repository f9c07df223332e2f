"""Attention of a few tokens anywhere in a text, and the longest text in which it is finite.

Everything is computed by the reference on random input. Tokens at chosen positions stand for a text of any length, so
the last tokens of a million cost no more than those of a hundred.
"""

from __future__ import annotations

import time

import torch
from torch import Tensor

from poscli.attention import ENGINES, attend
from poscli.equation import Encoding, Positions, Unsupported
from poscli.verify.noise import draw_inputs, draw_tokens

REFERENCE = ENGINES["reference"]
SHORTEST_TRIED, LONGEST_TRIED = 16, 2**20  # tokens
SECONDS_OF_SEARCH = 0.5  # after which the search tries no longer input


@torch.no_grad()
def attend_at(encoding: Encoding, given: dict[str, Tensor], pos: Tensor) -> Tensor:
    """Attention output `[B, H, T, D]` for q, k, v and x at positions `[S]` of any spacing."""
    features = encoding.features(given["x"])
    at = Positions(pos=pos, step=None)
    return attend(REFERENCE, encoding, given["q"], given["k"], given["v"], at, features)


@torch.no_grad()
def embedded(encoding: Encoding, given: dict[str, Tensor], pos: Tensor, ids_BT: Tensor) -> dict[str, Tensor]:
    """The inputs, with q, k and v replaced by the embedded x if the encoding acts on the embedding."""
    if "embed" not in encoding.blanks:
        return given
    heads = encoding.embed(given["x"], pos, ids_BT).unflatten(2, (encoding.shape.heads, -1)).transpose(1, 2)
    return given | {"q": heads, "k": heads, "v": heads}


def longest_finite(encoding: Encoding, dtype: torch.dtype, seed: int = 0) -> tuple[int, bool]:
    """The longest input in tokens whose attention is finite in a dtype, and whether a longer one is known to fail.

    Found by doubling and bisection. The search ends early, without a known failure, at 2**20 tokens or when its time is
    over. An input that the encoding refuses counts as a failure.
    """
    good, bad, start = SHORTEST_TRIED, 2 * SHORTEST_TRIED, time.monotonic()
    while bad <= LONGEST_TRIED and finite_at(encoding, dtype, bad, seed):
        good, bad = bad, 2 * bad
        if time.monotonic() - start > SECONDS_OF_SEARCH:
            return good, False
    if bad > LONGEST_TRIED:
        return good, False
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if finite_at(encoding, dtype, middle, seed) else (good, middle)
    return good, True


@torch.no_grad()
def finite_at(encoding: Encoding, dtype: torch.dtype, tokens: int, seed: int = 0) -> bool:
    """Whether tokens at the start, middle and end of a text of `tokens` tokens get finite attention in a dtype."""
    try:
        return _finite(encoding, dtype, tokens, seed)
    except Unsupported:
        return False


def _finite(encoding: Encoding, dtype: torch.dtype, tokens: int, seed: int) -> bool:
    index = torch.tensor([0, 1, tokens // 2, tokens - 2, tokens - 1])
    given = draw_inputs(encoding.shape, len(index), len(index), dtype, seed=seed)
    pos = encoding.locate(tokens, torch.device("cpu")).pos[index]
    embedded_BTW = encoding.embed(given["x"], pos, draw_tokens(encoding.shape.vocab, 2, len(index), seed))
    bounded = encoding.temperature(torch.tensor([tokens])).isfinite() if "temperature" in encoding.blanks else True
    return bool(
        torch.as_tensor(bounded).all()
        and embedded_BTW.isfinite().all()
        and attend_at(encoding, given, pos).isfinite().all()
    )
