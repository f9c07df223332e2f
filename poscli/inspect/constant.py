"""The inputs of attention when all tokens are alike: every query is the same vector, and every key.

What then makes one key's weight differ from another's is the encoding alone.

Shapes: B batch, T queries, S keys, H heads, D head width, W model width.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from poscli.equation import Encoding, Operands, Unsupported
from poscli.equation.blanks import FAST
from poscli.equation.reference import operands, scores, weights

CPU = torch.device("cpu")
# Blanks that take queries and keys of any width.
ANY_WIDTH = {"positions", "embed", "temperature", "distance_bias", "reach", "sinks", "scores", "weights", "reweight"}
TRIED = 24  # tokens on which `position_matters` is measured


class Fast:
    """An encoding whose plain blanks are its fast forms, so that the reference's formula takes seconds on long rows."""

    def __init__(self, encoding: Encoding) -> None:
        self._encoding = encoding

    def __getattr__(self, name: str) -> object:
        return getattr(self._encoding, f"fast_{name}" if name in FAST else name)


def constant_operands(
    encoding: Encoding, keys: int, queries: int = 1, *, token: Tensor | None = None, columns: int | None = None
) -> Operands:
    """The inputs of one attention call in which all tokens are alike, in float64; the queries are the last ones.

    `token` is the vector `[W]` of every token, all ones unless given. Its slice of D channels is the query and the key
    of a head. Where the encoding changes the embedding, any head can read any channel; so the query and the key are
    then the whole embedding, scaled so that products are what random projections to D channels give on average, or, if
    the encoding needs heads of D channels, such a random projection, the same for queries and for keys.

    For an encoding of two axes, `columns` is the number of columns of the grid that the tokens fill.
    """
    shape = encoding.shape
    token = torch.ones(shape.width, dtype=torch.float64) if token is None else token
    x_1SW, at = token.expand(1, keys, -1), encoding.locate(keys, CPU, columns)
    if "embed" in encoding.blanks:
        x_1SW = encoding.embed(x_1SW, at.pos, torch.zeros(1, keys, dtype=torch.long))
        x_1HSD = _heads_of_embedding(x_1SW, encoding)
    else:
        x_1HSD = x_1SW.unflatten(2, (shape.heads, -1)).transpose(1, 2)
    features = encoding.features(x_1SW)
    return operands(encoding, x_1HSD[:, :, keys - queries :], x_1HSD, x_1HSD, at, features)


def score_rows(encoding: Encoding, x: Operands) -> Tensor:
    """Scores `[B, H, T, S]` by the formula of the reference, -inf where a key is hidden."""
    return scores(cast(Encoding, Fast(encoding)), x)


def weight_rows(encoding: Encoding, x: Operands) -> Tensor:
    """Attention weights `[B, H, T, S]` by the formula of the reference."""
    fast = cast(Encoding, Fast(encoding))
    return weights(fast, x, scores(fast, x))


@torch.no_grad()
def position_matters(encoding: Encoding) -> bool:
    """Whether any key's weight differs from another's when all tokens are alike."""
    try:
        p_HS = weight_rows(encoding, constant_operands(encoding, min(TRIED, encoding.shape.length)))[0, :, 0]
    except Unsupported:
        return True
    return bool(((p_HS - p_HS[:, :1]).abs() > 1e-12).any())


def _heads_of_embedding(x_1SW: Tensor, encoding: Encoding) -> Tensor:
    """Queries or keys `[1, H, S, W]` or `[1, H, S, D]` that read the whole embedding."""
    shape = encoding.shape
    if encoding.blanks <= ANY_WIDTH:
        return x_1SW[:, None].expand(-1, shape.heads, -1, -1) * (shape.head_width / shape.width) ** 0.5
    return (x_1SW @ _projections(shape.heads, shape.width, shape.head_width))[None]


def _projections(heads: int, width: int, head_width: int) -> Tensor:
    """A random map `[H, W, D]` of each head. Its columns are orthonormal, so the mean square of a channel stays."""
    draw = torch.Generator().manual_seed(0)
    return torch.linalg.qr(torch.randn(heads, width, head_width, generator=draw, dtype=torch.float64)).Q
