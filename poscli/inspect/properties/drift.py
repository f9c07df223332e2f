"""How far attention in bfloat16 and float16 is from attention in float64, by the position in the text.

An encoding that computes with large positions in a narrow dtype loses their last digits, so that its error grows with
the position. The error that attention has anyway is measured on the same input without any encoding.

Shapes: B batch, S keys, H heads, D head width, W model width.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from poscli.equation import Encoding, Positions, Unsupported
from poscli.equation.reference import operands, reference
from poscli.inspect.properties.row import Property, in_training_lengths, percent, relative_change
from poscli.inspect.properties.tested_model import TestedModel
from poscli.verify.noise import draw_inputs, draw_tokens

DTYPES = (torch.bfloat16, torch.float16)
NEAR, SPREAD = 16, 16  # tokens of the text: the last ones, and others evenly over the rest
BATCH = 4
WORSE = 4.0  # times the error without encoding: what is worth a word
GROWN = 2.0  # times the error in a text of a few tokens: less does not depend on the position


@dataclass(frozen=True, eq=False)
class Sample:
    """Some tokens of a text, the last one among them, with numbers that the dtype under test holds exactly."""

    tokens: int  # of the whole text
    index_S: Tensor  # which tokens of it
    ids_BS: Tensor
    given: dict[str, Tensor]  # q, k and v [B, H, S, D], and x [B, S, W]
    embedded: bool  # True: q, k and v are not the given ones but the normed embedding of x

    @classmethod
    def of(cls, tested: TestedModel, dtype: torch.dtype, tokens: int) -> Sample:
        """A sample of a text of `tokens` tokens."""
        far = torch.linspace(0, tokens - NEAR - 1, SPREAD).long() if tokens > NEAR else torch.zeros(0).long()
        index = torch.cat([far, torch.arange(max(0, tokens - NEAR), tokens)]).unique()
        given = draw_inputs(tested.shape, len(index), len(index), dtype, seed=tested.seed, batch=BATCH)
        ids = draw_tokens(tested.shape.vocab, BATCH, len(index), tested.seed)
        embedded = any("embed" in encoding.blanks for encoding in tested.encodings)
        return cls(tokens, index, ids, given, embedded)

    @torch.no_grad()
    def attention(self, encoding: Encoding, dtype: torch.dtype) -> Tensor:
        """The attention output of the last token, `[B, H, 1, D]`, computed in a dtype and returned in float64."""
        pos = encoding.locate(self.tokens, self.index_S.device).pos[self.index_S]
        x_BSW = self.given["x"].to(torch.promote_types(dtype, torch.float32))
        q, k, v = (self.given[name].to(dtype) for name in "qkv")
        if self.embedded:
            x_BSW = F.rms_norm(encoding.embed(x_BSW, pos, self.ids_BS), x_BSW.shape[-1:])
            q = k = v = x_BSW.unflatten(2, (encoding.shape.heads, -1)).transpose(1, 2).to(dtype)
        features = encoding.features(x_BSW)
        x = operands(encoding, q[:, :, -1:], k, v, Positions(pos=pos, step=None), features)
        if x.temperature_HT is not None:  # the sample has few tokens, and the text has more
            seen = self.tokens if x.reach is None else min(self.tokens, x.reach + x.sinks)
            x = replace(x, temperature_HT=encoding.temperature(torch.tensor([seen])))
        return encoding.output(reference(encoding, x), x.pos_T).double()


def drift(tested: TestedModel) -> Property:
    """The relative error of the last token's attention output in texts of a few tokens, of L, 4 L and 16 L."""
    length = tested.length
    counts = [min(NEAR + SPREAD, length), *(factor * length for factor in (1, 4, 16))]
    errors = {_name(dtype): [_measured(tested, dtype, count) for count in counts] for dtype in DTYPES}
    numbers = {"tokens": counts, "worse": WORSE} | errors
    return Property("drift", _value(errors, counts, length), _detail(errors, counts, length), numbers)


def _measured(tested: TestedModel, dtype: torch.dtype, tokens: int) -> dict[str, Any]:
    """The largest error over the encodings of the layers, the error without encoding, and their ratio."""
    sample, plain = Sample.of(tested, dtype, tokens), Encoding(tested.shape)
    without = relative_change(sample.attention(plain, torch.float64), sample.attention(plain, dtype))
    found: dict[str, Any] = {"error": None, "without": without, "ratio": None, "refused": ""}
    try:
        errors = [
            relative_change(sample.attention(exact, torch.float64), sample.attention(encoding, dtype))
            for encoding, exact in zip(tested.encodings, tested.exact, strict=True)
        ]
    except Unsupported as reason:
        return found | {"refused": str(reason)}
    if not all(error < float("inf") for error in errors):  # NaN is not below it, either
        return found | {"refused": "attention is not finite"}
    return found | {"error": max(errors), "ratio": max(errors) / without}


def _value(errors: dict[str, list[dict[str, Any]]], counts: list[int], length: int) -> str:
    found = {(name, count): entry for name in errors for count, entry in zip(counts, errors[name], strict=True)}
    known = {where: entry["ratio"] for where, entry in found.items() if entry["ratio"] is not None}
    if not known:
        return "not known: every length is refused"
    (name, count), worst = max(known.items(), key=lambda one: one[1])
    if worst > WORSE:
        first = errors[name][0]["ratio"]
        where = "at every length" if worst < GROWN * first else f"at {in_training_lengths(count, length)}"
        return f"{name}: {worst:.0f} times the usual error {where}"
    safe = [count for count in counts if all((name, count) in known for name in errors)]
    return f"no drift up to {in_training_lengths(safe[-1], length)}" if safe else "no drift where it is finite"


def _detail(errors: dict[str, list[dict[str, Any]]], counts: list[int], length: int) -> str:
    parts = []
    for name, entries in errors.items():
        each = [f"{_shown(e)} at {in_training_lengths(n, length)}" for n, e in zip(counts, entries, strict=True)]
        usual = percent(max(entry["without"] for entry in entries))
        parts.append(f"{name} {', '.join(each)} (without encoding at most {usual})")
    return f"Error of the last token's attention against float64: {'; '.join(parts)}."


def _shown(entry: dict[str, Any]) -> str:
    return "refused" if entry["error"] is None else percent(entry["error"])


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
