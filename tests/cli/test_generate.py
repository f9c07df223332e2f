"""Generation: what the model is fed, and how a token is chosen from its logits."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from toys import LENGTH, VOCAB, model, perturbed, rounding

from poscli.model.cache import Cache
from poscli.model.generate import Repetition, generate, repetitions
from poscli.model.transformer import Model
from poscli.system.seeds import generator

END = VOCAB - 1
LOGITS = torch.tensor([1.5, -0.5, 0.25, 0.0, -2.0])
NEVER = -1e9  # a logit with probability 0


class Scripted(nn.Module):
    """Gives the logits of a list, one per call, and the last one from then on; remembers what it was fed."""

    def __init__(self, *logits: Tensor) -> None:
        super().__init__()
        self.device = torch.device("cpu")
        self.logits, self.fed, self.caches = logits, [], set()

    def logits_in_slices(self, tokens_BT: Tensor, last: int, *, cache: Cache) -> Iterator[tuple[slice, Tensor]]:
        now = self.logits[min(len(self.fed), len(self.logits) - 1)]
        self.fed.append(tokens_BT.tolist())
        self.caches.add(id(cache))
        others = torch.full((1, tokens_BT.shape[1], len(now)), NEVER)
        others[..., 0] = 0.0  # tokens before the last one would say 0
        others[0, -1] = now
        yield slice(0, last), others[:, -last:]


def only(token: int, size: int = 5) -> Tensor:
    """Logits that are surest of one token."""
    return torch.arange(size) * 0.01 + 5 * torch.eye(size)[token]


def test_the_model_reads_the_end_token_and_the_prompt_then_one_token_at_a_time() -> None:
    scripted = Scripted(only(3), only(1), only(2))
    assert list(generate(scripted, [4, 2, 0], [4], tokens=3, temperature=0, seed=0)) == [3, 1, 2]
    assert scripted.fed == [[[4, 2, 0]], [[3]], [[1]]]  # and nothing after the last token
    assert list(generate(Scripted(only(3)), [4], [4], tokens=1, temperature=0, seed=0)) == [3]  # an empty prompt
    assert len(scripted.caches) == 1


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_the_end_token_ends_the_text_and_is_not_part_of_it(temperature: float) -> None:
    sure = [100 * torch.eye(5)[token] for token in (3, 0, 4)]
    assert list(generate(Scripted(*sure), [4, 1], [4], tokens=9, temperature=temperature, seed=0)) == [3, 0]
    assert list(generate(Scripted(*sure[2:]), [4, 1], [4], tokens=9, temperature=temperature, seed=0)) == []


@pytest.mark.parametrize("temperature", [0.25, 0.7, 1.0, 3.0])
@pytest.mark.parametrize("seed", [0, 5])
def test_a_token_is_drawn_from_the_softmax_of_the_logits_over_the_temperature(temperature: float, seed: int) -> None:
    """The draws of the seed's own generator, and their frequencies."""
    made = list(generate(Scripted(LOGITS), [1], [99], tokens=1500, temperature=temperature, seed=seed))
    weights = torch.tensor([2.718281828459045 ** (float(s) / temperature) for s in LOGITS])
    p, draw = weights / weights.sum(), generator(seed, "generate")
    # The probabilities by hand differ in their last bits, so one draw in a million may differ.
    by_hand = [int(torch.multinomial(p, 1, generator=draw)) for _ in made]
    assert sum(a != b for a, b in zip(made, by_hand, strict=True)) <= 1
    counts = torch.bincount(torch.tensor(made), minlength=5)
    assert float(((counts - 1500 * p) ** 2 / (1500 * p)).sum()) < 23.5  # chi-square of 4 degrees: p = 1e-4


def test_at_temperature_0_the_likeliest_token_is_taken_whatever_the_seed() -> None:
    """So it is at one that is too small to divide by."""
    for seed, temperature in ((0, 0), (1, 0), (0, 1e-6), (0, 5e-324)):
        made = generate(Scripted(100 * LOGITS), [1], [99], tokens=50, temperature=temperature, seed=seed)
        assert list(made) == [0] * 50
    assert list(generate(Scripted(-LOGITS), [1], [99], tokens=3, temperature=0, seed=0)) == [4] * 3


@pytest.mark.parametrize("temperature", [0, 0.7])
def test_the_end_token_never_ends_a_grid(temperature: float) -> None:
    """A grid is full after as many tokens as were asked for; the token that opens it is no cell of it."""
    scripted = Scripted(100 * torch.eye(5)[4] + 50 * torch.eye(5)[3])
    assert list(generate(scripted, [4, 1], [4], tokens=6, temperature=temperature, seed=0, columns=3)) == [3] * 6


class Endless(nn.Module):
    """A model that never ends a text, and keeps the logits of the last token of each call as they were."""

    def __init__(self, inner: Model) -> None:
        super().__init__()
        self.inner, self.device, self.seen = inner, inner.device, []

    def logits_in_slices(self, tokens_BT: Tensor, last: int, *, cache: Cache) -> Iterator[tuple[slice, Tensor]]:
        for part, logits in self.inner.logits_in_slices(tokens_BT, last, cache=cache):
            self.seen.append(logits[0, -1].clone())
            logits[..., END] = NEVER
            yield part, logits


@pytest.mark.parametrize("spec", ["rope", "alibi", "shaw", "cope", "fox", "sinusoidal", "rope+window(5)"])
@torch.no_grad()
def test_every_token_is_drawn_from_the_logits_of_the_whole_text(spec: str) -> None:
    """One token at a time with a cache gives the logits of one pass over prompt and text, past L too."""
    trained, prompt = perturbed(model(spec)), [3, 1, 4]
    endless = Endless(trained)
    made = list(generate(endless, [END, *prompt], [END], tokens=LENGTH, temperature=0.7, seed=1))
    assert len(made) == LENGTH
    text = torch.tensor([[END, *prompt, *made[:-1]]])
    full = trained(text)[0, len(prompt) :]
    torch.testing.assert_close(torch.stack(endless.seen), full, rtol=0, atol=rounding(trained, text))


def test_repetition_is_the_share_of_4_grams_that_stand_in_a_stretch_twice() -> None:
    """Counted by hand, for text that begins at place 6 of stretches of 8 tokens."""
    made = [5, 6, *[1, 2, 3, 4, 1, 2, 3, 4], 9, 9, 9, 9, 9, 9]  # the first stretch ends after two tokens
    first, second = [1, 2, 3, 4, 1, 2, 3, 4], [9] * 6
    assert len({tuple(first[n : n + 4]) for n in range(5)}) == 4
    assert repetitions(made, 6, 8) == [
        Repetition(8, 16, pytest.approx(1 / 5)),
        Repetition(16, 6 + 2 + 8 + len(second), pytest.approx(2 / 3)),
    ]
    assert repetitions([], 6, 8) == []
    assert repetitions(list(range(20)), 0, 100) == [Repetition(0, 20, 0.0)]
