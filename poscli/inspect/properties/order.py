"""Does the output depend on the order of the tokens: in one layer, in the whole model, and without the causal mask?

Content moves and positions stay: the tokens of a text are put in another order.

Shapes: B batch, T tokens, H heads, D head width, W model width.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.attention import attend
from poscli.equation import Encoding, Unsupported
from poscli.inspect.properties.row import Property, percent, relative_change
from poscli.inspect.properties.tested_model import CPU, TestedModel
from poscli.inspect.properties.unmasked import refusal, without_mask
from poscli.model.transformer import Layer, Model
from poscli.verify.noise import rounding
from poscli.verify.probe import REFERENCE

TOKENS = 32  # of the text that the whole model reads, at most; never above L
LAYER_TOKENS = 2048  # of the text that one layer reads, at most: 2 L, so that a window of L tokens hides some
LIMIT = 1e-9  # relative; sums of float64 in another order differ by about 1e-15


def order_in_one_layer(tested: TestedModel) -> Property:
    """Whether the last token's attention output changes when the tokens before it are permuted, in a single layer.

    The last token sees all tokens, so the mask cannot tell it their order: the encoding must.
    """
    try:
        count, changes = _in_layers(tested, min(2 * tested.length, max(tested.length, LAYER_TOKENS)))
    except Unsupported:
        count, changes = _in_layers(tested, tested.length)
    sees = [change > LIMIT for change in changes]
    numbers = {"tokens": count, "change": changes, "limit": LIMIT, "sensitive": any(sees)}
    values = list(dict.fromkeys(f"yes: {percent(c)}" if c > LIMIT else "no" for c in changes))
    what = f"Permuting the {count - 1:,} tokens before the last one changes the last one's attention output"
    if not any(sees):
        detail = f"{what} by {percent(max(changes))} only, which is rounding: the layer sees a set of tokens."
    elif all(sees):
        detail = f"{what} by {percent(max(changes))}: the encoding tells a single layer about their order."
    else:
        detail = f"{what} in some layers only, as their encodings differ (in order of the spec: {', '.join(values)})."
    return Property("order seen by one layer", " | ".join(values), detail, numbers)


def order_with_mask(tested: TestedModel) -> Property:
    """Whether the last token's logits change when the tokens before it are permuted, in the whole causal model."""
    change, limit, sensitive = _in_model(tested, tested.model)
    layers = len(tested.model.layers)
    what = f"Permuting the tokens before the last one changes its logits by {percent(change)}"
    if sensitive:
        why = f"through {layers} layers with the causal mask" if layers > 1 else "through one layer"
        detail = f"{what} {why}: rounding alone would change no logit by more than {limit:.0e}."
    else:
        detail = f"{what}, which is rounding: the model sees a set of tokens."
    value = f"yes: {percent(change)}" if sensitive else "no"
    return Property("order seen by the causal model", value, detail, _numbers(change, limit, sensitive, layers))


def order_without_mask(tested: TestedModel) -> Property:
    """As `order_with_mask`, with the mask removed, for encodings that are defined there."""
    name = "order seen without the mask"
    if why := _undefined(tested):
        return Property(name, "not defined", f"The mask cannot be removed: {why}.", {"sensitive": None})
    change, limit, sensitive = _in_model(tested, without_mask(tested.model))
    what = f"If every token sees all others, permuting them changes the last one's logits by {percent(change)}"
    because = "the encoding alone tells the order" if sensitive else "without the mask, nothing tells the order"
    value = f"yes: {percent(change)}" if sensitive else "no"
    numbers = _numbers(change, limit, sensitive, len(tested.model.layers))
    return Property(name, value, f"{what}: {because}.", numbers)


def equivariance(tested: TestedModel) -> Property:
    """Whether, without the mask, permuted tokens get the permuted logits; for encodings that are defined there."""
    name = "permutation-equivariant without the mask"
    if why := _undefined(tested):
        return Property(name, "not defined", f"The mask cannot be removed: {why}.", {"equivariant": None})
    model, text_BT = without_mask(tested.model), _text(tested)
    order = _permutation(text_BT.shape[1], tested.seed)
    limit = rounding(model, text_BT)
    with torch.no_grad():
        expected, found = model(text_BT)[:, order], model(text_BT[:, order])
    change, apart = relative_change(expected, found), float((found - expected).abs().max())
    equivariant = apart <= limit
    numbers = {"change": change, "largest": apart, "limit": limit, "equivariant": equivariant}
    if equivariant:
        detail = f"Permuted tokens get the permuted logits, up to {percent(change)}, which is rounding."
        return Property(name, "yes", detail, numbers)
    detail = f"Permuted tokens get other logits than before, by {percent(change)}: each place has outputs of its own."
    return Property(name, f"no: {percent(change)}", detail, numbers)


def _in_layers(tested: TestedModel, count: int) -> tuple[int, list[float]]:
    """The number of tokens, and the relative change in a layer of each different encoding."""
    ids = tested.tokens(count)
    order = torch.cat([_permutation(count - 1, tested.seed), torch.tensor([count - 1])])
    pairs = zip(tested.kinds, tested.exact, strict=True)
    return count, [relative_change(*(_layer(tested, n, e, x) for x in (ids, ids[:, order]))) for n, e in pairs]


@torch.no_grad()
def _layer(tested: TestedModel, number: int, encoding: Encoding, ids_BT: Tensor) -> Tensor:
    """The attention output of the last token in one layer right after the embedding, in float64: `[B, H, 1, D]`."""
    model, embeds = tested.model, tested.exact[0]
    layer: Layer = model.layers[number]  # type: ignore[assignment]
    positions = encoding.locate(ids_BT.shape[1], CPU)
    at = embeds.locate(ids_BT.shape[1], CPU).pos
    x_BTW = embeds.embed(F.embedding(ids_BT, model.embedding.double()), at, ids_BT)
    x_BTW = F.rms_norm(x_BTW, x_BTW.shape[-1:], layer.norm_attention.weight.double(), layer.norm_attention.eps)
    attention = layer.attention
    q, k, v = (
        (x_BTW @ projection.weight.double().T).unflatten(2, (attention.heads, -1)).transpose(1, 2)
        for projection in (attention.q, attention.k, attention.v)
    )
    features = encoding.features(x_BTW)
    return attend(REFERENCE, encoding, q[:, :, -1:], k, v, positions, features)


def _in_model(tested: TestedModel, model: Model) -> tuple[float, float, bool]:
    """Relative change of the last token's logits, the largest change of a logit by rounding, and whether it is more."""
    text_BT = _text(tested)
    last = text_BT.shape[1] - 1
    order = torch.cat([_permutation(last, tested.seed), torch.tensor([last])])
    limit = rounding(model, text_BT)
    with torch.no_grad():
        before, after = model(text_BT)[:, -1], model(text_BT[:, order])[:, -1]
    return relative_change(before, after), limit, float((after - before).abs().max()) > limit


def _text(tested: TestedModel) -> Tensor:
    return tested.tokens(min(TOKENS, tested.length))


def _permutation(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def _undefined(tested: TestedModel) -> str:
    return next(filter(None, map(refusal, tested.encodings)), "")


def _numbers(change: float, limit: float, sensitive: bool, layers: int) -> dict[str, object]:
    return {"change": change, "limit": limit, "sensitive": sensitive, "layers": layers}
