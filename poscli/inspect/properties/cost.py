"""Time and memory of one attention layer with the encoding, beside the same layer without any encoding.

The layer is run as the model runs it: on the engine that the model chooses, without gradients, on one text. The
embedding and the positions are part of it. `poscli bench` measures whole models.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from poscli.bench.timing import Pace, Timing, in_turns, ratio
from poscli.drawing.text import number
from poscli.equation import Encoding, Unsupported
from poscli.inspect.properties.row import Property, in_training_lengths
from poscli.inspect.properties.tested_model import CPU, TestedModel
from poscli.model.transformer import Attention, Precision
from poscli.specs import build
from poscli.verify.noise import draw, draw_tokens

FACTORS = (1, 4, 16)  # of L
PACE = Pace(repeats=5, seconds=1.0, sample=0.04)
LONGEST = 2.0  # seconds that one run with and one without the encoding may take together
SMALLEST_MEMORY = 4.0  # MiB: below it, what the system reports is mostly other allocations
LINEAR, QUADRATIC = 6.0, 10.0  # growth of memory when the input grows 4 times: in proportion it is 4, by the square 16


def cost(tested: TestedModel) -> list[Property]:
    """Rows `time` and `memory`, at L, 4 L and 16 L; a length that would take too long is left out, and said."""
    encodings = _encodings(tested)
    layers = [_attention(tested, encoding) for encoding in encodings]
    plain = [_attention(tested, Encoding(tested.shape)) for _ in layers]
    found, why = _timed(tested, layers, plain)
    engine = "+".join(dict.fromkeys(layer.choice.name for layer in layers))
    usual = plain[0].choice.name
    if not found:
        return [Property(name, "not measured", f"{why[0].upper()}{why[1:]}.", {}) for name in ("time", "memory")]
    where = {"engine": engine, "engine_without": usual, "threads": torch.get_num_threads()}
    return [time_row(tested, found, why, where), memory_row(tested, found)]


def _encodings(tested: TestedModel) -> list[Encoding]:
    """The trained encodings, or new ones: weights moved at random could forget nearly all keys, which saves time."""
    if tested.trained:
        return tested.encodings
    layers = build(tested.spec, tested.shape, tested.seed)
    return [layers[n].eval().requires_grad_(False) for n in tested.kinds]


def _attention(tested: TestedModel, encoding: Encoding) -> Attention:
    """An attention layer around an encoding, with random matrices."""
    layer = Attention(tested.model.config, encoding, Precision())
    with torch.no_grad():
        for n, matrix in enumerate((layer.q, layer.k, layer.v, layer.o)):
            matrix.weight.copy_(draw(*matrix.weight.shape, seed=n) * matrix.weight.shape[1] ** -0.5)
    return layer.eval().requires_grad_(False)


def _timed(
    tested: TestedModel, layers: Sequence[Attention], plain: Sequence[Attention]
) -> tuple[dict[int, tuple[Timing, Timing]], str]:
    """Timings with and without the encoding by the length of the input, and why longer inputs are missing."""
    found: dict[int, tuple[Timing, Timing]] = {}
    for tokens in (factor * tested.length for factor in FACTORS):
        if found:
            shorter = max(found)
            foreseen = sum(timing.median for timing in found[shorter]) * (tokens / shorter) ** 2
            if foreseen > LONGEST:
                return found, f"{in_training_lengths(tokens, tested.length)} would take about {foreseen:.0f} s a run"
        try:
            works = [_run(tested, each, tokens) for each in (layers, plain)]
            with_encoding, without = in_turns(works, PACE, CPU)
        except Unsupported as reason:
            return found, str(reason)
        found[tokens] = with_encoding, without
    return found, ""


def _run(tested: TestedModel, layers: Sequence[Attention], tokens: int) -> Callable[[], Tensor]:
    """A function that embeds a text and runs it through the attention of each layer in turn."""
    ids, x_BTW = draw_tokens(tested.shape.vocab, 1, tokens), draw(1, tokens, tested.shape.width)
    first = layers[0].encoding

    @torch.no_grad()
    def work() -> Tensor:
        out = first.embed(x_BTW, first.locate(tokens, CPU).pos, ids) if "embed" in first.blanks else x_BTW
        for layer in layers:
            out = layer(out, layer.encoding.locate(tokens, CPU), None, None)
        return out

    return work


def time_row(tested: TestedModel, found: dict[int, tuple[Timing, Timing]], why: str, where: dict[str, Any]) -> Property:
    """Time with the encoding as a multiple of that without, at the shortest and at the longest input."""
    measured = {tokens: _numbers(*pair) for tokens, pair in found.items()}
    at = {n: in_training_lengths(n, tested.length) for n in measured}
    own = ", ".join(f"{number(1000 * m['seconds'])} ms at {at[n]}" for n, m in measured.items())
    plain = ", ".join(f"{number(1000 * m['seconds_without'])} ms" for m in measured.values())
    last = f" {why}." if why else ""
    threads = f"{where['threads']} thread{'s' * (where['threads'] > 1)}"
    detail = (
        f"One attention layer, forward, {threads}: {own} on the engine {where['engine']}; without encoding {plain} "
        f"on {where['engine_without']}.{last}"
    )
    each = [f"{m['ratio']:.2f} times at {at[n]}" for n, m in measured.items()]
    numbers = where | {"lengths": {str(tokens): m for tokens, m in measured.items()}, "stopped": why}
    return Property("time", ", ".join(dict.fromkeys([each[0], each[-1]])), detail, numbers)


def _numbers(timing: Timing, without: Timing) -> dict[str, Any]:
    times = ratio(timing, without)
    return {
        "seconds": timing.median,
        "seconds_without": without.median,
        "ratio": times.median,
        "ratio_low": times.low,
        "ratio_high": times.high,
        "turns": len(timing.seconds),
    }


def memory_row(tested: TestedModel, found: dict[int, tuple[Timing, Timing]]) -> Property:
    """Peak memory at the longest input, and how it has grown since a fourth of that length."""
    longest = max(found)
    timing, without = found[longest]
    numbers: dict[str, Any] = {
        "lengths": {str(n): {"mib": t.peak_mb, "mib_without": w.peak_mb} for n, (t, w) in found.items()},
        "growth": None,
    }
    at = in_training_lengths(longest, tested.length)
    if timing.memory_of != "case":
        detail = "This system does not report the peak memory of a piece of work."
        return Property("memory", "not measured", detail, numbers)
    extra = timing.peak_mb - without.peak_mb
    value = f"{extra:.0f} MiB more at {at}" if extra >= 0.5 else f"no more at {at}"
    if max(timing.peak_mb, without.peak_mb) < SMALLEST_MEMORY:
        value = f"below {SMALLEST_MEMORY:.0f} MiB at {at}"
    detail = f"Peak of one attention layer at {at}: {timing.peak_mb:.0f} MiB, {without.peak_mb:.0f} without encoding"
    shorter = found.get(longest // 4)
    if shorter is None or shorter[0].peak_mb < SMALLEST_MEMORY:
        return Property("memory", value, f"{detail}; too little to tell how it grows with the length.", numbers)
    before = in_training_lengths(longest // 4, tested.length)
    growth = numbers["growth"] = timing.peak_mb / shorter[0].peak_mb
    how = "at most in proportion to L" if growth < LINEAR else "as L^2" if growth > QUADRATIC else "faster than L"
    numbers["grows"] = how
    detail += f". It grew {growth:.1f} times since {before}, a fourth of the tokens; L^2 would be 16 times."
    return Property("memory", f"{value}, grows {how}", detail, numbers)
