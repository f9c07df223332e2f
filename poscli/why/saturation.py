"""Saturation: from how many visible tokens on does the loss of the same text no longer fall?

The same tokens are scored with windows of w = L/16, L/8, ... tokens, up to the longest. A model that uses what it reads
gets better with every window; one whose loss stops falling at w has no use for text farther back.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from poscli.model.transformer import Model
from poscli.statistics.intervals import mean_interval
from poscli.why.sample import Sample

TOLERANCE = 0.01 * math.log(2)  # nats per token, 0.01 bits: a window this near to the best is as good


def saturation(model: Model, sample: Sample) -> list[dict[str, Any]]:
    """One row per window; empty if no scored target counts. Raises Unsupported if the model cannot read a window."""
    counts = sample.text.counts(sample.spans, sample.scored)
    documents = np.broadcast_to(sample.spans[:, :1], counts.shape)[counts]
    if not counts.any():
        return []
    losses = {window: sample.losses(model, window)[counts] for window in windows(sample)}
    finite = [window for window, nll in losses.items() if np.isfinite(nll).all()]
    best = min(finite, key=lambda window: float(losses[window].mean()), default=0)
    rows = []
    for window, nll in losses.items():
        row = {"window": window, "tokens": len(nll), "documents": len(np.unique(documents)), "nll": float(nll.mean())}
        if window in finite:
            excess = nll - losses[best]
            low, high = mean_interval(excess, documents)
            row |= {"excess": float(excess.mean()), "excess_low": low, "excess_high": high}
        rows.append(row)
    enough = [row["window"] for row in rows if row.get("excess", math.inf) <= TOLERANCE]
    return [row | {"saturates_at": min(enough, default=0)} for row in rows]


def windows(sample: Sample) -> list[int]:
    """L/16, L/8, ... in whole tokens, and the longest window last.

    A window is left out if the document of a sample may be too short to score all tokens with it: see `Sample`.
    """
    smallest = [sample.train_length >> n for n in (4, 3, 2, 1) if sample.train_length >> n]
    doublings = (sample.length // sample.train_length).bit_length()
    found = [*smallest, *(sample.train_length << n for n in range(doublings))]
    return [*(window for window in found if window + sample.scored <= sample.length), sample.length]
