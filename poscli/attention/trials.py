"""Trials of the Triton kernels: each compiled variant on a small random input, against the specification in float64.

A variant is what decides the code of the kernels: the terms that are added to the scores, widths, dtype, and whether
there is a backward pass. The input of a trial spans more than one tile in both directions, with an incomplete last one.

B batch, T queries, S keys, H heads, D and E widths of queries and values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from poscli.attention import triton
from poscli.attention.place import Place
from poscli.attention.rotation_trial import Rotation
from poscli.attention.rounding import Tensors, difference, draw, dtype_name, moved
from poscli.attention.sizes import BlockSizes
from poscli.equation import Encoding, Operands, Shape
from poscli.equation.reference import reference

BATCH, HEADS = 2, 2
WIDE = {"table": torch.float32, "potential": torch.float64}  # inputs whose dtype is not that of attention
# The input of a trial that each blank returns.
GIVEN_BY = {"distance_bias": "table", "relative_keys": "a", "relative_queries": "b", "potential": "potential"}
PER_DISTANCE = ("table", "a", "b")


@dataclass(frozen=True, kw_only=True)
class Variant:
    """What decides the code that the kernels of attention are compiled to."""

    use: Literal["training", "evaluation", "decoding"]
    dtype: torch.dtype
    width: int  # D, as the encoding returns queries and keys
    values: int  # E
    table: bool = False  # a number per distance
    a: int = 0  # the width of the vectors per distance that queries meet; 0: there are none
    b: int = 0  # the width of the vectors per distance that keys meet
    potential: bool = False
    reach: bool = False
    learned: tuple[str, ...] = ()  # those of `PER_DISTANCE` that need a gradient

    def __str__(self) -> str:
        has = {
            "a table": self.table,
            f"vectors of {self.a} that queries meet": self.a,
            f"vectors of {self.b} that keys meet": self.b,
            "a potential": self.potential,
            "a window": self.reach,
        }
        widths = f"{self.width} channels" + (f" and values of {self.values}" if self.values != self.width else "")
        terms = ", ".join(term for term, present in has.items() if present) or "no terms"
        learned = f", gradient of {', '.join(self.learned)}" if self.learned else ""
        return f"{self.use} in {dtype_name(self.dtype)}, {widths}, {terms}{learned}"

    def fault(self, device: torch.device) -> str:
        """What differs from the reference in float64, in one line with the error and the tolerance; '' if nothing."""
        given = self.inputs()
        exact = {name: x.double() for name, x in given.items()}
        units = {name: torch.finfo(x.dtype).eps for name, x in given.items()}
        off = [{name: moved(x, units[name], seed) for name, x in exact.items()} for seed in (1, 2)]
        right, *near = (self.results(lambda e, x, _: reference(e, x), inputs) for inputs in (exact, *off))
        found = self.results(triton.run, {name: x.to(device) for name, x in given.items()})
        return difference(found, right, near, self.dtype, given["k"].shape[1])

    def inputs(self) -> Tensors:
        """Random tensors in the dtypes and layouts of a model; q, k and v are `[B, T or S, H, ..]`."""
        queries, keys = self.tokens()
        sizes: dict[str, tuple[int, ...]] = {
            "q": (BATCH, queries, HEADS, self.width),
            "k": (BATCH, keys, HEADS, self.width),
            "v": (BATCH, keys, HEADS, self.values),
        }
        if self.table:
            sizes["table"] = (HEADS, keys)
        if self.a:
            sizes |= {"a": (HEADS, keys, self.a), "q_met": (BATCH, queries, HEADS, self.a)}
        if self.b:
            sizes |= {"b": (HEADS, keys, self.b), "k_met": (BATCH, keys, HEADS, self.b)}
        drawn = {name: draw(*size, seed=n) for n, (name, size) in enumerate(sizes.items())}
        if self.potential:  # of tokens late in a long text, where a single float32 is off by 0.001
            drawn["potential"] = draw(BATCH, HEADS, keys, 1, seed=9).cumsum(2) + 30000
        return {name: x.to(WIDE.get(name, self.dtype)) for name, x in drawn.items()}

    def tokens(self) -> tuple[int, int]:
        """T and S: more than a tile of each, and no multiple of it."""
        from poscli.attention.kernels.decode import LEAST_KEYS_PER_PROGRAM, TILE_KEYS
        from poscli.attention.kernels.tile_shapes import backward_shapes, forward_shape, padded

        if self.use == "decoding":  # in two parts, which are combined
            return 1, LEAST_KEYS_PER_PROGRAM + TILE_KEYS + 9
        of = padded(max(self.width, self.values, self.a, self.b)), self.dtype, bool(self.a or self.b)
        shapes = [forward_shape(*of), *(backward_shapes(*of) if self.use == "training" else ())]
        queries = max(shape.queries for shape in shapes) + 9
        return queries, queries + max(shape.keys for shape in shapes) - 3

    def results(self, run: Callable[[Encoding, Operands, BlockSizes], Tensor], inputs: Tensors) -> Tensors:
        """The output and, in training, all gradients of a random loss, in float64 on the CPU."""
        fixed = set(PER_DISTANCE) - set(self.learned)
        training = self.use == "training"
        x = {name: y.detach().requires_grad_(training and name not in fixed) for name, y in inputs.items()}
        with torch.set_grad_enabled(training):
            probe = Probe(self, x)
            out = run(probe, probe.operands(), BlockSizes())
            found = {"output": out}
            if training:
                learned = {name: y for name, y in x.items() if y.requires_grad}
                g = draw(*out.shape, seed=20).to(self.dtype).to(out)
                gradients = torch.autograd.grad(out, list(learned.values()), g)
                found |= {f"gradient of {name}": y for name, y in zip(learned, gradients, strict=True)}
        return {name: y.detach().double().cpu() for name, y in found.items()}


class Probe(Encoding):
    """The scores have the terms of a variant: the given tensors at every distance."""

    def __init__(self, variant: Variant, given: Tensors) -> None:
        keys = given["k"].shape[1]
        super().__init__(Shape(width=HEADS * variant.values, heads=HEADS, layers=1, length=keys))
        self.given, self.seen = given, keys // 3 if variant.reach else None
        for blank in {blank for blank, name in GIVEN_BY.items() if name not in given}:
            self.leave(blank)
        if not variant.reach:
            self.leave("reach")

    @property
    def reach(self) -> int | None:
        return self.seen

    def distance_bias(self, d: Tensor) -> Tensor:
        return self.given["table"][:, d]

    def relative_keys(self, d: Tensor) -> Tensor:
        return self.given["a"][:, d]

    def relative_queries(self, d: Tensor) -> Tensor:
        return self.given["b"][:, d]

    def potential(self, f_BHSF: Tensor) -> Tensor:
        return f_BHSF[..., 0]

    def operands(self) -> Operands:
        """The inputs of an engine."""
        x = self.given
        q, k, v = (x[name].transpose(1, 2) for name in "qkv")
        return Operands(
            q_BHTD=q,
            k_BHSD=k,
            v_BHSE=v,
            raw_q_BHTD=x["q_met"].transpose(1, 2) if "q_met" in x else q,
            raw_k_BHSD=x["k_met"].transpose(1, 2) if "k_met" in x else k,
            pos_S=torch.arange(k.shape[2], device=k.device),
            step=1,
            reach=self.reach,
            features_BHSF=x.get("potential"),
        )


def variants(encoding: Encoding, place: Place) -> list[Variant]:
    """The variants that the engine can need for an encoding in a place: one for each use, with and without its window.

    An input that is no longer than the window is computed without it.
    """
    own = next(encoding.parameters(), None)
    device = torch.device("cpu") if own is None else own.device
    with torch.inference_mode(False), torch.enable_grad():
        x = _one_token(encoding, place, device)
        terms = triton.score_terms(encoding, x)
    whole = Variant(
        use="training" if place.gradient else "evaluation",
        dtype=place.dtype,
        width=x.q_BHTD.shape[-1],
        values=place.width,
        table="table" in terms,
        a=terms["a"].shape[-1] if "a" in terms else 0,
        b=terms["b"].shape[-1] if "b" in terms else 0,
        potential="potential" in terms,
        learned=tuple(n for n in PER_DISTANCE if place.gradient and n in terms and terms[n].requires_grad),
    )
    windows = (False, True) if "reach" in encoding.blanks else (False,)
    uses = [whole] if place.gradient else [whole, replace(whole, use="decoding")]
    return [replace(use, reach=reach) for use in uses for reach in windows]


def _one_token(encoding: Encoding, place: Place, device: torch.device) -> Operands:
    """The operands of one token, which show the widths of what an encoding returns."""
    at = encoding.shape
    zeros = torch.zeros(1, at.heads, 1, at.head_width, dtype=place.dtype, device=device)
    pos = torch.arange(1, device=device)
    features = None
    if "features" in encoding.blanks:
        features = encoding.features(torch.zeros(1, 1, at.width, device=device))
    return Operands(
        q_BHTD=encoding.query(encoding.content_query(zeros), pos),
        k_BHSD=zeros,
        v_BHSE=zeros,
        raw_q_BHTD=zeros,
        raw_k_BHSD=zeros,
        pos_S=pos,
        step=1,
        features_BHSF=features,
    )


def examples(dtype: torch.dtype, width: int = 64) -> list[Variant | Rotation]:
    """Variants that run every kernel with every term between them, for a usual width of heads."""
    attention = [
        Variant(use="training", dtype=dtype, width=width, values=width, table=True, learned=("table",)),
        Variant(use="training", dtype=dtype, width=width, values=width, table=True, reach=True),
        Variant(use="training", dtype=dtype, width=width, values=width, a=width, b=width, learned=("a", "b")),
        Variant(use="training", dtype=dtype, width=width, values=width, potential=True),
        Variant(use="decoding", dtype=dtype, width=width, values=width, table=True, reach=True),
        Variant(use="decoding", dtype=dtype, width=width, values=width, a=width, b=width, potential=True),
    ]
    layouts: tuple[Literal["half", "interleaved"], ...] = ("half", "interleaved")
    return [
        *attention,
        *(Rotation(dtype=dtype, width=width, pairs=width // 2, layout=layout) for layout in layouts),
    ]
