"""The property sheet of an encoding: everything in it is measured on random input, nothing is read from a declaration.

Does the output depend on the order of the tokens: in one layer, in the whole model, and without the causal mask? How
many numbers are learned, and who shares them? How far does attention in narrow dtypes drift from attention in float64?
What shifts change and how long an input may be is measured by `poscli verify`, time and memory by `poscli bench`.

Shapes: B batch, T tokens or queries, S keys, H heads, D head width, E head width of values, W model width.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from poscli.attention import BlockSizes, Engine, attend
from poscli.config.run import ModelConfig
from poscli.equation import Encoding, Operands, Positions, Unsupported
from poscli.equation.reference import operands, reference
from poscli.model.initialise import build_model
from poscli.model.transformer import Layer, Model, shift_keys
from poscli.specs import check, parse
from poscli.specs.grammar import Spec
from poscli.system.plugins import blamed
from poscli.verify.checks import REFERENCE
from poscli.verify.noise import draw, draw_inputs, draw_tokens, perturbed, rounding

VOCAB = 257  # of a new model: 256 bytes and the end of a document
CPU = torch.device("cpu")
TOKENS = 32  # of the text that the whole model reads, at most; never above L
LAYER_TOKENS = 2048  # of the text that one layer reads, at most: 2 L, so that a window of L tokens hides some
LIMIT = 1e-9  # relative; sums of float64 in another order differ by about 1e-15
DTYPES = (torch.bfloat16, torch.float16)  # in which attention may drift
NEAR, SPREAD = 16, 16  # tokens of the text for that: the last ones, and others evenly over the rest
BATCH = 4
WORSE = 4.0  # times the error without encoding: what is worth a word
GROWN = 2.0  # times the error in a text of a few tokens: less does not depend on the position


@dataclass(frozen=True)
class Property:
    """One measured property: a short value, a sentence that explains it, and the raw numbers behind both.

    `numbers` holds plain JSON data. What could not be measured is None there.
    """

    name: str
    value: str
    detail: str
    numbers: dict[str, Any] = field(default_factory=dict)

    def record(self) -> dict[str, Any]:
        """The row as data for JSON."""
        return {"name": self.name, "value": self.value, "detail": self.detail, "numbers": self.numbers}


def relative_change(before: Tensor, after: Tensor) -> float:
    """The root mean square of after - before, divided by that of before."""
    return float((after - before).norm() / before.norm())


def percent(share: float) -> str:
    """A share in percent with two significant digits; below 0.0001 the share itself, such as 3e-12.

    >>> percent(0.1234), percent(0.00391), percent(3e-12), percent(0.0), percent(2.0)
    ('12%', '0.39%', '3e-12', '0', '200%')
    """
    if not math.isfinite(share) or share == 0:
        return f"{share:g}"
    if share < 1e-4:
        return f"{share:.0e}"
    return f"{100 * share:.0f}%" if share >= 0.0995 else f"{100 * share:.2g}%"


def in_training_lengths(tokens: int, length: int) -> str:
    """A number of tokens as a multiple of the training length L, where it is one.

    >>> [in_training_lengths(tokens, 512) for tokens in (512, 8192, 600, 1)]
    ['L', '16 L', '600 tokens', '1 token']
    """
    if tokens % length == 0:
        return "L" if tokens == length else f"{tokens // length} L"
    return f"{tokens:,} token{'' if tokens == 1 else 's'}"


@dataclass(frozen=True, eq=False)
class MeasuredModel:
    """A model in evaluation mode on the CPU, its spec, and the seed of the random input that it is given."""

    spec: Spec
    model: Model
    seed: int
    trained: bool

    @classmethod
    def of(cls, spec: str, config: ModelConfig, length: int, seed: int, model: Model | None) -> MeasuredModel:
        """A copy of the trained model, or a new one of this shape for windows of `length` tokens.

        A new model gets noise on its encodings, and random numbers in every matrix that starts at zero. Raises
        UsageError or PluginError for a spec that cannot be trained at this shape.
        """
        if model is not None:
            assert (model.config, model.length) == (config, length), "the shape is not that of the trained model"
            return cls(parse(spec), copy.deepcopy(model).to(CPU).eval().requires_grad_(False), seed, trained=True)
        parsed = check(spec, config.shape(length, VOCAB))
        drawn = build_model(config, str(parsed), vocab=VOCAB, length=length, seed=seed)
        perturbed(nn.ModuleList(dict.fromkeys(drawn.encodings)), seed)
        with torch.no_grad():
            # Matrices that start at zero would hide all that happens before them.
            for n, weight in enumerate(drawn.parameters()):
                if weight.ndim == 2 and not weight.any():
                    weight.copy_(draw(*weight.shape, seed=1000 * seed + n) * weight.shape[1] ** -0.5)
        return cls(parsed, drawn.eval().requires_grad_(False), seed, trained=False)

    @property
    def length(self) -> int:
        """The training length L in tokens."""
        return self.model.length

    @property
    def kinds(self) -> list[int]:
        """The first layer of each different encoding: [0, 1] for a spec of two that alternate."""
        encodings = self.model.encodings[: len(self.spec.layers)]
        return [encodings.index(encoding) for encoding in dict.fromkeys(encodings)]

    @property
    def encodings(self) -> list[Encoding]:
        """The different encodings, in float32 as the model uses them."""
        return [self.model.encodings[layer] for layer in self.kinds]

    @cached_property
    def exact(self) -> list[Encoding]:
        """Copies of the different encodings in float64, in which rounding is far smaller than any property."""
        return [copy.deepcopy(encoding).double() for encoding in self.encodings]

    @property
    def why_not_unmasked(self) -> str:
        """Why the mask cannot be removed, as a sentence; '' if it can."""
        why = next(filter(None, map(why_not_unmasked, self.encodings)), "")
        return f"The mask cannot be removed: {why}." if why else ""

    def tokens(self, count: int) -> Tensor:
        """Random token ids `[2, count]`."""
        return draw_tokens(self.model.vocab, 2, count, self.seed)


def order_in_one_layer(measured: MeasuredModel) -> Property:
    """Whether the last token's attention output changes when the tokens before it are permuted, in a single layer.

    The last token sees all tokens, so the mask cannot tell it their order: the encoding must.
    """
    for count in (min(2 * measured.length, max(measured.length, LAYER_TOKENS)), measured.length):
        ids_BT = measured.tokens(count)
        order = torch.cat([_permutation(count - 1, measured.seed), torch.tensor([count - 1])])
        try:
            changes = [
                relative_change(*(_layer(measured, n, encoding, text) for text in (ids_BT, ids_BT[:, order])))
                for n, encoding in zip(measured.kinds, measured.exact, strict=True)
            ]
        except Unsupported:
            if count == measured.length:
                raise
            continue
        break
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


def order_with_mask(measured: MeasuredModel) -> Property:
    """Whether the last token's logits change when the tokens before it are permuted, in the whole causal model."""
    numbers = _in_model(measured, measured.model)
    change, sensitive = numbers["change"], numbers["sensitive"]
    layers = len(measured.model.layers)
    what = f"Permuting the tokens before the last one changes its logits by {percent(change)}"
    if sensitive:
        why = f"through {layers} layers with the causal mask" if layers > 1 else "through one layer"
        detail = f"{what} {why}: rounding alone would change no logit by more than {numbers['limit']:.0e}."
    else:
        detail = f"{what}, which is rounding: the model sees a set of tokens."
    value = f"yes: {percent(change)}" if sensitive else "no"
    return Property("order seen by the causal model", value, detail, numbers)


def order_without_mask(measured: MeasuredModel) -> Property:
    """As `order_with_mask`, with the mask removed, for encodings that are defined there."""
    name = "order seen without the mask"
    if why := measured.why_not_unmasked:
        return Property(name, "not defined", why, {"sensitive": None})
    numbers = _in_model(measured, without_mask(measured.model))
    change, sensitive = numbers["change"], numbers["sensitive"]
    what = f"If every token sees all others, permuting them changes the last one's logits by {percent(change)}"
    value = f"yes: {percent(change)}" if sensitive else "no"
    if sensitive:
        detail = f"{what}: the encoding alone tells the order, and each place has outputs of its own."
    else:
        detail = f"{what}: without the mask, nothing tells the order, so permuted tokens get the permuted logits."
    return Property(name, value, detail, numbers)


@torch.no_grad()
def _layer(measured: MeasuredModel, number: int, encoding: Encoding, ids_BT: Tensor) -> Tensor:
    """The attention output of the last token in one layer right after the embedding, in float64: `[B, H, 1, D]`."""
    model, embeds = measured.model, measured.exact[0]
    layer: Layer = model.layers[number]  # type: ignore[assignment]
    positions = encoding.locate(ids_BT.shape[1], CPU)
    at = embeds.locate(ids_BT.shape[1], CPU).pos
    x_BTW = embeds.embed(F.embedding(ids_BT, model.embedding.double()), at, ids_BT)
    x_BTW = F.rms_norm(x_BTW, x_BTW.shape[-1:], layer.norm_attention.weight.double(), layer.norm_attention.eps)
    attention, x_BTW = layer.attention, encoding.mix(x_BTW)
    q, k, v = (
        (x_BTW @ projection.weight.double().T).unflatten(2, (attention.heads, -1)).transpose(1, 2)
        for projection in (attention.q, attention.k, attention.v)
    )
    k = shift_keys(k, attention.shifted)
    return attend(REFERENCE, encoding, q[:, :, -1:], k, v, positions, encoding.features(x_BTW))


def _in_model(measured: MeasuredModel, model: Model) -> dict[str, Any]:
    """What a permutation of the tokens before the last one does to its logits, and whether it is more than rounding."""
    text_BT = measured.tokens(min(TOKENS, measured.length))
    last = text_BT.shape[1] - 1
    order = torch.cat([_permutation(last, measured.seed), torch.tensor([last])])
    limit = rounding(model, text_BT)
    with torch.no_grad():
        before, after = model(text_BT)[:, -1], model(text_BT[:, order])[:, -1]
    sensitive = float((after - before).abs().max()) > limit
    change = relative_change(before, after)
    return {"change": change, "limit": limit, "sensitive": sensitive, "layers": len(model.layers)}


def _permutation(count: int, seed: int) -> Tensor:
    return torch.randperm(count, generator=torch.Generator().manual_seed(seed))


def why_not_unmasked(encoding: Encoding, _: object = None) -> str:
    """Why an encoding is not defined without the mask; '' if it is."""
    if encoding.tier == "token":
        return ""
    return "its terms of the scores are defined only for keys that are not later than the query"


def unmasked_attention(encoding: Encoding, x: Operands, _: BlockSizes) -> Tensor:
    """softmax(q_i . k_j * scale * temperature) v_j over all keys, `[B, H, T, E]`.

    Without the mask every query sees as many keys as the last one does, so all have the temperature of the last query.
    """
    s_BHTS = x.q_BHTD @ x.k_BHSD.mT * encoding.scale
    if x.temperature_HT is not None:
        s_BHTS = s_BHTS * x.temperature_HT[:, -1:, None].to(s_BHTS.dtype)
    return torch.softmax(s_BHTS, dim=-1) @ x.v_BHSE


UNMASKED = Engine("unmasked", unmasked_attention, why_not_unmasked, "eager, every key visible to every query")


def without_mask(model: Model) -> Model:
    """A copy of the model in which every query of every layer sees all keys; UsageError where that is not defined."""
    unmasked = copy.deepcopy(model)
    unmasked.use_engine(UNMASKED)
    return unmasked


def learned_parameters(measured: MeasuredModel) -> Property:
    """The learned numbers of the encodings: in all, shared between layers, and as a share of the model's."""
    model = measured.model
    sizes = {id(p): p.numel() for p in model.encoding_parameters()}
    layers = [{id(p) for p in encoding.parameters()} for encoding in model.encodings]
    used = [sum(p in layer for layer in layers) for p in sizes]
    total = sum(sizes.values())
    shared = sum(size for size, count in zip(sizes.values(), used, strict=True) if count > 1)
    numbers = {
        "total": total,
        "shared": shared,
        "by_layer": [sum(sizes[p] for p in layer) for layer in layers],
        "share_of_model": total / model.size,
    }
    if not total:
        return Property("parameters", "none", "The encoding learns nothing.", numbers)
    if len(layers) == 1:
        how = "in the only layer"
    elif shared == total:
        how = "shared by all layers" if min(used) == len(layers) else "shared by several layers"
    elif shared:
        how = f"{shared:,} of them shared by several layers"
    else:
        how = "none of them shared by layers"
    values = f"{total:,} number{'' if total == 1 else 's'}"
    by_layer = numbers["by_layer"]
    few, many = min(by_layer), max(by_layer)  # type: ignore[call-overload]
    each = f"{many:,}" if few == many else f"{few:,} to {many:,}"
    detail = f"Each layer uses {each}; they are {percent(total / model.size)} of the model's {model.size:,} parameters."
    return Property("parameters", f"{values}, {how}", detail, numbers)


def drift(measured: MeasuredModel) -> Property:
    """The relative error of the last token's attention output in texts of a few tokens, of L, 4 L and 16 L.

    An encoding that computes with large positions in a narrow dtype loses their last digits, so that its error grows
    with the position. The error that attention has anyway is measured on the same input without any encoding.
    """
    length = measured.length
    counts = sorted({min(NEAR + SPREAD, length), *(factor * length for factor in (1, 4, 16))})
    errors = {
        str(dtype).removeprefix("torch."): [_drifted(measured, dtype, count) for count in counts] for dtype in DTYPES
    }
    parts = []
    for name, entries in errors.items():
        shown = ["refused" if entry["error"] is None else percent(entry["error"]) for entry in entries]
        each = [f"{error} at {in_training_lengths(n, length)}" for error, n in zip(shown, counts, strict=True)]
        usual = percent(max(entry["without"] for entry in entries))
        parts.append(f"{name} {', '.join(each)} (without encoding at most {usual})")
    detail = f"Error of the last token's attention against float64: {'; '.join(parts)}."
    return Property("drift", _worst_drift(errors, counts, length), detail, {"tokens": counts, "worse": WORSE} | errors)


def _drifted(measured: MeasuredModel, dtype: torch.dtype, tokens: int) -> dict[str, Any]:
    """The largest error over the encodings of the layers, the error without encoding, and their ratio.

    Of the text, some tokens are taken, the last one among them, with numbers that the dtype holds exactly.
    """
    shape = measured.model.encodings[0].shape
    far = torch.linspace(0, tokens - NEAR - 1, SPREAD).long() if tokens > NEAR else torch.zeros(0).long()
    index_S = torch.cat([far, torch.arange(max(0, tokens - NEAR), tokens)]).unique()
    drawn = draw_inputs(shape, len(index_S), len(index_S), dtype, seed=measured.seed, batch=BATCH)
    ids_BS = draw_tokens(shape.vocab, BATCH, len(index_S), measured.seed)
    embedded = any("embed" in encoding.blanks for encoding in measured.encodings)

    @torch.no_grad()
    def error(exact: Encoding, rounded: Encoding) -> float:
        """Of the attention output of the last token, `[B, H, 1, D]`."""
        results = []
        for encoding, precision in ((exact, torch.float64), (rounded, dtype)):
            pos = encoding.locate(tokens, CPU).pos[index_S]
            x_BSW = drawn["x"].to(torch.promote_types(precision, torch.float32))
            q, k, v = (drawn[name].to(precision) for name in "qkv")
            if embedded:  # then all three are the normed embedding
                x_BSW = F.rms_norm(encoding.embed(x_BSW, pos, ids_BS), x_BSW.shape[-1:])
                q = k = v = x_BSW.unflatten(2, (shape.heads, -1)).transpose(1, 2).to(precision)
            x = operands(encoding, q[:, :, -1:], k, v, Positions(pos=pos, step=None), encoding.features(x_BSW))
            if x.temperature_HT is not None:  # the sample has few tokens, and the text has more
                seen = tokens if x.reach is None else min(tokens, x.reach + x.sinks)
                x = replace(x, temperature_HT=encoding.temperature(torch.tensor([seen])))
            results.append(encoding.output(reference(encoding, x), x.pos_T).double())
        return relative_change(*results)

    plain = Encoding(shape)
    without = error(plain, plain)
    entry: dict[str, Any] = {"error": None, "without": without, "ratio": None, "refused": ""}
    try:
        errors = [error(exact, used) for exact, used in zip(measured.exact, measured.encodings, strict=True)]
    except Unsupported as reason:
        return entry | {"refused": str(reason)}
    if not all(each < float("inf") for each in errors):  # NaN is not below it, either
        return entry | {"refused": "attention is not finite"}
    return entry | {"error": max(errors), "ratio": max(errors) / without}


def _worst_drift(errors: dict[str, list[dict[str, Any]]], counts: list[int], length: int) -> str:
    """In words, the dtype and the length with the largest error, or up to which length there is no drift."""
    known = {
        (name, count): entry["ratio"]
        for name, entries in errors.items()
        for count, entry in zip(counts, entries, strict=True)
        if entry["ratio"] is not None
    }
    if not known:
        return "not known: every length is refused"
    (name, count), worst = max(known.items(), key=lambda one: one[1])
    if worst > WORSE:
        first = errors[name][0]["ratio"]
        where = "at every length" if worst < GROWN * first else f"at {in_training_lengths(count, length)}"
        return f"{name}: {worst:.0f} times the usual error {where}"
    safe = [count for count in counts if all((name, count) in known for name in errors)]
    return f"no drift up to {in_training_lengths(safe[-1], length)}" if safe else "no drift where it is finite"


@dataclass(frozen=True)
class Properties:
    """The property sheet of an encoding: its spec, the training length L in tokens, and a row for each property."""

    spec: str
    length: int
    trained: bool  # measured on a trained model
    rows: list[Property]

    def record(self) -> dict[str, Any]:
        """The sheet as data for JSON, with the raw numbers of every row."""
        rows = [row.record() for row in self.rows]
        return {"encoding": self.spec, "length": self.length, "trained": self.trained, "properties": rows}


def measure_properties(
    spec: str, config: ModelConfig, length: int, *, seed: int = 0, model: Model | None = None
) -> Properties:
    """Measure all properties of an encoding on the CPU.

    `model` is a trained model of this spec, shape and training length `length`; without one, a new model is built, with
    weights moved away from their initial values. `seed` draws the random input and those weights. Raises UsageError for
    a spec that cannot be trained at this shape, and PluginError for an encoding from outside poscli that fails.
    """
    with blamed():
        measured = MeasuredModel.of(spec, config, length, seed, model)
        of_order = (order_in_one_layer, order_with_mask, order_without_mask)
        rows = [measure(measured) for measure in (*of_order, learned_parameters, drift)]
    return Properties(str(measured.spec), length, measured.trained, rows)
