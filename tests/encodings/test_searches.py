"""Constants of an encoding that are searched for on a trained model: LongRoPE's factors, and temper's.

LongRoPE's factors may also come with a checkpoint.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from toys import HEAD_WIDTH, LENGTH, make, model, perturbed, rounding, shape, tokens

from poscli.config.run import ModelConfig
from poscli.encodings.longrope import LongRoPE
from poscli.encodings.rope import RoPE
from poscli.equation import Encoding
from poscli.evaluation.evaluate import search_constants
from poscli.evaluation.posthoc import with_encoding
from poscli.model.initialise import build_model
from poscli.model.transformer import Model
from poscli.system.errors import DataError, UsageError
from poscli.tasks import open_task
from poscli.tasks.copy import Copy

FACTOR = 8.0
BEST = torch.tensor([1.3, 1.7, 6.5, 9.5], dtype=torch.float64)  # far from every seed; the last is above FACTOR
PLAIN = RoPE(shape()).theta(torch.arange(1))


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def distance(factors: Tensor) -> float:
    """A loss that is 0 at BEST."""
    return float((factors.log() - BEST.log()).square().sum())


def searched(count: int, options: str = f"factor={FACTOR}", seed: int = 0) -> tuple[LongRoPE, list[Tensor], float]:
    """An encoding after its search, the factors that were measured, and the best loss."""
    encoding, measured = make(f"longrope({options})"), []

    def loss() -> float:
        measured.append(encoding.factors.clone())
        return distance(encoding.factors)

    return encoding, measured, encoding.search(loss, count, generator(seed), FACTOR)


def test_the_search_finds_the_optimum() -> None:
    encoding, measured, best = searched(2000)
    assert best == distance(encoding.factors) == min(map(distance, measured))
    assert best < 0.05 * min(map(distance, measured[:3]))  # the seeds
    torch.testing.assert_close(encoding.factors, BEST, rtol=0.1, atol=0)


def test_it_starts_from_yarn_ntk_and_interpolation() -> None:
    assert 1 < LENGTH / (2 * math.pi) < 10  # only the first pair turns once within L
    gamma = torch.tensor([1, 0, 0, 0], dtype=torch.float64)
    ntk = FACTOR ** (torch.arange(4, dtype=torch.float64) / 3)
    expected = [1 / (gamma + (1 - gamma) / FACTOR), ntk, torch.full((4,), FACTOR, dtype=torch.float64)]
    torch.testing.assert_close(searched(3)[1], expected)
    torch.testing.assert_close(searched(1, f"factor={FACTOR}, start=pi")[1], expected[2:])


@pytest.mark.parametrize("evaluations", [1, 7, 8, 9, 203])
def test_factors_stay_within_the_papers_bounds(evaluations: int) -> None:
    _, measured, _ = searched(evaluations)
    assert len(measured) == evaluations
    for factors in measured:
        assert factors.shape == (HEAD_WIDTH // 2,)
        assert (factors.diff() >= 0).all()
        assert factors[0] >= 1 - 1e-12
        assert factors[-1] <= 1.25 * FACTOR


def test_the_generator_decides_the_result_and_a_loss_that_is_not_finite_is_the_worst() -> None:
    (one, _, _), (again, _, _), (other, _, _) = searched(60), searched(60), searched(60, seed=1)
    assert torch.equal(one.factors, again.factors)
    assert not torch.equal(one.factors, other.factors)
    values = iter([math.nan, 3.0, math.inf, 2.0, 5.0, math.nan])
    assert make(f"longrope(factor={FACTOR})").search(lambda: next(values), 6, generator()) == 2.0


@pytest.mark.parametrize("options", ["start=yarn", f"factor={FACTOR}"])
def test_the_factors_found_are_used(options: str) -> None:
    encoding, _, _ = searched(50, options)
    for length in (LENGTH, 3 * LENGTH, int(FACTOR) * LENGTH):
        # lambda - 1 is proportional to s - 1
        share = 1 if encoding.factor else (length / LENGTH - 1) / (FACTOR - 1)
        theta = encoding.theta(torch.arange(length))
        torch.testing.assert_close(theta, PLAIN / (1 + share * (encoding.factors - 1)))


def test_a_search_needs_a_longer_text_and_a_budget() -> None:
    for spec, evaluations, factor in (("longrope", 9, None), ("longrope(factor=1)", 9, None), ("longrope", 0, 8.0)):
        with pytest.raises(ValueError, match="a search needs a factor above 1 and an evaluation, got"):
            make(spec).search(lambda: 0.0, evaluations, generator(), factor)
    with pytest.raises(UsageError, match="cannot be negative, got 0 and -1"):
        make("longrope(search=-1)")


def test_a_search_counts_from_the_original_length() -> None:
    """Texts of 2 L tokens are 8 times as long as an original length of L / 4."""
    encoding = make(f"longrope(original={LENGTH // 4})")
    encoding.search(lambda: 0.0, 3, generator(), 2.0)
    assert encoding.found_at == 8


def test_a_model_has_one_set_of_factors() -> None:
    """A search on the first layer's encoding changes all layers and lowers the loss of the model."""
    trained = perturbed(model("longrope(start=pi, search=30)")).requires_grad_(False)
    assert len({id(encoding) for encoding in trained.encodings}) == 1
    encoding, text = trained.encodings[0], tokens(2, 4 * LENGTH)

    def loss() -> float:
        return float(F.cross_entropy(trained(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()))

    before, short, limit = loss(), trained(text[:, :LENGTH]), rounding(trained, text[:, :LENGTH])
    best = encoding.search(loss, encoding.evaluations, generator(), 4.0)
    assert best == loss() < before
    # within the training length it stays rope
    torch.testing.assert_close(trained(text[:, :LENGTH]), short, rtol=0, atol=limit)
    assert "factors" not in trained.state_dict()


# The lists of a checkpoint

SHORT, LONG = torch.tensor([1.0, 1.1, 1.5, 2.0]), torch.tensor([1.0, 3.0, 5.0, 9.0])


@pytest.mark.parametrize("options", ["factor=4", f"factor=4, original={LENGTH // 2}", f"original={LENGTH // 2}"])
def test_the_lists_of_a_checkpoint_are_chosen_by_the_length_of_the_text(options: str) -> None:
    encoding, original = make(f"longrope({options})"), LENGTH // 2 if "original" in options else LENGTH
    encoding.use_factors(SHORT, LONG)
    assert encoding.rescales
    for count, factors in ((1, SHORT), (original, SHORT), (original + 1, LONG), (9 * LENGTH, LONG)):
        torch.testing.assert_close(encoding.theta(torch.arange(count)), PLAIN / factors.double(), rtol=1e-14, atol=0)
        s = 4 if encoding.factor else max(1, count / original)
        amplitude = torch.tensor(math.sqrt(1 + math.log(s) / math.log(original)), dtype=torch.float64)
        torch.testing.assert_close(encoding.amplitude(torch.arange(count)), amplitude.expand(count, 1))


def test_a_search_goes_beyond_the_lists_and_wrong_lists_are_refused() -> None:
    encoding = make(f"longrope(factor={FACTOR})")
    encoding.use_factors(SHORT, LONG)
    encoding.search(lambda: 0.0, 3, generator())
    torch.testing.assert_close(encoding.theta(torch.arange(9)), PLAIN / encoding.factors)
    for short, long in ((SHORT, LONG[:3]), (SHORT[None], LONG), (SHORT, LONG - 1)):
        with pytest.raises(ValueError, match="needs 4 factors above 0, one for each pair, got"):
            encoding.use_factors(short, long)


@torch.no_grad()
def test_lists_move_with_the_model_but_are_not_among_its_weights() -> None:
    """A copy under another spec uses them; so does a composition, which then depends on the length of the text, too."""
    trained = perturbed(model("longrope(factor=4)"))
    assert not trained.encodings[0].rescales
    trained.encodings[0].use_factors(SHORT, LONG)
    text = tokens(2, 2 * LENGTH)
    copied = with_encoding(trained, "longrope(factor=4.0)+window(99)", "longrope(factor=4.0)")
    assert copied.encodings[0].rescales
    limit = rounding(trained, text)
    torch.testing.assert_close(copied(text), trained(text), rtol=0, atol=limit)
    assert not torch.allclose(perturbed(model("longrope(factor=4)"))(text), trained(text), rtol=0, atol=10 * limit)
    assert not any("factors" in name for name in trained.state_dict())
    assert trained.to("meta").encodings[0].long_factors.is_meta


# Temper, and the search on a trained model


def test_temper_takes_the_best_of_an_even_grid() -> None:
    encoding, tried = make("temper(search=11)"), []

    def loss() -> float:
        tried.append(encoding.c)
        return math.nan if encoding.c > 0.75 else (encoding.c - 0.32) ** 2

    assert encoding.search(loss, encoding.evaluations, generator()) == pytest.approx(0.02**2)
    assert tried == pytest.approx([n / 10 for n in range(11)])
    assert encoding.c == pytest.approx(0.3)


class Searching(Encoding):
    """Measures the loss as often as it may, under factors 1, 2, ... on the queries, and keeps the last factor."""

    name, evaluations = "searching", 3

    def __init__(self, at: Encoding) -> None:
        super().__init__(at.shape)
        self.factor, self.losses, self.arguments = 1.0, [], ()

    def query(self, q_BHTD: Tensor, pos: Tensor) -> Tensor:
        return q_BHTD * self.factor

    def search(self, loss: Any, evaluations: int, draw: torch.Generator, factor: float | None = None) -> float:
        self.arguments = evaluations, factor
        for n in range(evaluations):
            self.factor = n + 1.0
            self.losses.append(loss())
        return min(self.losses)


def searching() -> tuple[Model, Searching]:
    made = perturbed(build_model(ModelConfig(layers=1, width=16, heads=2, mlp=16), "none", vocab=18, length=8, seed=0))
    encoding = made.layers[0].attention.encoding = Searching(made.encodings[0])
    return made, encoding


def test_a_search_measures_nats_per_counted_target_of_four_training_windows(capsys: pytest.CaptureFixture[str]) -> None:
    task, (made, encoding) = Copy(), searching()
    search_constants(made, task, 32)
    assert encoding.arguments == (3, 4.0)  # 32 / 8
    windows = Copy().batch(size=4, length=32, seed=0, step=0)
    assert len(set(windows.counted.sum(axis=1).tolist())) > 1  # between 1 and L/2: a mean of means would not do
    by_hand = []
    for n in range(3):
        encoding.factor = n + 1.0
        with torch.no_grad():
            logits = made(torch.from_numpy(windows.tokens[:, :-1])).double()
        each = F.cross_entropy(logits.mT, torch.from_numpy(windows.tokens[:, 1:]), reduction="none")
        by_hand.append(float(each[torch.from_numpy(windows.counted)].mean()))
    assert encoding.losses == pytest.approx(by_hand, rel=1e-5)
    assert len({round(value, 4) for value in by_hand}) == 3
    assert f"fitted to 4 training windows of 32 tokens: {min(by_hand):.3f} nats per token" in capsys.readouterr().err


def test_a_search_reads_the_text_for_tuning_where_nothing_is_for_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for n in range(8):
        (tmp_path / f"{n}.txt").write_text(f"{n} of them " * 8)
    task = open_task("language", f"whole:text:{tmp_path}", "bytes")
    config = ModelConfig(layers=1, width=16, heads=2, mlp=16)
    made = perturbed(build_model(config, "temper(search=2)", vocab=task.vocab, length=8, seed=0))
    search_constants(made, task, 64)
    assert "temper was fitted to 4 tuning windows of 64 tokens" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"temper is fitted to windows of 640 tokens .* or give search=0"):
        search_constants(made, task, 640)


def test_there_is_no_search_up_to_the_training_length_or_without_a_budget() -> None:
    task, (made, encoding) = Copy(), searching()
    search_constants(made, task, 8)
    encoding.evaluations = 0
    search_constants(made, task, 32)
    search_constants(model("rope"), task, 32)
    assert not encoding.losses
