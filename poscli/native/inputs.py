"""What a call of attention is given beside queries, keys and values.

Shapes: B batch, H heads, T queries, S keys (the queries are the last T of the S tokens), W width of relative vectors,
N = T + S - 1 distances in descending order: query t and key j meet entry T - 1 - t + j.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Term:
    """Numbers that are added to the scores, in one of three forms.

    - One per distance, `[B or 1, H or 1, 1, N]`: `skewed`.
    - One per key, `[B or 1, H or 1, 1, S]`.
    - One per pair, `[B or 1, H or 1, T, S]`, with the queries in reverse order, of any strides.
    """

    x: Tensor
    skewed: bool = False


@dataclass(frozen=True)
class Relative:
    """Vectors by distance, `[H or 1, N, W]`, and what meets them: queries `[B, H, T, W]` or keys `[B, H, S, W]`."""

    vectors: Tensor
    met: Tensor | None = None  # None for the vectors c, which are added to the values


@dataclass(frozen=True)
class Block:
    """Consecutive queries of a call and the keys they see; the last query stands at the last of these keys."""

    queries: slice
    keys: slice
    terms: tuple[Term, ...] = ()
    # int32 [H, blocks of QUERIES queries]: keys before these have no weight and are skipped.
    first_key: Tensor | None = None
    # So many of the first entries are equal in each term and vector by distance: faster without gradient.
    constant: int = 0


@dataclass(frozen=True, kw_only=True)
class Visible:
    """Which keys a query sees: the last `reach`, itself among them (0: all), and always the first `sinks`."""

    reach: int = 0
    sinks: int = 0


EVERY_KEY = Visible()
Vectors = tuple[Relative | None, Relative | None, Relative | None]
NO_VECTORS: Vectors = (None, None, None)
