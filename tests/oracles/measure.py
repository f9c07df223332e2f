"""Results of poscli and of an oracle, and the largest difference to allow between them."""

from __future__ import annotations

import copy
from functools import cache

import torch
from torch import Tensor
from toys import HEAD_WIDTH, HEADS, LENGTH, VOCAB, WIDTH, draw, make, tokens

from oracles import FLOAT32, Content, Oracle, attention
from poscli.attention import ENGINES, Place, attend, engines_for
from poscli.encodings import Encoding
from poscli.equation import Positions, Unsupported
from poscli.equation.operands import columns_of, raster

BATCH = 2
STRIDES = (1, 21)  # steps between positions, which reach the training length, and 16 times that
EMBEDDING_STRIDES = (1, 13, 21)  # a hierarchy of 16 rows ends at position 255, which 21 steps pass
WITHOUT_ENGINES = ("embedding", "mixture")  # what oracles give that comes before attention


@cache
def made(spec: str) -> Encoding:
    """The encoding of a spec, which is built once and not to be changed: to copy it takes a fifth of the time."""
    return make(spec)


def content(oracle: Oracle, stride: int, dtype: torch.dtype) -> Content:
    q, k, v = (draw(BATCH, HEADS, LENGTH, HEAD_WIDTH, seed=n, dtype=dtype).requires_grad_() for n in range(3))
    x = draw(BATCH, LENGTH, WIDTH, seed=3, dtype=dtype).requires_grad_()
    order = torch.arange(LENGTH)
    pos = stride * (order if made(oracle.spec).axes == 1 else raster(order, columns_of(LENGTH))).double()
    return Content(q, k, v, x, tokens(BATCH, LENGTH) % VOCAB, pos)


def with_gradients(out: Tensor, encoding: Encoding, c: Content) -> dict[str, Tensor]:
    """The result, and its gradients under a random loss, as float64."""
    learned = {"q": c.q, "k": c.k, "v": c.v, "x": c.x}
    learned |= {f"encoding.{name}": p for name, p in encoding.named_parameters()}  # some have a parameter v
    (out * draw(*out.shape, seed=4, dtype=out.dtype)).sum().backward()
    grads = {f"d{name}": torch.zeros_like(p) if p.grad is None else p.grad for name, p in learned.items()}
    return {name: value.detach().double() for name, value in ({"result": out} | grads).items()}


def expected(oracle: Oracle, stride: int, noise: int | None = None) -> dict[str, Tensor]:
    """The oracle's results; with a seed `noise`, every input is changed by one unit of rounding of float32."""
    encoding, c = copy.deepcopy(made(oracle.spec)).to(torch.float64), content(oracle, stride, torch.float64)
    if noise is not None:
        with torch.no_grad():
            for n, number in enumerate([c.q, c.k, c.v, c.x, c.pos, *encoding.parameters()]):
                number *= 1 + FLOAT32 * draw(*number.shape, seed=100 * noise + n, dtype=torch.float64).sign()
    result = oracle.formula(encoding, c)
    return with_gradients(attention(result, c) if oracle.gives == "scores" else result, encoding, c)


def found(oracle: Oracle, stride: int, engine: str, dtype: torch.dtype) -> dict[str, Tensor]:
    """The results of poscli, with gradients if the engine has a backward pass."""
    encoding, c = copy.deepcopy(made(oracle.spec)).to(dtype), content(oracle, stride, dtype)
    assert made(oracle.spec).blanks == encoding.blanks
    index = c.pos.long()
    pos = encoding.positions(index)
    if oracle.gives in WITHOUT_ENGINES:
        x = encoding.mix(c.x) if oracle.gives == "mixture" else encoding.embed(c.x, pos, c.ids)
        return with_gradients(x, encoding, c)
    features = encoding.features(c.x)
    even = torch.equal(pos, index)
    at = Positions(pos=pos, step=float(stride) if even else None)
    if encoding.axes == 2:
        at = Positions(pos=pos, step=None)
    with torch.set_grad_enabled(ENGINES[engine].gradient):
        out = attend(ENGINES[engine], encoding, c.q, c.k, c.v, at, features)
    return with_gradients(out, encoding, c) if out.requires_grad else {"result": out.double()}


def limits(oracle: Oracle, stride: int, exact: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference to allow in each result, as in `poscli.verify.noise.tolerances`.

    It is eight times the change of the oracle's result if every input, positions included, changes by one unit of
    rounding, and at least eight units of a sum of D products of order 1. The gradient of a parameter adds up such sums,
    times factors as large as the largest distance.
    """
    moved = [expected(oracle, stride, noise) for noise in (1, 2, 3)]
    own = {name: max(float((m[name] - x).abs().max()) for m in moved) for name, x in exact.items()}
    weight = {name: 1 if name in ("result", "dq", "dk", "dv") else LENGTH * stride for name in exact}
    return {name: 8 * max(error, FLOAT32 * HEAD_WIDTH * weight[name]) for name, error in own.items()}


@cache
def largest(oracle: Oracle) -> tuple[float, float]:
    """The largest error in float32 over all engines and strides, and its limit."""
    seen = [(0.0, 0.0)]
    for stride in strides_of(oracle):
        try:
            exact = expected(oracle, stride)
            limit = limits(oracle, stride, exact)["result"]
        except Unsupported:
            continue
        for engine in engines_of(oracle):
            value = found(oracle, stride, engine, torch.float32)["result"]
            seen.append((float((value - exact["result"]).abs().max()), limit))
    return max(seen)


def strides_of(oracle: Oracle) -> tuple[int, ...]:
    return {"embedding": EMBEDDING_STRIDES, "mixture": (1,)}.get(oracle.gives, STRIDES)


def engines_of(oracle: Oracle, dtype: torch.dtype = torch.float32) -> list[str]:
    encoding, place = made(oracle.spec), Place(dtype=dtype, gradient=False)
    return ["-"] if oracle.gives in WITHOUT_ENGINES else [engine.name for engine in engines_for(encoding, place)]
