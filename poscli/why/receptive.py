"""The receptive field: how far back do the tokens lie that a prediction depends on?

Two answers. `gradient`: the norm of the gradient of the loss with respect to every input, by its distance from the
prediction (arXiv:2212.10356); it says what a prediction is sensitive to, useful or not. `replace`: by how much the loss
rises if all tokens farther back than d are those of another document; it says what was of use.

Distances are those of the attention equation: the last token that a prediction reads has distance 0, and a model meets
distances 0 to L - 1 in training.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from poscli.evaluation.losses import NLL
from poscli.evaluation.recall import octaves
from poscli.model.transformer import Model
from poscli.statistics.intervals import mean_interval
from poscli.tasks import Spans
from poscli.why.few import few
from poscli.why.input_gradient import input_gradient
from poscli.why.sample import PASS_TOKENS, Sample

WINDOWS = 4  # read unless the caller says otherwise: a backward pass over a long window takes seconds


def receptive(model: Model, sample: Sample, windows: int = WINDOWS) -> list[dict[str, Any]]:
    """Rows of both methods on `windows` windows of the sample. Raises Unsupported if the model cannot read them."""
    chosen, indices = few(sample, windows)
    return gradient_rows(model, chosen) + replacement_rows(model, chosen, donors(sample, indices))


def gradient_rows(model: Model, sample: Sample) -> list[dict[str, Any]]:
    """The share of the gradient's norm in every octave of the distance; the shares of all rows sum to 1."""
    norms, spans = gradient_norms(model, sample)
    totals = norms.sum(axis=1, keepdims=True)
    used = (totals[:, 0] > 0) & np.isfinite(totals[:, 0])
    bins = _bins(sample)
    common = {"method": "gradient", "windows": int(used.sum()), "tokens": int(used.sum())}
    if not used.any():
        reason = "every gradient is zero or not finite" if len(norms) else "no scored target counts"
        return [common | {"from": first, "to": last, "reason": reason} for first, last in bins]
    shares, documents = norms[used] / totals[used], spans[used, 0]
    beyond = float(shares[:, sample.train_length :].sum(axis=1).mean())
    rows = []
    for first, last in bins:
        share = shares[:, first : last + 1].sum(axis=1)
        low, high = mean_interval(share, documents)
        numbers = {"value": float(share.mean()), "low": low, "high": high, "beyond": beyond, "reason": ""}
        rows.append(common | {"from": first, "to": last} | numbers)
    return rows


def gradient_norms(model: Model, sample: Sample) -> tuple[NDArray[np.float64], Spans]:
    """The norm of the gradient of one loss per window, by distance `[n, length]`, and the windows `[n, 2]`.

    The loss is that of the last target that counts. Windows without one are left out.
    """
    counts = sample.text.counts(sample.spans, sample.scored)
    kept = np.flatnonzero(counts.any(axis=1))
    last = sample.length - 1 - counts[kept, ::-1].argmax(axis=1)  # the input from which that target is predicted
    norms, spans = np.zeros((len(kept), sample.length)), sample.spans[kept]
    for n, tokens in enumerate(replace(sample, spans=spans).tokens(sample.length)):
        inputs, targets, at = tokens[None, :-1], tokens[None, 1:], int(last[n])

        def loss(logits: Tensor, targets: Tensor = targets, at: int = at) -> Tensor:
            return sample.task.score(logits.float(), targets)[NLL][0, at]

        gradient_TW = input_gradient(model, inputs, loss)[0]
        norms[n, : at + 1] = gradient_TW[: at + 1].double().norm(dim=-1).flip(0).cpu().numpy()
    return norms, spans


def replacement_rows(model: Model, sample: Sample, others: Spans) -> list[dict[str, Any]]:
    """By how much the loss rises if the tokens at distance d and more are those of the windows `others` `[n, 2]`.

    The distance is measured from the first scored prediction; later ones keep more of their own text. A window whose
    other window is (-1, -1) is left out.
    """
    usable = others[:, 0] >= 0
    kept = replace(sample, spans=sample.spans[usable])
    counts = sample.text.counts(kept.spans, sample.scored)
    farthest = sample.length - sample.scored  # the distance of the window's first token
    common = {"method": "replace", "to": farthest, "windows": len(kept.spans), "tokens": int(counts.sum())}
    starts = [first for first, _ in _bins(sample)[1:] if first <= farthest]
    if not counts.any():
        reason = "no other text to replace it with" if not usable.any() else "no scored target counts"
        return [common | {"from": first, "reason": reason} for first in starts]
    own, other = kept.tokens(sample.length), replace(sample, spans=others[usable]).tokens(sample.length)
    documents = np.broadcast_to(kept.spans[:, :1], counts.shape)[counts]
    before = _losses(model, sample, own)[counts]
    rows = []
    for first in starts:
        stop = farthest - first + 1  # inputs below `stop` lie at distance `first` and more
        mixed = torch.cat([other[:, :stop], own[:, stop:]], dim=1)
        harm = _losses(model, sample, mixed)[counts] - before
        low, high = mean_interval(harm, documents)
        rows.append(common | {"from": first, "value": float(harm.mean()), "low": low, "high": high, "reason": ""})
    return rows


def donors(sample: Sample, indices: NDArray[np.int64]) -> Spans:
    """For each of these windows, the next one of another document; else one that it does not overlap; else (-1, -1)."""
    found = np.full((len(indices), 2), -1)
    for row, index in enumerate(indices):
        later = np.roll(sample.spans, -index, axis=0)  # this window comes first, then those after it
        elsewhere = later[:, 0] != later[0, 0]
        apart = np.abs(later[:, 1] - later[0, 1]) > sample.length
        for usable in (elsewhere, apart):
            if usable.any():
                found[row] = later[usable.argmax()]
                break
    return found


def _bins(sample: Sample) -> list[tuple[int, int]]:
    """All distances below L/4, and octaves from there to the longest window: (first, last), both inclusive."""
    far = octaves(sample.train_length, sample.length)
    return [(0, far[0][0] - 1), *far]


@torch.inference_mode()
def _losses(model: Model, sample: Sample, tokens: Tensor) -> NDArray[np.float64]:
    """Nats of the last `scored` tokens of windows with these tokens `[n, length + 1]`."""
    found = []
    for some in tokens.split(max(1, PASS_TOKENS // sample.length)):
        nll = sample.task.score(model(some[:, :-1]).float(), some[:, 1:])[NLL]
        found.append(nll[:, -sample.scored :].double().cpu().numpy())
    return np.concatenate(found)
