"""Encodings and attention for a model of one's own.

Shapes: B batch, T queries, S keys (the queries are the last T of the S tokens), H heads, D head width, W model width.
"""

from __future__ import annotations

import torch
from torch import Tensor

from poscli import specs
from poscli.api.arguments import checked, spec_of
from poscli.attention import ENGINES, Place, attend, choose
from poscli.equation import Encoding, Shape
from poscli.equation.encoding import begin_step as begin_encodings
from poscli.system import plugins
from poscli.system.errors import UsageError
from poscli.system.plugins import blamed


@checked
def encoding(
    spec: str | type[Encoding], *, width: int, heads: int, length: int, vocab: int = 257, seed: int = 0
) -> Encoding:
    """The torch module of a spec, such as `rope(base=500000)+window(128)` or `my_encoding.py`, or of a class.

    `width` is that of the model, a multiple of `heads`, and `length` the number of tokens in a training window, which
    some encodings need to know; `vocab` is the number of different tokens. Weights are drawn from `seed`. UsageError
    for a spec that is wrong or alternates by layer, and for a width that `heads` does not divide.
    """
    if (count := len(specs.parse(spec_of(spec)).layers)) > 1:
        raise UsageError(
            f"{spec} alternates by layer; api.encodings(..., layers={count}) builds one encoding for each layer"
        )
    return encodings(spec, layers=1, width=width, heads=heads, length=length, vocab=vocab, seed=seed)[0]


@checked
def encodings(
    spec: str | type[Encoding], *, layers: int, width: int, heads: int, length: int, vocab: int = 257, seed: int = 0
) -> list[Encoding]:
    """The encoding of each layer; alternating ones, such as `rope|none` and the layout `rnope-swa`, take turns.

    Layers share one instance where the paper says so, as T5 does; `torch.nn.ModuleList` takes the list as it is, and
    `.to(device)` moves what was built, on CPU whatever torch's default device is. The other parameters are those of
    `encoding`.
    """
    if width % heads:
        raise UsageError(f"width {width} is not divisible by {heads} heads; give a multiple of {heads}")
    plugins.forget_edited()
    shape = Shape(width=width, heads=heads, layers=layers, length=length, vocab=vocab)
    with blamed(), torch.device("cpu"):
        return specs.build(specs.check(spec_of(spec), shape), shape, seed)


begin_step = checked(begin_encodings)


@checked
def embed(x_BTW: Tensor, ids_BT: Tensor, encoding: Encoding, *, past: int = 0, columns: int | None = None) -> Tensor:
    """The input of the first layer, from the token embeddings `[B, T, W]` and the ids of the tokens `[B, T]`.

    Absolute encodings act here, and every other encoding returns `x_BTW` as it is, so that a model which calls this and
    `attention` takes any encoding. Embeddings should have variance 1. `past` is the number of tokens before the first,
    for a model that decodes with a cache. `columns` is the width of the grid that the tokens fill row by row, for
    encodings of rows and columns; without it, they are a whole grid. UsageError for tensors that do not fit the
    encoding, Unsupported for positions that it does not have, such as those beyond a learned table.
    """
    if x_BTW.ndim != 3 or x_BTW.shape[:2] != ids_BT.shape or x_BTW.shape[2] != encoding.shape.width:
        raise UsageError(
            f"x and ids have the shapes {list(x_BTW.shape)} and {list(ids_BT.shape)}; {_name(encoding)} was built for "
            f"[batch, tokens, {encoding.shape.width} channels] and [batch, tokens]"
        )
    if not x_BTW.is_floating_point() or ids_BT.is_floating_point():
        raise UsageError(f"x has the dtype {x_BTW.dtype} and ids {ids_BT.dtype}; give floating point and whole numbers")
    _refuse_no_tokens("x", x_BTW)
    _refuse_growing_grid(encoding, columns, grown=past > 0)
    pos = encoding.locate(past + x_BTW.shape[1], x_BTW.device, columns).pos[past:]
    return encoding.embed(x_BTW, pos, ids_BT)


@checked
def mix(x_BTW: Tensor, encoding: Encoding) -> Tensor:
    """What q, k, v and the `x_BSW` of `attention` are made of, from the input `[B, T, W]` of the layer.

    Encodings such as `smear` mix a token with those before it here, and every other encoding returns `x_BTW` as it is.
    A model that decodes with a cache gives the tokens before, too, of which the last `encoding.mixed_tokens - 1` are
    enough, and leaves out their results.
    """
    if x_BTW.ndim != 3 or x_BTW.shape[2] != encoding.shape.width or not x_BTW.is_floating_point():
        raise UsageError(
            f"x is {x_BTW.dtype} with the shape {list(x_BTW.shape)}; {_name(encoding)} was built for floating point, "
            f"[batch, tokens, {encoding.shape.width} channels]"
        )
    return encoding.mix(x_BTW)


@checked
def attention(
    q_BHTD: Tensor,
    k_BHSD: Tensor,
    v_BHSD: Tensor,
    encoding: Encoding,
    *,
    x_BSW: Tensor | None = None,
    engine: str | None = None,
    columns: int | None = None,
) -> Tensor:
    """Causal attention with an encoding: the output `[B, H, T, D]` of queries, keys and values as projected.

    q is `[B, H, T, D]`, k and v are `[B, H, S, D]`, with T <= S: the queries are those of the last T tokens, and a
    cache holds k and v as projected. `x_BSW` `[B, S, W]` is what `mix` made of the layer's input, for all S tokens;
    encodings with features, such as forget gates, need it. The fastest engine that can run the encoding is chosen,
    unless `engine` names one. `columns` is as in `embed`. Under autocast q, k and v keep their dtypes. UsageError for
    tensors that do not fit the encoding, a missing `x_BSW`, and an engine that cannot run the encoding; Unsupported for
    positions that it does not have.
    """
    _refuse_other_shapes(q_BHTD, k_BHSD, v_BHSD, encoding)
    _refuse_growing_grid(encoding, columns, grown=q_BHTD.shape[2] < k_BHSD.shape[2])
    shape, device = [k_BHSD.shape[0], k_BHSD.shape[2], encoding.shape.width], q_BHTD.device
    if "features" in encoding.blanks and not (
        x_BSW is not None and list(x_BSW.shape) == shape and x_BSW.is_floating_point() and x_BSW.device == device
    ):
        raise UsageError(
            f"{_name(encoding)} reads the input of the layer: give x_BSW, the tokens of all keys, with the shape "
            f"{shape}, in floating point on {device}"
        )
    learned = (q_BHTD, k_BHSD, v_BHSD, *encoding.parameters())
    gradient = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in learned)
    place = Place(device.type, q_BHTD.dtype, q_BHTD.shape[-1], gradient, here=device)
    chosen = choose(encoding, engine, place).engine
    with torch.autocast(device.type, enabled=False):  # which would round gates and angles
        features = encoding.features(x_BSW) if x_BSW is not None else None
        positions = encoding.locate(k_BHSD.shape[2], device, columns)
        return attend(chosen, encoding, q_BHTD, k_BHSD, v_BHSD, positions, features)


def _refuse_other_shapes(q_BHTD: Tensor, k_BHSD: Tensor, v_BHSD: Tensor, encoding: Encoding) -> None:
    """Refuse what the encoding was not built for, more queries than keys, no queries, and devices of no engine."""
    heads, width = encoding.shape.heads, encoding.shape.head_width
    for name, tensor in (("q", q_BHTD), ("k", k_BHSD), ("v", v_BHSD)):
        if tensor.ndim != 4 or (tensor.shape[1], tensor.shape[3]) != (heads, width):
            raise UsageError(
                f"{name} has the shape {list(tensor.shape)}; {_name(encoding)} was built for "
                f"[batch, {heads} heads, tokens, {width} channels]"
            )
    if k_BHSD.shape != v_BHSD.shape or q_BHTD.shape[0] != k_BHSD.shape[0] or q_BHTD.shape[2] > k_BHSD.shape[2]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (q_BHTD, k_BHSD, v_BHSD))
        raise UsageError(f"q, k and v have the shapes {shapes}; k and v must be equal, with a key for every query")
    kinds = {(tensor.dtype, tensor.device) for tensor in (q_BHTD, k_BHSD, v_BHSD)}
    if len(kinds) > 1 or not q_BHTD.is_floating_point():
        shown = " and ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
        raise UsageError(f"q, k and v are {shown}; give floating point of one dtype on one device")
    if q_BHTD.device.type not in (devices := ENGINES["reference"].devices):
        raise UsageError(f"q, k and v are on {q_BHTD.device}; give them on {' or '.join(devices)}")
    _refuse_no_tokens("q", q_BHTD)


def _refuse_no_tokens(name: str, x: Tensor) -> None:
    if x.shape[-2] == 0:
        raise UsageError(f"{name} has the shape {list(x.shape)}, without a token; give at least one")


def _refuse_growing_grid(encoding: Encoding, columns: int | None, *, grown: bool) -> None:
    """Refuse tokens that go on a grid of unknown width, which would be another one with every token."""
    if encoding.axes == 2 and columns is None and grown:
        raise UsageError(
            f"{_name(encoding)} counts rows and columns, and these are not all tokens of the grid; give its columns"
        )


def _name(encoding: Encoding) -> str:
    return encoding.spec or type(encoding).__name__
