"""How far back does the text lie that a model uses? Three answers.

Saturation: from how many visible tokens on does the loss of the same text no longer fall? The same tokens are scored
with windows of w = L/16, L/8, ... tokens, up to the longest. A model that uses what it reads gets better with every
window; one whose loss stops falling at w has no use for text farther back.

Receptive field: how far back do the tokens lie that a prediction depends on? `gradient` is the norm of the gradient of
the loss with respect to every input, by its distance from the prediction (arXiv:2212.10356): what a prediction is
sensitive to, useful or not. `replace` is by how much the loss rises if all tokens farther back than d are those of
another document: what was of use. Distances are those of the attention equation: the last token that a prediction reads
has distance 0, and a model meets distances 0 to L - 1 in training.

Key tokens: does a model do well on the tokens that need a long context? Most tokens can be predicted from the text just
before them, and their losses hide the few that cannot. After LongPPL (arXiv:2410.23771), a judge finds those few:
another model, trained on windows of at least 8 L. A token is a key token if the judge's loss falls by more than 2 nats
when its context grows from L to 8 L, and is below 2 nats then.

Shapes: B windows, T tokens, W model width, V vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from poscli.evaluation.losses import NLL
from poscli.evaluation.measure import PASS_TOKENS, score
from poscli.evaluation.recall import gain_numbers, octaves
from poscli.model.cache import LayerCache
from poscli.model.language_model import LanguageModel
from poscli.model.transformer import Model
from poscli.runs.run import Run
from poscli.statistics.intervals import mean_interval
from poscli.system.errors import UsageError
from poscli.tasks import Spans
from poscli.why.sample import Sample, few

TOLERANCE = 0.01 * math.log(2)  # nats per token, 0.01 bits: a window this near to the best is as good


def saturation(model: LanguageModel, sample: Sample) -> list[dict[str, Any]]:
    """One row per visible window; empty if no scored target counts. Unsupported if the model cannot read a window."""
    counts = sample.text.counts(sample.spans, sample.scored)
    documents = np.broadcast_to(sample.spans[:, :1], counts.shape)[counts]
    if not counts.any():
        return []
    losses = {window: sample.losses(model, window)[counts] for window in visible_windows(sample)}
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


def visible_windows(sample: Sample) -> list[int]:
    """L/16, L/8, ... in whole tokens, and the longest window last.

    A window is left out if the document of a sample may be too short to score all tokens with it: see `Sample`.
    """
    smallest = [sample.train_length >> n for n in (4, 3, 2, 1) if sample.train_length >> n]
    doublings = (sample.length // sample.train_length).bit_length()
    shorter = [*smallest, *(sample.train_length << n for n in range(doublings))]
    return [*(window for window in shorter if window + sample.scored <= sample.length), sample.length]


WINDOWS = 4  # read unless the caller says otherwise: a backward pass over a long window takes seconds


def receptive(model: LanguageModel, sample: Sample, windows: int = WINDOWS) -> list[dict[str, Any]]:
    """Rows of both methods on `windows` windows of the sample. Raises Unsupported if the model cannot read them.

    Only poscli's own models are asked for gradients.
    """
    chosen, indices = few(sample, windows)
    by_gradient = gradient_rows(model, chosen) if isinstance(model, Model) else []
    return by_gradient + replacement_rows(model, chosen, donors(sample, indices))


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


def replacement_rows(model: LanguageModel, sample: Sample, others: Spans) -> list[dict[str, Any]]:
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
    true, other = kept.tokens(sample.length), replace(sample, spans=others[usable]).tokens(sample.length)
    documents = np.broadcast_to(kept.spans[:, :1], counts.shape)[counts]
    before = _losses(model, sample, true)[counts]
    rows = []
    for first in starts:
        stop = farthest - first + 1  # inputs below `stop` lie at distance `first` and more
        mixed = torch.cat([other[:, :stop], true[:, stop:]], dim=1)
        harm = _losses(model, sample, mixed)[counts] - before
        low, high = mean_interval(harm, documents)
        rows.append(common | {"from": first, "value": float(harm.mean()), "low": low, "high": high, "reason": ""})
    return rows


def donors(sample: Sample, indices: NDArray[np.int64]) -> Spans:
    """For each of these windows, the next one of another document; else one that it does not overlap; else (-1, -1)."""
    chosen = np.full((len(indices), 2), -1)
    for row, index in enumerate(indices):
        later = np.roll(sample.spans, -index, axis=0)  # this window comes first, then those after it
        elsewhere = later[:, 0] != later[0, 0]
        apart = np.abs(later[:, 1] - later[0, 1]) > sample.length
        for usable in (elsewhere, apart):
            if usable.any():
                chosen[row] = later[usable.argmax()]
                break
    return chosen


def _bins(sample: Sample) -> list[tuple[int, int]]:
    """All distances below L/4, and octaves from there to the longest window: (first, last), both inclusive."""
    far = octaves(sample.train_length, sample.length)
    return [(0, far[0][0] - 1), *far]


@torch.inference_mode()
def _losses(model: LanguageModel, sample: Sample, tokens: Tensor) -> NDArray[np.float64]:
    """Nats of the last `scored` tokens of windows with these tokens `[n, length + 1]`."""
    losses = []
    for some in tokens.split(max(1, PASS_TOKENS // sample.length)):
        nll = score(model, sample.task, some[:, :-1], some[:, -sample.scored :])[NLL]
        losses.append(nll.double().cpu().numpy())
    return np.concatenate(losses)


def input_gradient(model: Model, tokens_BT: Tensor, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient `[B, T, W]` of `loss`, a function of the logits, with respect to the inputs of the first layer.

    These are the token embeddings, with the encoding's part if it adds one there. The weights get no gradient, and the
    model is as before afterwards.
    """
    inputs: list[Tensor] = []  # one, or one per segment if the model has a memory

    def cut(layer: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...]:
        inputs.append(args[0].detach().requires_grad_())
        return (inputs[-1], *args[1:])

    with ExitStack() as until_done, torch.enable_grad():
        until_done.enter_context(_differentiable(model))
        until_done.enter_context(_recomputed(model))
        until_done.callback(model.layers[0].register_forward_pre_hook(cut).remove)
        total = loss(model(tokens_BT))
        return torch.cat(torch.autograd.grad(total, inputs, materialize_grads=True), dim=1)


@contextmanager
def _differentiable(model: nn.Module) -> Iterator[None]:
    """Let every weight require a gradient: a model chooses engines with a backward pass only if its weights do."""
    before = {parameter: parameter.requires_grad for parameter in model.parameters()}
    model.requires_grad_(True)
    try:
        yield
    finally:
        for parameter, required in before.items():
            parameter.requires_grad_(required)


@contextmanager
def _recomputed(model: Model) -> Iterator[None]:
    """Compute every layer a second time in the backward pass, instead of keeping all it needs in memory.

    Engines for whole rows of scores keep O(T^2) numbers per layer, and windows here are far longer than in training.
    """
    for layer in model.layers:
        vars(layer)["forward"] = partial(_run, layer.forward)
    try:
        yield
    finally:
        for layer in model.layers:
            del vars(layer)["forward"]


def _run(forward: Callable[..., Tensor], x_BTW: Tensor, *rest: Any) -> Tensor:
    """A layer's output, in a way that can be repeated; a cache is changed by every pass, so then there is only one."""
    if any(isinstance(arg, LayerCache) for arg in rest):
        return forward(x_BTW, *rest)
    return _Recomputed.apply(x_BTW, lambda x: forward(x, *rest))


class _Recomputed(torch.autograd.Function):
    """A function of one tensor whose backward pass begins with another forward pass.

    torch.utils.checkpoint does that too, but its first call imports torch's compiler, which takes seconds.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        ctx.save_for_backward(x)
        ctx.function = function
        return function(x)  # torch switches gradients off here, so the fastest engine runs

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            y = ctx.function(x)
        return torch.autograd.grad(y, x, gradients[0])[0], None


KEY, OTHER = "key", "other"
GROWTH = 8  # times L: the context with which the judge predicts a key token
FALL, LOW = 2.0, 2.0  # nats: by how much the judge's loss falls at least, and below what it ends
FEWEST_TOKENS = 20  # with fewer tokens of a kind, their mean says nothing


def refuse_judge(judge: Run, run: Run, longest: int) -> None:
    """UsageError if the trained model of the run `judge` cannot judge that of `run`; it says why in one line.

    `longest` is the longest window to be read, in tokens.
    """
    if judge.home == run.home:
        raise UsageError(f"{run.id} cannot judge itself; name another run as the judge")
    if judge.fingerprint != run.fingerprint:
        raise UsageError(
            f"the judge {judge.id} was trained on another text or tokenizer than {run.id}; train one on it"
        )
    least = GROWTH * run.config.length
    if judge.config.length < least:
        raise UsageError(
            f"the judge was trained on windows of {judge.config.length} tokens; train one with --length {least}, "
            f"{GROWTH} times the training length of the model that it judges"
        )
    if longest < least:
        raise UsageError(
            f"key tokens need windows of {least} tokens, {GROWTH} times the training length; give --max-len"
        )


def key_tokens(judge: LanguageModel, sample: Sample) -> NDArray[np.bool_]:
    """Which scored tokens are key tokens, `[n, scored]`, by two passes of a judge that `refuse_judge` lets through."""
    cropped, whole = (sample.losses(judge, times * sample.train_length) for times in (1, GROWTH))
    return (cropped - whole > FALL) & (whole < LOW) & sample.text.counts(sample.spans, sample.scored)


def key_token_rows(model: LanguageModel, sample: Sample, key: NDArray[np.bool_]) -> list[dict[str, Any]]:
    """The loss of key tokens and of all others under a model, cropped to L and with the longest window."""
    counts = sample.text.counts(sample.spans, sample.scored)
    cropped, whole = sample.losses(model, sample.train_length), sample.losses(model, sample.length)
    documents = np.broadcast_to(sample.spans[:, :1], counts.shape)
    rows = []
    for kind, chosen in ((KEY, counts & key), (OTHER, counts & ~key)):
        row = gain_numbers(whole[chosen], cropped[chosen], documents[chosen], fewest=FEWEST_TOKENS)
        tokens = row["tokens"]
        too_few = f"{tokens} {kind} tokens are too few for a mean; at least {FEWEST_TOKENS} count"
        rows.append({"kind": kind} | row | {"reason": too_few if tokens < FEWEST_TOKENS else ""})
    return rows
