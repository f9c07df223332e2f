"""Transformer-XL's segment memory: what is remembered, without gradient, in training and in evaluation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor
from toys import HEADS, LENGTH, VOCAB, WIDTH, first, perturbed, rounding, tokens

from poscli.config.request import TrainRequest
from poscli.config.resolve import resolve
from poscli.config.run import ModelConfig
from poscli.data import Split, batch
from poscli.encodings import get, names
from poscli.model.cache import Cache, Memory
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.system.errors import UsageError

KEPT = 10  # tokens of memory: neither a segment nor a part of one
RELATIVE = ["none", "alibi", "rope", "shaw", "cope", "rope+window(9)", "toys:Forgetting", "toys:Untied"]


def remembering(spec: str, layers: int = 2, kept: int = KEPT) -> Model:
    config = ModelConfig(layers=layers, width=WIDTH, heads=HEADS, mlp=32, memory=kept)
    return perturbed(build_model(config, spec, vocab=VOCAB, length=LENGTH, seed=0))


def by_segments(trained: Model, text: Tensor) -> Tensor:
    """As in training: a segment at a time, with the states of the ones before."""
    memory = Memory(trained.config.memory)
    return torch.cat([trained(part, memory=memory) for part in text.split(LENGTH, dim=1)], dim=1)


@pytest.mark.parametrize(
    ("spec", "kept"), [*((spec, KEPT) for spec in RELATIVE), ("alibi", 1), ("alibi", 2 * LENGTH - 3)]
)
@torch.no_grad()
def test_training_evaluation_and_decoding_give_equal_logits(spec: str, kept: int) -> None:
    """A memory of less than a segment, of one token, and of more than a segment, which the first one does not fill."""
    trained, text = remembering(spec, kept=kept), tokens(2, 3 * LENGTH + 5)
    full, limit = trained(text), rounding(trained, text)
    torch.testing.assert_close(by_segments(trained, text), full, rtol=0, atol=limit)
    for steps in ([1] * text.shape[1], [LENGTH + 3, 1, 1, 30, 1, 1]):
        cache = Cache()
        parts = [trained(part, cache=cache) for part in text[:, : sum(steps)].split(steps, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), full[:, : sum(steps)], rtol=0, atol=limit)


@pytest.mark.parametrize("spec", first(1, ["rope", "alibi", "none"]))
@torch.no_grad()
def test_one_layer_sees_its_segment_and_the_memory(spec: str) -> None:
    """In one layer the states are the embeddings, so a model without memory that reads only these tokens agrees."""
    trained, plain = remembering(spec, layers=1), remembering(spec, layers=1, kept=0)
    text = tokens(1, 3 * LENGTH)
    full = trained(text)
    for i in range(text.shape[1]):
        seen = text[:, max(0, i // LENGTH * LENGTH - KEPT) : i + 1]
        torch.testing.assert_close(full[:, i], plain(seen)[:, -1], rtol=0, atol=rounding(trained, text))


@torch.no_grad()
def test_memory_reaches_further_with_every_layer() -> None:
    trained, text, last = remembering("alibi"), tokens(1, 3 * LENGTH), 3 * LENGTH - 1
    full, limit = trained(text), rounding(trained, text)
    for changed, seen in (
        (2 * LENGTH, True),
        (2 * LENGTH - KEPT, True),
        (LENGTH - KEPT, True),
        (LENGTH - KEPT - 1, False),
    ):
        other = text.clone()
        other[0, changed] = (other[0, changed] + 1) % VOCAB
        assert (float((trained(other) - full)[0, last].abs().max()) > limit) == seen


def test_the_gradient_stops_at_the_segment() -> None:
    trained = remembering("alibi")
    text = torch.cat([torch.zeros(1, LENGTH, dtype=torch.long), 1 + tokens(1, LENGTH) % (VOCAB - 1)], dim=1)
    memory = Memory(KEPT)
    first, second = (trained(part, memory=memory) for part in text.split(LENGTH, dim=1))
    second.sum().backward()
    assert not trained.embedding.grad[0].any()
    assert trained.embedding.grad[1:].any()
    assert first.requires_grad
    assert all(not state.requires_grad and state.shape[1] == KEPT for state in memory.states.values())
    # but what reads the memory learns from it
    trained.zero_grad()
    trained(text[:, LENGTH:], memory=Memory(KEPT)).sum().backward()
    alone = trained.layers[0].attention.k.weight.grad.clone()
    trained.zero_grad()
    memory = Memory(KEPT)
    for part in text.split(LENGTH, dim=1):
        logits = trained(part, memory=memory)
    logits.sum().backward()
    assert not torch.equal(trained.layers[0].attention.k.weight.grad, alone)


def test_segments_follow_each_other() -> None:
    split = Split(tokens=np.arange(1000, dtype=np.int64), starts=np.array([0, 1000]))
    steps = [batch(split, length=8, size=3, seed=0, step=step, segments=4) for step in range(8)]
    for before, after in itertools.pairwise(steps[:4]):
        assert np.array_equal(before[:, -1], after[:, 0])
    assert not np.array_equal(steps[3][:, -1], steps[4][:, 0])
    assert steps[0].max() < 1000
    plain = batch(split, length=8, size=3, seed=0, step=5)
    assert np.array_equal(plain, batch(split, length=8, size=3, seed=0, step=5, segments=1))


@pytest.mark.parametrize("name", names())
def test_relative_encodings_take_a_memory_and_others_say_why_not(name: str) -> None:
    request = TrainRequest(preset="nano", length=32, model={"memory": 16})
    encoding = get(name)(resolve(request, "none", 0, torch.device("cpu")).model.shape(32))
    whole = encoding.rescales or encoding.sinks or "mix" in encoding.blanks or name in ("selective", "selective-rope")
    if encoding.relative and encoding.axes == 1 and not whole:
        assert resolve(request, name, 0, torch.device("cpu")).model.memory == 16
        return
    why = (
        "cannot be trained with a memory: it (depends on|mixes|hides|sums)"
        if encoding.axes == 1
        else "encodes rows and columns"
    )
    with pytest.raises(UsageError, match=f"{name} {why}"):
        resolve(request, name, 0, torch.device("cpu"))


@pytest.mark.parametrize("spec", ["randomized-yarn(factor=2)", "rope|urpe(base=selective)"])
def test_what_segments_would_lose_is_refused_in_any_spec(spec: str) -> None:
    request = TrainRequest(preset="nano", length=32, model={"memory": 16})
    with pytest.raises(UsageError, match=r"with a memory: it (draws|hides) .*; use another one, or --memory 0"):
        resolve(request, spec, 0, torch.device("cpu"))
