"""Generating text or an image with a trained model, token by token through the cache."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from poscli.model.cache import Cache
from poscli.model.transformer import Model
from poscli.system.seeds import generator


@torch.inference_mode()
def generate(
    model: Model,
    prompt: Sequence[int],
    end: int,
    *,
    tokens: int,
    temperature: float,
    seed: int,
    columns: int | None = None,
) -> Iterator[int]:
    """Continue a document that begins with a prompt, until the model ends it or `tokens` tokens are generated.

    `end` is the token between documents. With `columns` the document is a grid of so many columns, in raster order:
    `end` opens it and is never generated. A `temperature` of 0 takes the likeliest token. Raises Unsupported at the
    first position that the encoding does not have.
    """
    device = model.embedding.device
    draw = generator(seed, "generate")
    cache = Cache(columns=columns)
    logits = model(torch.tensor([[end, *prompt]], device=device), cache=cache)[0, -1]
    for n in range(tokens):
        if columns is not None:
            logits[end] = -torch.inf
        token = _pick(logits.float().cpu(), temperature, draw)
        if token == end:
            return
        yield token
        if n + 1 < tokens:
            logits = model(torch.tensor([[token]], device=device), cache=cache)[0, -1]


def _pick(logits: torch.Tensor, temperature: float, draw: torch.Generator) -> int:
    """A token drawn with probability softmax(logits / temperature), in float64; ties of the greedy choice go first.

    Logits are taken relative to the largest one, so that no temperature overflows: 0 / temperature stays 0, and
    -inf has probability 0.
    """
    if temperature == 0:
        return int(logits.argmax())
    below = logits.double() - logits.max()
    return int(torch.multinomial(torch.softmax(below / temperature, dim=-1), 1, generator=draw))
