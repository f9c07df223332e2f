"""The longest input for which attention is finite, in each dtype."""

from __future__ import annotations

from typing import Any

import torch

from poscli.equation import Encoding, Unsupported
from poscli.inspect.properties.row import Property, ranges
from poscli.inspect.properties.tested_model import TestedModel
from poscli.verify.noise import draw_inputs, draw_tokens
from poscli.verify.probe import attend_at, longest_finite

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def safe_lengths(tested: TestedModel) -> Property:
    """The longest input with finite attention in float16, bfloat16 and float32, and why longer ones have none."""
    found = {dtype: _longest(tested, dtype) for dtype in DTYPES}
    numbers = {_name(dtype): entry for dtype, entry in found.items()}
    unlimited = min((entry["tokens"] for entry in found.values() if not entry["known_limit"]), default=0)
    value = ranges([(name, _in_words(entry, unlimited)) for name, entry in numbers.items()])
    shortest = min(found.values(), key=lambda entry: entry["tokens"])
    if shortest["why"]:
        detail = f"Beyond {shortest['tokens']:,} tokens: {shortest['why']}."
    else:
        detail = "No longer input was tried; attention was finite in all that were."
    wrong = [name for name, entry in numbers.items() if entry["agrees"] is False]
    if wrong:
        detail += f" This contradicts the class, which declares longer inputs in {' and '.join(wrong)}."
    elif any(entry["declared"] is not None for entry in found.values()):
        detail += " The limit is no shorter than the class declares."
    return Property("safe length", f"{value} tokens", detail, numbers)


def _longest(tested: TestedModel, dtype: torch.dtype) -> dict[str, Any]:
    """The shortest limit over the encodings of the layers, whether it is known to be one, and what is declared."""
    each = [(longest_finite(encoding, dtype, tested.seed), encoding) for encoding in tested.encodings]
    (tokens, ends), encoding = min(each, key=lambda entry: entry[0])
    declared = min((n for e in tested.encodings if (n := e.longest(dtype)) is not None), default=None)
    why = _why(encoding, dtype, tokens + 1, tested.seed) if ends else ""
    agrees = None if declared is None else tokens >= declared or not ends
    return {"tokens": tokens, "known_limit": ends, "why": why, "declared": declared, "agrees": agrees}


def _why(encoding: Encoding, dtype: torch.dtype, tokens: int, seed: int) -> str:
    """What happens to an input of so many tokens: the encoding's own refusal, or numbers that are not finite."""
    index = torch.tensor([0, tokens - 1])
    given = draw_inputs(encoding.shape, len(index), len(index), dtype, seed=seed)
    try:
        pos = encoding.locate(tokens, torch.device("cpu")).pos[index]
        encoding.embed(given["x"], pos, draw_tokens(encoding.shape.vocab, 2, len(index), seed))
        attend_at(encoding, given, pos)
    except Unsupported as reason:
        return str(reason)
    return f"attention in {_name(dtype)} is not finite"


def _in_words(entry: dict[str, Any], unlimited: int) -> str:
    """A limit, or the length that all dtypes without a known limit reached: the search has little time for each."""
    return f"{entry['tokens']:,}" if entry["known_limit"] else f"at least {unlimited:,}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
