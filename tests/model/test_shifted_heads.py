"""Heads whose keys are those of the token before: what they see, how they decode, and that one layer can copy."""

from __future__ import annotations

import pytest
import torch
from toys import HEADS, LENGTH, VOCAB, WIDTH, first, perturbed, rounding, tokens

from poscli.config.run import ModelConfig, Recipe
from poscli.model.cache import Cache
from poscli.model.initialise import build_model
from poscli.model.transformer import Model, shift_keys
from poscli.training.optimizer import Optimizer

SPECS = ["none", "alibi", "rope", "fox", "cope", "rope+window(9)"]


def shifted(spec: str, layers: int = 2, heads: int = 1) -> Model:
    config = ModelConfig(layers=layers, width=WIDTH, heads=HEADS, mlp=32, shifted=heads)
    return perturbed(build_model(config, spec, vocab=VOCAB, length=LENGTH, seed=0))


def test_the_first_heads_get_the_keys_of_the_token_before() -> None:
    k = torch.arange(2 * 3 * 4 * 5.0).view(2, 3, 4, 5)
    before = torch.full((2, 2, 1, 5), -1.0)
    moved = shift_keys(k, 2, before)
    assert moved[:, :2, 1:].equal(k[:, :2, :-1])
    assert moved[:, :2, :1].equal(before)
    assert moved[:, 2:].equal(k[:, 2:])
    assert not shift_keys(k, 2)[:, :2, 0].any()


@pytest.mark.parametrize("spec", SPECS)
@torch.no_grad()
def test_cached_decoding_equals_the_full_forward(spec: str) -> None:
    trained, text = shifted(spec), tokens(2, 24)
    full, limit = trained(text), rounding(trained, text)
    for steps in ([1] * 24, [5] + [1] * 19, [11, 1, 1, 7, 1, 3]):
        cache = Cache()
        parts = [trained(part, cache=cache) for part in text.split(steps, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), full, rtol=0, atol=limit)


@pytest.mark.parametrize("spec", first(2, SPECS))
@torch.no_grad()
def test_no_output_depends_on_a_later_token(spec: str) -> None:
    trained, text = shifted(spec), tokens(1, 20)
    other = text.clone()
    other[0, 12:] = (other[0, 12:] + 1) % VOCAB
    limit = rounding(trained, text)
    torch.testing.assert_close(trained(other)[:, :12], trained(text)[:, :12], rtol=0, atol=limit)


@pytest.mark.wide
def test_a_single_layer_learns_to_copy_with_them_and_not_without() -> None:
    """Random tokens, each text twice: the second half can be known, but for its first token, by copying alone."""

    def accuracy(heads: int) -> float:
        config = ModelConfig(layers=1, width=64, heads=4, mlp=32, shifted=heads)
        model = build_model(config, "none", vocab=32, length=32, seed=0)
        optimizer, draw = Optimizer(model, Recipe(matrix_lr=0.02), 150), torch.Generator().manual_seed(0)
        for step in range(151):
            half = torch.stack([torch.randperm(32, generator=draw)[:16] for _ in range(64)])
            text = torch.cat([half, half], dim=1)
            targets = text[:, 1:].clone()
            targets[:, :16] = -100
            if step == 150:
                with torch.no_grad():
                    guessed = model(text[:, :-1]).argmax(-1)
                return float((guessed == targets)[:, 16:].float().mean())
            optimizer.zero_grad()
            model.loss(text[:, :-1], targets).backward()
            optimizer.clip()
            optimizer.step(step)
        raise AssertionError

    assert accuracy(heads=2) > 0.95
    assert accuracy(heads=0) < 0.5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shifted": 9}, "shifted 9 is more than the 8 heads there are; give 8 or fewer"),
        ({"shifted": 1, "memory": 8}, "exclude each other"),
    ],
)
def test_what_cannot_be_is_refused(fields: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelConfig(**fields)
