"""The loss computed in chunks, and its gradients, equal those of all logits at once."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from poscli.model.loss import vocabulary_loss

N, V, W = 37, 29, 8


def operands(dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(n, W, generator=draw, dtype=dtype, requires_grad=True) for n in (N, V))
    return x, weight, torch.randint(V, (N,), generator=draw)


@pytest.mark.parametrize("ignored", [0, 9])
@pytest.mark.parametrize("rows", [1, 5, 36, 37])
def test_the_loss_in_chunks_is_cross_entropy(rows: int, ignored: int) -> None:
    """Over the targets that are not -100, of which every other one of the first is."""
    x, weight, targets = operands(torch.float32)
    targets[: 2 * ignored : 2] = -100
    exact_x, exact_weight = (p.detach().double().requires_grad_() for p in (x, weight))
    found = vocabulary_loss(x, weight, targets, torch.float32, limit=rows * V)
    expected = F.cross_entropy(exact_x @ exact_weight.mT, targets)
    grads = torch.autograd.grad(3 * found, (x, weight))
    exact = torch.autograd.grad(3 * expected, (exact_x, exact_weight))
    # Sums of W, V or N products near 1 each: a rounding of 2^-24 per term.
    torch.testing.assert_close(found.double(), expected, rtol=(W + V) * 2**-24, atol=0)
    for ours, theirs in zip(grads, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=0, atol=(V + N) * 2**-24 * float(theirs.abs().max()))


def test_in_bfloat16_only_the_products_are_rounded() -> None:
    x, weight, targets = operands(torch.float32)
    whole, chunked = (vocabulary_loss(x, weight, targets, torch.bfloat16, limit=n * V) for n in (N, 5))
    assert whole.dtype == chunked.dtype == torch.float32
    # The same logits; what is summed otherwise is float32.
    torch.testing.assert_close(chunked, whole, rtol=(N + V) * 2**-24, atol=0)
    for ours, theirs in zip(
        torch.autograd.grad(chunked, (x, weight)), torch.autograd.grad(whole, (x, weight)), strict=True
    ):
        assert ours.dtype == torch.float32
        torch.testing.assert_close(ours, theirs, rtol=0, atol=2 * 2**-8 * float(theirs.abs().max()))


def test_the_logits_of_all_tokens_are_never_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    x, weight, targets = operands(torch.float32)
    largest: list[int] = []
    logsumexp = torch.Tensor.logsumexp

    def watched(s: torch.Tensor, *arguments: object, **options: object) -> torch.Tensor:
        largest.append(s.numel())
        return logsumexp(s, *arguments, **options)

    monkeypatch.setattr(torch.Tensor, "logsumexp", watched)
    monkeypatch.setattr(F, "cross_entropy", lambda *_: pytest.fail("all logits at once"))
    vocabulary_loss(x, weight, targets, torch.float32, limit=5 * V + 3)
    assert len(largest) == 8
    assert max(largest) == 5 * V
