"""Dilution: does attention spread over more and more keys as the window grows?

For every head, the entropy of its weights over the logarithm of the number of keys it sees: 0 if all weight lies on one
key, 1 if all keys have the same weight, at every length alike. And the weight on keys that lie L or more tokens back,
at distances that no query saw in training.

Weights are computed by the specification (poscli/equation/reference.py), whatever engine the model runs on. Where an
encoding's weights do not sum to 1, or are negative, their absolute values are divided by their sum first.

Shapes: B windows, T queries, S keys, H heads, D head width, W model width.
"""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from poscli.equation import Encoding, Operands, Positions
from poscli.equation.reference import operands, scores, weights
from poscli.model.cache import LayerCache
from poscli.model.transformer import Attention, Model
from poscli.why.sample import Sample, few

WINDOWS = 4  # read unless the caller says otherwise
PAIR_NUMBERS = 2**23  # at a time, of the B H T S D numbers that relative vectors take


@dataclass(frozen=True, eq=False)
class Call:
    """What one layer's attention was called with: its input, the positions, and earlier keys if the model has some."""

    x_BTW: Tensor
    positions: Positions
    cache: LayerCache | None

    def operands(self, attention: Attention) -> Operands:
        """The inputs of the attention equation in this call."""
        cache = None if self.cache is None else replace(self.cache)  # which what follows changes
        q, k, v, features = attention.projected(self.x_BTW, cache)
        if cache is not None:
            k, v, features = cache.extend(k, v, features)
        return operands(attention.encoding, q, k, v, self.positions, features)


def dilution(model: Model, sample: Sample, windows: int = WINDOWS) -> list[dict[str, Any]]:
    """One row per window length (L, 2 L, ..., and the longest), layer and head, from `windows` windows of the sample.

    Numbers are NaN where no scored target counts. Raises Unsupported if the model cannot read a window.
    """
    chosen, _ = few(sample, windows)
    counts = torch.from_numpy(chosen.text.counts(chosen.spans, chosen.scored)).to(chosen.device)
    doublings = (sample.length // sample.train_length).bit_length()
    lengths = [sample.train_length << n for n in range(doublings)]
    rows = []
    for window in dict.fromkeys([*lengths, sample.length]):
        by_layer: list[list[Tensor]] = [[] for _ in model.layers]  # one tensor of statistics per window
        for tokens, counted in zip(chosen.tokens(window), counts, strict=True):
            for n, statistics in enumerate(_of_window(model, tokens[None, :-1], chosen)):
                by_layer[n].append(statistics[:, :, counted[-statistics.shape[2] :]])
        for n, of_layer in enumerate(by_layer):
            for head, (entropy, far) in enumerate(torch.cat(of_layer, dim=2).nanmean(dim=2).T.tolist()):
                rows.append({"window": window, "layer": n + 1, "head": head + 1, "entropy": entropy, "far_mass": far})
    return rows


@torch.inference_mode()
def _of_window(model: Model, tokens_BT: Tensor, sample: Sample) -> list[Tensor]:
    """Entropy and far mass, `[2, H, T]`, of the scored queries of one window, for every layer."""
    calls = calls_of_attention(model, tokens_BT)
    inputs = (call.operands(attention) for call, attention in zip(calls, model.attention, strict=True))
    pairs = zip(model.encodings, inputs, strict=True)
    return [spread(encoding, x, sample.scored, sample.train_length)[:, 0] for encoding, x in pairs]


def calls_of_attention(model: Model, tokens_BT: Tensor) -> list[Call]:
    """What every layer's attention is called with while the model reads the tokens; with a memory, the last segment."""
    calls: dict[int, Call] = {}

    def remember(layer: int, _: Attention, args: tuple[Any, ...]) -> None:
        x_BTW, positions, cache, before_BSW = args
        assert before_BSW is None, "a memory is a cache in evaluation"
        # The layer appends its keys to the cache after this, so a copy of it is kept.
        calls[layer] = Call(x_BTW, positions, None if cache is None else replace(cache))

    with ExitStack() as hooks:
        for n, attention in enumerate(model.attention):
            hooks.callback(attention.register_forward_pre_hook(partial(remember, n)).remove)
        model(tokens_BT)
    return [calls[n] for n in range(len(model.layers))]


def spread(encoding: Encoding, x: Operands, queries: int, length: int) -> Tensor:
    """Two numbers of each of the last queries, `[2, B, H, T]`: the entropy over log of the keys seen, and the far mass.

    The far mass is the weight on keys that lie `length` or more tokens back. The entropy is NaN for a query that sees
    one key, and both are for one that gives no key any weight.
    """
    queries = min(queries, x.queries)
    batch, heads, _, width = x.k_BHSD.shape
    step = max(1, PAIR_NUMBERS // (batch * heads * x.keys * width))
    bounds = [*range(x.queries - queries, x.queries, step), x.queries]
    parts = [x.block(start, stop) for start, stop in pairwise(bounds)]
    return torch.cat([_spread(encoding, part, length) for part in parts], dim=-1)


def _spread(encoding: Encoding, x: Operands, length: int) -> Tensor:
    p_BHTS = weights(encoding, x, scores(encoding, x)).double().abs()
    p_BHTS = p_BHTS / p_BHTS.sum(dim=-1, keepdim=True)
    seen_T = x.visible().sum(dim=-1)
    order = torch.arange(x.keys, device=p_BHTS.device)
    far_TS = order[x.keys - x.queries :, None] - order >= length
    entropy_BHT = torch.special.entr(p_BHTS).sum(dim=-1) / seen_T.log()
    return torch.stack([entropy_BHT, (p_BHTS * far_TS).sum(dim=-1)])
