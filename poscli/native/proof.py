"""Whether a compiled library computes what it should: a small random case of everything against the formula."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from poscli.native.attention import attention
from poscli.native.inputs import Block, Relative, Term, Visible
from poscli.native.proof_forms import wrong_form

# Largest difference from the formula in float64, as a share of the largest number: 64 roundings of float32. Sums of
# 100 numbers differ by about 10 roundings.
TOLERANCE = 64 * 2.0**-24
BATCH, HEADS, QUERIES, KEYS, WIDTH, VALUES = 2, 2, 70, 100, 20, 12
REACH, SINKS = 40, 2


def disagreement(library: ctypes.CDLL) -> str:
    """What the library computes wrongly, in words; '' if all is right."""
    with torch.inference_mode(False), torch.enable_grad():  # the first use may be an evaluation
        return _wrong_attention(library) or wrong_form(library)


def _wrong_attention(library: ctypes.CDLL) -> str:
    draw = torch.Generator().manual_seed(1)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw).requires_grad_()

    distances = QUERIES + KEYS - 1
    inputs = {
        "q": random(BATCH, HEADS, QUERIES, WIDTH),
        "k": random(BATCH, HEADS, KEYS, WIDTH),
        "v": random(BATCH, HEADS, KEYS, VALUES),
        "a": random(HEADS, distances, 3),
        "p": random(BATCH, HEADS, QUERIES, 3),
        "b": random(1, distances, 17),
        "r": random(BATCH, HEADS, KEYS, 17),
        "c": random(HEADS, distances, VALUES),
        "table": random(1, HEADS, 1, distances),
        "keys": random(BATCH, HEADS, 1, KEYS),
        "pairs": random(1, 1, QUERIES, KEYS),
    }
    upstream = torch.randn(BATCH, HEADS, QUERIES, VALUES, generator=draw)
    ours = _by_kernels(library, inputs)
    exact = {name: x.detach().double().requires_grad_() for name, x in inputs.items()}
    theirs = _by_formula(exact)
    found = {"the output": (ours, theirs)}
    grads = torch.autograd.grad(ours, list(inputs.values()), upstream)
    wanted = torch.autograd.grad(theirs, list(exact.values()), upstream.double())
    found |= {f"the gradient of {name}": pair for name, *pair in zip(inputs, grads, wanted, strict=True)}  # type: ignore[misc]
    for name, (one, other) in found.items():
        error = float((one.detach() - other.detach()).abs().max() / other.detach().abs().max())
        if not error <= TOLERANCE:
            return f"{name} differs by {error:.1e} of its largest number, more than {TOLERANCE:.1e}"
    return ""


def _by_kernels(library: ctypes.CDLL, x: dict[str, Tensor]) -> Tensor:
    terms = (Term(x["table"], skewed=True), Term(x["keys"]), Term(x["pairs"]))
    return attention(
        library,
        (x["q"], x["k"], x["v"]),
        [Block(slice(0, QUERIES), slice(0, KEYS), terms)],
        scale=0.3,
        visible=Visible(reach=REACH, sinks=SINKS),
        vectors=(Relative(x["a"], x["p"]), Relative(x["b"], x["r"]), Relative(x["c"])),
    )


def _by_formula(x: dict[str, Tensor]) -> Tensor:
    i, j = torch.arange(KEYS - QUERIES, KEYS)[:, None], torch.arange(KEYS)
    entry = KEYS - 1 - (i - j)
    s = 0.3 * x["q"] @ x["k"].mT + x["table"][:, :, 0][..., entry] + x["keys"] + x["pairs"].flip(2)
    s = s + torch.einsum("bhtw,htsw->bhts", x["p"], x["a"][:, entry])
    s = s + torch.einsum("bhsw,tsw->bhts", x["r"], x["b"][0, entry])
    hidden = (j > i) | ((i - j >= REACH) & (j >= SINKS))
    p = s.masked_fill(hidden, -math.inf).softmax(-1)
    return p @ x["v"] + torch.einsum("bhts,htse->bhte", p, x["c"][:, entry])
