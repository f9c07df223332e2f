"""LongRoPE's search for its factors, on a loss with a known optimum and on a model."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from toys import HEAD_WIDTH, LENGTH, make, model, perturbed, rounding, shape, tokens

from poscli.encodings.longrope import LongRoPE
from poscli.encodings.rope import RoPE
from poscli.evaluation.posthoc import with_encoding
from poscli.system.errors import UsageError

FACTOR = 8.0
BEST = torch.tensor([1.3, 1.7, 6.5, 9.5], dtype=torch.float64)  # far from every seed; the last is above FACTOR


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


class Toy:
    """A loss that is 0 at BEST, with a record of the factors that it was measured for."""

    def __init__(self, encoding: LongRoPE) -> None:
        self.encoding = encoding
        self.measured: list[Tensor] = []

    def __call__(self) -> float:
        assert self.encoding.factors is not None
        self.measured.append(self.encoding.factors.clone())
        return self.at(self.encoding.factors)

    @staticmethod
    def at(factors: Tensor) -> float:
        return float((factors.log() - BEST.log()).square().sum())


def searched(evaluations: int, spec: str = f"longrope(factor={FACTOR})", seed: int = 0) -> tuple[LongRoPE, Toy, float]:
    encoding = make(spec)
    assert isinstance(encoding, LongRoPE)
    loss = Toy(encoding)
    return encoding, loss, encoding.search(loss, evaluations, generator(seed), FACTOR)


def test_the_search_finds_the_optimum() -> None:
    encoding, loss, best = searched(2000)
    assert best == Toy.at(encoding.factors) == min(map(Toy.at, loss.measured))
    assert best < 0.05 * min(map(Toy.at, loss.measured[:3]))  # the seeds
    torch.testing.assert_close(encoding.factors, BEST, rtol=0.1, atol=0)


def test_it_starts_from_yarn_ntk_and_interpolation() -> None:
    _, loss, _ = searched(3)
    assert 1 < LENGTH / (2 * math.pi) < 10  # only the first pair turns once within L
    gamma = torch.tensor([1, 0, 0, 0], dtype=torch.float64)
    ntk = FACTOR ** (torch.arange(4, dtype=torch.float64) / 3)
    expected = [1 / (gamma + (1 - gamma) / FACTOR), ntk, torch.full((4,), FACTOR, dtype=torch.float64)]
    torch.testing.assert_close(loss.measured, expected)
    _, loss, _ = searched(1, f"longrope(factor={FACTOR}, start=pi)")
    torch.testing.assert_close(loss.measured, expected[2:])


@pytest.mark.parametrize("evaluations", [1, 2, 7, 8, 9, 40, 203])
def test_factors_stay_within_the_papers_bounds(evaluations: int) -> None:
    _, loss, _ = searched(evaluations)
    assert len(loss.measured) == evaluations
    for factors in loss.measured:
        assert factors.shape == (HEAD_WIDTH // 2,)
        assert (factors.diff() >= 0).all()
        assert factors[0] >= 1 - 1e-12
        assert factors[-1] <= 1.25 * FACTOR


def test_the_generator_decides_the_result() -> None:
    (one, _, _), (again, _, _), (other, _, _) = searched(60), searched(60), searched(60, seed=1)
    assert torch.equal(one.factors, again.factors)
    assert not torch.equal(one.factors, other.factors)


def test_a_loss_that_is_not_finite_is_the_worst() -> None:
    encoding = make(f"longrope(factor={FACTOR})")
    values = iter([math.nan, 3.0, math.inf, 2.0, 5.0, math.nan])
    assert encoding.search(lambda: next(values), 6, generator()) == 2.0


@pytest.mark.parametrize("spec", ["longrope", f"longrope(factor={FACTOR})"])
def test_the_factors_found_are_used(spec: str) -> None:
    encoding, _, _ = searched(50, spec)
    plain = RoPE(shape()).theta(torch.arange(1))
    for length in (LENGTH, 3 * LENGTH, int(FACTOR) * LENGTH):
        # lambda - 1 is proportional to s - 1
        share = 1 if encoding.factor else (length / LENGTH - 1) / (FACTOR - 1)
        theta = encoding.theta(torch.arange(length))
        torch.testing.assert_close(theta, plain / (1 + share * (encoding.factors - 1)))


def test_a_search_needs_a_longer_text_and_a_budget() -> None:
    for spec, evaluations, factor in (("longrope", 9, None), ("longrope(factor=1)", 9, None), ("longrope", 0, 8.0)):
        with pytest.raises(ValueError, match="a search needs a factor above 1 and an evaluation, got"):
            make(spec).search(lambda: 0.0, evaluations, generator(), factor)
    with pytest.raises(UsageError, match="cannot be negative, got 0 and -1"):
        make("longrope(search=-1)")


def test_a_model_has_one_set_of_factors() -> None:
    """A search on the first layer's encoding changes all layers and lowers the loss of the model."""
    trained = perturbed(model("longrope(start=pi, search=30)")).requires_grad_(False)
    assert len({id(encoding) for encoding in trained.encodings}) == 1
    encoding, text = trained.encodings[0], tokens(2, 4 * LENGTH)
    assert encoding.evaluations == 30

    def loss() -> float:
        return float(F.cross_entropy(trained(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten()))

    before, short, limit = loss(), trained(text[:, :LENGTH]), rounding(trained, text[:, :LENGTH])
    found = encoding.search(loss, encoding.evaluations, generator(), 4.0)
    assert found == loss() < before
    # within the training length it stays rope
    torch.testing.assert_close(trained(text[:, :LENGTH]), short, rtol=0, atol=limit)
    assert "factors" not in trained.state_dict()


SHORT, LONG = torch.tensor([1.0, 1.1, 1.5, 2.0]), torch.tensor([1.0, 3.0, 5.0, 9.0])


def listed(spec: str) -> LongRoPE:
    encoding = make(spec)
    assert isinstance(encoding, LongRoPE)
    encoding.use_factors(SHORT, LONG)
    return encoding


@pytest.mark.parametrize("options", ["factor=4", f"factor=4, original={LENGTH // 2}", f"original={LENGTH // 2}"])
def test_the_lists_of_a_checkpoint_are_chosen_by_the_length_of_the_text(options: str) -> None:
    encoding = listed(f"longrope({options})")
    assert encoding.rescales
    original = LENGTH // 2 if "original" in options else LENGTH
    plain = RoPE(shape()).theta(torch.arange(1))
    for count, factors in ((1, SHORT), (original, SHORT), (original + 1, LONG), (9 * LENGTH, LONG)):
        torch.testing.assert_close(encoding.theta(torch.arange(count)), plain / factors.double(), rtol=1e-14, atol=0)
        s = 4 if encoding.factor else max(1, count / original)
        amplitude = torch.tensor(math.sqrt(1 + math.log(s) / math.log(original)), dtype=torch.float64)
        torch.testing.assert_close(encoding.amplitude(torch.arange(count)), amplitude.expand(count, 1))


def test_a_search_goes_beyond_the_lists_of_a_checkpoint() -> None:
    encoding = listed(f"longrope(factor={FACTOR})")
    assert encoding.search(Toy(encoding), 3, generator()) > 0
    plain = RoPE(shape()).theta(torch.arange(1))
    torch.testing.assert_close(encoding.theta(torch.arange(9)), plain / encoding.factors)


def test_a_search_counts_from_the_original_length() -> None:
    """Texts of 2 L tokens are 8 times as long as an original length of L / 4."""
    encoding = make(f"longrope(original={LENGTH // 4})")
    encoding.search(Toy(encoding), 3, generator(), 2.0)
    assert encoding.found_at == 8


def test_wrong_lists_are_refused() -> None:
    for short, long in ((SHORT, LONG[:3]), (SHORT[None], LONG), (SHORT, LONG - 1)):
        with pytest.raises(ValueError, match="needs 4 factors above 0, one for each pair, got"):
            make("longrope").use_factors(short, long)


@torch.no_grad()
def test_lists_move_with_the_model_but_are_not_among_its_weights() -> None:
    """A copy under another spec uses them; so does a composition, which then depends on the length of the text, too."""
    trained = perturbed(model("longrope(factor=4)"))
    assert not trained.encodings[0].rescales
    trained.encodings[0].use_factors(SHORT, LONG)
    text = tokens(2, 2 * LENGTH)
    joined = with_encoding(trained, "longrope(factor=4.0)+window(99)", "longrope(factor=4.0)")
    assert joined.encodings[0].rescales
    limit = rounding(trained, text)
    torch.testing.assert_close(joined(text), trained(text), rtol=0, atol=limit)
    assert not torch.allclose(perturbed(model("longrope(factor=4)"))(text), trained(text), rtol=0, atol=10 * limit)
    assert not any("factors" in name for name in trained.state_dict())
    assert trained.to("meta").encodings[0].long_factors.is_meta
