"""Text or an image from a trained model, token by token through the cache, and how far text repeats itself."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import torch

from poscli.model.cache import Cache
from poscli.model.language_model import LanguageModel
from poscli.system.seeds import generator


@torch.inference_mode()
def generate(
    model: LanguageModel,
    prompt: Sequence[int],
    ends: Collection[int],
    *,
    tokens: int,
    temperature: float,
    seed: int,
    columns: int | None = None,
    known: int | None = None,
) -> Iterator[int]:
    """Continue a text that begins with a prompt, until the model ends it or `tokens` tokens are generated.

    The tokens `ends` end a text, and are not part of what is generated. The prompt has at least one token, that which
    opens a document. Tokens from the number `known` on are never drawn: some models have rows of embeddings that no
    token of their tokenizer stands for. With `columns` the text is a grid of so many columns, in raster order, and
    nothing ends it. A `temperature` of 0 takes the likeliest token. Raises Unsupported at the first position that the
    encoding does not have.
    """
    draw = generator(seed, "generate")
    cache = Cache(columns=columns)
    logits = _logits(model, prompt, cache)
    for n in range(tokens):
        if columns is not None:
            logits[list(ends)] = -torch.inf
        token = _pick(logits[:known].float().cpu(), temperature, draw)
        if token in ends:
            return
        yield token
        if n + 1 < tokens:
            logits = _logits(model, [token], cache)


def _logits(model: LanguageModel, tokens: Sequence[int], cache: Cache) -> torch.Tensor:
    """The logits `[V]` after the last of some further tokens."""
    ((_, logits_BTV),) = model.logits_in_slices(torch.tensor([tokens], device=model.device), 1, cache=cache)
    return logits_BTV[0, -1]


def _pick(logits: torch.Tensor, temperature: float, draw: torch.Generator) -> int:
    """A token drawn with probability softmax(logits / temperature), in float64; ties of the greedy choice go first.

    Logits are taken relative to the largest one, so that no temperature overflows: 0 / temperature stays 0, and
    -inf has probability 0.
    """
    if temperature == 0:
        return int(logits.argmax())
    below = logits.double() - logits.max()
    return int(torch.multinomial(torch.softmax(below / temperature, dim=-1), 1, generator=draw))


GRAM = 4  # tokens


@dataclass(frozen=True)
class Repetition:
    """How much of the generated text between two places repeats itself."""

    begin: int  # the place of its first token in the text, counted from 0
    end: int  # and that behind its last one
    share: float  # of its 4-grams, that stand in it a second time or more


def repetitions(generated: Sequence[int], begin: int, length: int) -> list[Repetition]:
    """The share of 4-grams that occurred before, in each stretch of `length` tokens of a text.

    The text's tokens from place `begin` on are the generated ones, and stretches begin at multiples of `length`. The
    share is seq-rep-4 of arXiv:1908.04319. A short stretch repeats itself less than a long one; one of fewer than 4
    tokens is left out.
    """
    found = []
    for first in range(begin // length * length, begin + len(generated), length):
        start, stop = max(first, begin), min(first + length, begin + len(generated))
        tokens = generated[start - begin : stop - begin]
        grams = [tuple(tokens[n : n + GRAM]) for n in range(len(tokens) - GRAM + 1)]
        if grams:
            found.append(Repetition(start, stop, 1 - len(set(grams)) / len(grams)))
    return found
